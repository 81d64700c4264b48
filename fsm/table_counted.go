package fsm

import (
	"cmp"
	"encoding/hex"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/codec"
	"github.com/berth-dev/berth/model"
	"github.com/berth-dev/berth/queue"
)

// To ask by which rules between pods a class is kept off nodes, all pods that its
// terms may be about have to be counted first, and that can take longer than one
// entry may. Then entries that follow do it in parts (queue.PendingCount), and no
// pod of these rules is decided about until all are counted. What is counted is
// kept, on every server, and is in rows, so that all agree of whom they may ask.

// SinceCountedRules is the LogVersion from which on pods are counted in parts.
const SinceCountedRules = 6

// SinceEligibleBilled is the LogVersion from which on it is charged that all nodes are
// asked whether they are domains for a class.
const SinceEligibleBilled = 21

const (
	// costCountedKind is to count a kind of pods for a term, and costCountedPlace
	// each node where it has some.
	costCountedKind  = 8
	costCountedPlace = 1
	// freeCount is what is counted again and again, and maxCountAtOnce what an entry
	// may count at once for one class.
	freeCount      = 2000
	maxCountAtOnce = 50_000
	// What is kept is bounded, by what it took to count: bytesCountedKind at most for
	// each costCountedKind. The rules of one pod are kept however much that is.
	bytesCountedKind = 32
	maxCounted       = (128 << 20) / bytesCountedKind * costCountedKind
	maxCountedRules  = 1024
)

// countedRules are the rules of a class of which it is counted whom they are about.
type countedRules struct {
	// Pod is the key of one that has them.
	Pod string `msgpack:"pod"`
	// Units is what counting takes, and Left what of that is still to be done.
	Units int64 `msgpack:"units"`
	Left  int64 `msgpack:"left,omitempty"`
	// Made is when it was begun, in revisions.
	Made int64 `msgpack:"made"`
	// Spaces: a term chooses namespaces by their labels.
	Spaces bool `msgpack:"spaces,omitempty"`
}

var countedRulesTable = &tableDef[*countedRules]{
	Name:      "countedrules",
	Canonical: codec.Canonical[*countedRules](codec.Msgpack),
	Bytes:     func(_ *live, r *countedRules) int { return smallBytes + len(r.Pod) },
	Marshal:   packRow[countedRules],
	Unmarshal: unpackRow[countedRules],
	Index: func(v *live, key string, _, _ *countedRules, _, hasNow bool) {
		if t := v.cache.counters.topology; t != nil && !hasNow {
			if rules, err := hex.DecodeString(key); err == nil {
				t.Release(string(rules))
			}
		}
	},
}

func countedKey(c *model.Class) string { return hex.EncodeToString([]byte(c.Rules())) }

// countsParts says whether what takes long is counted in parts: not where nobody
// waits for the entry.
func (v *live) countsParts() bool { return v.Version() >= SinceCountedRules && !v.trying }

// countUnits is what it may take to count for a class for the first time.
func (v *live) countUnits(c *model.Class) int64 {
	n := v.topology().CountFor(c)
	v.topology().Charge(n.Looks)
	if v.Version() < SinceEligibleBilled {
		n.Nodes = 0
	}
	nodes := int64(v.Nodes.Len())
	return n.Counters*(costTerm+nodes/nodesPerUnit) + n.Nodes*nodes + n.Kinds*costCountedKind + n.Places*costCountedPlace + n.Looks
}

// isCounted says whether what the class's rules are about is counted and kept.
func (v *live) isCounted(c *model.Class) bool {
	row, ok := v.counted.Get(countedKey(c))
	return ok && row.Left == 0
}

// uncounted is what JudgeCost says of a class about which the counters can not be
// asked before more is counted than an entry may.
const uncounted = -1

// ruleCost is what it may cost to ask about the class's own terms.
func (v *live) ruleCost(c *model.Class) int {
	labelled, wide := c.CountTerms()
	if terms := labelled + wide; terms == 0 || v.isCounted(c) {
		return terms * costTerm
	}
	units := v.countUnits(c)
	if units > maxCountAtOnce {
		return uncounted
	}
	return int(units)
}

// countsFor says whether it has to be counted whom a class's rules are about before it
// is decided about.
func (v *live) countsFor(c ruled) bool {
	return v.countsParts() && c.class.HasTopology() && (c.class.HasHardTopology() || v.usage.KeepAway())
}

// mayAsk says whether the counters may be asked about a class, or need not be.
func (v *live) mayAsk(c ruled) bool { return !v.countsFor(c) || v.ruleCost(c.class) != uncounted }

// stillCounting is why a decision was not looked at.
const stillCounting = "the pods that its rules are about are still being counted; it is tried again every second"

// countFor has it counted whom the rules of a pod are about that is decided about,
// and says whether that is done.
func (tx *Tx) countFor(c ruled, pod *corev1.Pod) bool {
	v := tx.view
	if !v.countsFor(c) || v.isCounted(c.class) {
		return true
	}
	units := v.countUnits(c.class)
	if units <= freeCount {
		return true
	}
	key := countedKey(c.class)
	row := &countedRules{
		Pod: PodKey(pod.Namespace, pod.Name), Units: units, Made: v.Revision() + 1, Spaces: c.class.ChoosesAnyNamespaces(),
	}
	if units <= maxCountAtOnce {
		v.billUnits(int(units))
		v.topology().Keep(c.class)
		tx.keepCounted(key, row)
		return true
	}
	if _, busy := v.pending.Get(queue.PendingCount); !busy { // one after the other
		row.Left = units
		put(tx, v.counted, key, row)
		put(tx, v.pending, queue.PendingCount, &queue.Pending{From: key})
	}
	return false
}

func never() bool { return false }

// keepCounted stores what is counted now, for which others may have to go.
func (tx *Tx) keepCounted(key string, row *countedRules) {
	v := tx.view
	put(tx, v.counted, key, row)
	var sum int64
	rows := map[string]*countedRules{}
	v.counted.Scan("", func(at string, r *countedRules) bool {
		if at != key && r.Left == 0 {
			rows[at] = r
			sum += r.Units
		}
		return true
	})
	if len(rows) < maxCountedRules && sum+row.Units <= maxCounted {
		return
	}
	oldest := slices.SortedFunc(maps.Keys(rows), func(a, b string) int {
		return cmp.Or(cmp.Compare(rows[a].Made, rows[b].Made), cmp.Compare(a, b))
	})
	left := len(rows)
	for _, at := range oldest { // until a quarter is free, since all were looked through
		if left <= maxCountedRules/4*3 && sum+row.Units <= maxCounted/4*3 {
			return
		}
		left, sum = left-1, sum-rows[at].Units
		remove(tx, v.counted, at)
	}
}

// goOnCounting counts as much as an entry may of whom rules are about.
func (tx *Tx) goOnCounting() {
	v := tx.view
	p, ok := v.pending.Get(queue.PendingCount)
	if !ok {
		return
	}
	row, ok := v.counted.Get(p.From)
	switch c := v.classCounted(p.From, row); {
	case !ok || row.Left == 0:
		remove(tx, v.pending, queue.PendingCount)
	case c == nil: // nobody wants it any more
		remove(tx, v.counted, p.From)
		remove(tx, v.pending, queue.PendingCount)
	case !tx.work.HalfOver():
		next := *row
		units := min(row.Left, int64(tx.work.LeftOfHalf()))
		tx.work.Charge(int(units))
		next.Left -= units
		t := v.topology()
		began := t.Work()
		t.PrepareKept(c, func() bool { return next.Left > 0 && t.Work()-began >= units })
		if next.Left > 0 {
			put(tx, v.counted, p.From, &next)
			return
		}
		tx.keepCounted(p.From, &next)
		remove(tx, v.pending, queue.PendingCount)
	}
}

// classCounted is a class of rules that are counted; nil if no pod has them of whom
// that is known.
func (v *live) classCounted(key string, row *countedRules) *model.Class {
	if row == nil {
		return nil
	}
	pod, ok := v.Pods.Get(row.Pod)
	if !ok {
		return nil
	}
	if c := v.ruledClass(v.classOf(pod), pod).class; countedKey(c) == key {
		return c
	}
	return nil
}

// countAgain counts for the rows of a snapshot.
func (v *live) countAgain() {
	v.counted.Scan("", func(key string, row *countedRules) bool {
		if c := v.classCounted(key, row); c != nil {
			v.topology().PrepareKept(c, never)
		}
		return true
	})
}

// forgetChosen forgets what was counted by labels that a namespace with pods has no
// more, or has only now.
func (tx *Tx) forgetChosen(old, now *corev1.Namespace) {
	v := tx.view
	var had, has map[string]string
	name := ""
	if old != nil {
		had, name = old.Labels, old.Name
	}
	if now != nil {
		has, name = now.Labels, now.Name
	}
	if v.counted.Len() == 0 || maps.Equal(had, has) || !v.topology().HasPods(name) {
		return
	}
	var gone []string
	v.counted.Scan("", func(key string, row *countedRules) bool {
		if c := v.classCounted(key, row); row.Spaces && (c == nil || c.ChoosesOtherwise(had, has)) {
			gone = append(gone, key)
		}
		return true
	})
	for _, key := range gone {
		remove(tx, v.counted, key) // goOnCounting sees it
	}
}
