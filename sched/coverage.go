package sched

import (
	"maps"
	"slices"
	"strings"

	"github.com/berth-dev/berth/model"
)

// coverage is which budgets cover the pods of one namespace and one set of labels: those that cover one of them cover
// all. So selectors are held against a set of labels once, and not against every pod of every node for every class that
// preempts.
type coverage struct {
	namespace string
	labels    map[string]string
	budgets   []*Budget // that cover it, by name
	asOf      uint64    // the book's generation of which that is so
	changedAt uint64    // the generation in which they, or the rules of one of them, changed last
}

// coverageOf returns the pod's coverage.
func (k *budgetBook) coverageOf(v *pod) *coverage {
	if v.coverage == nil {
		v.coverage = k.coverageOfClass(v.class)
	}
	if v.coverage.asOf != k.generation {
		k.refresh(v.coverage)
	}
	return v.coverage
}

func (k *budgetBook) coverageOfClass(c *model.Class) *coverage {
	if out, ok := k.ofClass[c]; ok {
		return out
	}
	if len(k.ofClass) > k.maxClasses {
		// Those in use stay alive through their pods; that another of the same labels is made does no harm.
		clear(k.ofClass)
		clear(k.coverages)
	}
	k.meter.take(workCovered + len(c.Labels)*workNode)
	name := labelSetKey(c)
	out, ok := k.coverages[name]
	if !ok {
		out = &coverage{namespace: c.Namespace, labels: c.Labels}
		k.coverages[name] = out
	}
	k.ofClass[c] = out
	return out
}

// labelSetKey has separators that are in no label.
func labelSetKey(c *model.Class) string {
	var b strings.Builder
	b.WriteString(c.Namespace)
	for _, key := range slices.Sorted(maps.Keys(c.Labels)) {
		b.WriteByte(0)
		b.WriteString(key)
		b.WriteByte('=')
		b.WriteString(c.Labels[key])
	}
	return b.String()
}

// bookChange is what made a generation of the book: a budget that is new, whose rules changed, or that is gone.
type bookChange struct {
	budget      *Budget
	ruled, gone bool
}

// maxBookChanges is how many changes are remembered.
const maxBookChanges = 1 << 10

// advance begins a generation.
func (k *budgetBook) advance(c bookChange) {
	k.generation++
	if len(k.changes) == 2*maxBookChanges {
		k.changes = append(k.changes[:0], k.changes[maxBookChanges:]...)
	}
	k.changes = append(k.changes, c)
}

// refresh brings a coverage up to the book's generation: by what changed since, or by asking all budgets.
func (k *budgetBook) refresh(c *coverage) {
	since := k.generation - c.asOf
	if c.asOf == 0 || since > uint64(len(k.changes)) || since > uint64(len(k.byName)) {
		now := k.Of(c.namespace, c.labels)
		k.meter.take((1 + len(c.labels) + len(now)) * workBudget)
		if !slices.Equal(now, c.budgets) || k.ruledSince(since, now) {
			c.changedAt = k.generation
		}
		c.budgets, c.asOf = now, k.generation
		return
	}
	k.meter.take(workCovered + int(since)*workReason + len(c.budgets)*workBudget)
	now := slices.Clone(c.budgets) // others may hold the list
	for _, change := range k.changes[uint64(len(k.changes))-since:] {
		b := change.budget
		at, is := slices.BinarySearchFunc(now, b, func(x, b *Budget) int { return strings.Compare(x.Name, b.Name) })
		switch {
		case is && now[at] == b && change.gone:
			now = slices.Delete(now, at, at+1)
		case is && now[at] == b && change.ruled:
		case !is && !change.gone && !change.ruled && b.covers(c.namespace, c.labels):
			now = slices.Insert(now, at, b)
		default:
			continue
		}
		c.changedAt = k.generation
	}
	c.budgets, c.asOf = now, k.generation
}

// ruledSince says whether the rules of one of some budgets changed in the latest generations.
func (k *budgetBook) ruledSince(generations uint64, of []*Budget) bool {
	if generations > uint64(len(k.changes)) {
		return len(of) > 0
	}
	return slices.ContainsFunc(k.changes[uint64(len(k.changes))-generations:], func(c bookChange) bool {
		return c.ruled && slices.Contains(of, c.budget)
	})
}

// tell has the nodes looked at again that have a pod whose budgets, or their rules, are other ones than when this was
// done last. It returns false if that is more than the step's work allows.
func (k *budgetBook) tell(v *View) bool {
	if k.told == k.generation {
		return true
	}
	if k.telling != k.generation {
		k.telling, k.tellFrom = k.generation, 0
	}
	for ; k.tellFrom < len(v.nodes); k.tellFrom++ {
		if k.meter.out() {
			return false
		}
		on := v.nodes[k.tellFrom].pods
		k.meter.take(workNode + len(on)*workPod)
		if slices.ContainsFunc(on, func(p *pod) bool { return k.coverageOf(p).changedAt > k.told }) {
			v.touch(int32(k.tellFrom))
		}
	}
	k.told = k.generation
	return true
}

// watch is a node whose costs depend on a budget up to so many of its pods there.
type watch struct {
	budget *Budget
	pods   int32
	at     int32 // in budget.watchers[pods]
}

// watch notes that the costs of the node in a slot depend on the budget up to so many of its pods.
func (b *Budget) watch(slot, pods int32) {
	k := b.book
	if k == nil {
		return
	}
	for int(slot) >= len(k.watches) {
		k.watches = append(k.watches, nil)
	}
	i := k.watchOf(slot, b)
	switch {
	case i < 0 && len(k.watches[slot]) == maxWatches:
		k.watchAll(slot)
		return
	case i < 0:
		i = len(k.watches[slot])
		k.watches[slot] = append(k.watches[slot], watch{budget: b})
	case k.watches[slot][i].pods >= pods:
		return
	default:
		b.unlist(slot, i)
	}
	for int(pods) >= len(b.watchers) {
		b.watchers = append(b.watchers, nil)
	}
	w := &k.watches[slot][i]
	w.pods, w.at = pods, int32(len(b.watchers[pods]))
	b.watchers[pods] = append(b.watchers[pods], slot)
}

// maxWatches is how many budgets a node watches, each by itself; with more, it watches whether anything changes.
const maxWatches = 64

// watchAll has a node looked at again when any budget allows another number.
func (k *budgetBook) watchAll(slot int32) {
	k.watchesAll[slot] = struct{}{}
}

func (k *budgetBook) watchOf(slot int32, b *Budget) int {
	for i := range k.watches[slot] {
		if k.watches[slot][i].budget == b {
			return i
		}
	}
	return -1
}

// unlist takes a node out of the budget's list; the last of the list takes its place.
func (b *Budget) unlist(slot int32, i int) {
	w := b.book.watches[slot][i]
	list := b.watchers[w.pods]
	last := list[len(list)-1]
	list[w.at] = last
	b.book.watches[last][b.book.watchOf(last, b)].at = w.at
	b.watchers[w.pods] = list[:len(list)-1]
}

// release forgets the nodes that depend on more than so many pods of the budget, and calls f for each.
func (b *Budget) release(above int32, f func(slot int32)) {
	for n := int(above) + 1; n < len(b.watchers); n++ {
		for _, slot := range b.watchers[n] {
			on := b.book.watches[slot]
			i, last := b.book.watchOf(slot, b), len(on)-1
			on[i] = on[last]
			on[last] = watch{}
			b.book.watches[slot] = on[:last]
			f(slot)
		}
		b.watchers[n] = b.watchers[n][:0]
	}
}

// latitude is whether budgets limit who of a node's pods may go, as of one of the node's changes.
type latitude struct {
	asOf    uint64 // one more than node.changedAt
	limited bool
}

// limits says whether a budget could limit who of a node's pods may go: it allows for fewer than it covers there. Where
// none does, which is usual, no class has to count. An allowance that changes so that the answer does makes the node a
// changed one, because the node watches for it.
func (k *budgetBook) limits(n *node) bool {
	for int(n.slot) >= len(k.latitudes) {
		k.latitudes = append(k.latitudes, latitude{})
	}
	at := &k.latitudes[n.slot]
	if at.asOf == n.changedAt+1 {
		return at.limited
	}
	*at = latitude{asOf: n.changedAt + 1}
	k.onNode = k.onNode[:0]
	asked := 0
	for _, v := range n.pods {
		if v.isLeaving() {
			continue
		}
		of := covering(v, k)
		asked += len(of)
		for _, b := range of {
			if b.asked == 0 {
				k.onNode = append(k.onNode, watch{budget: b})
				b.asked = int32(len(k.onNode))
			}
			k.onNode[b.asked-1].pods++
		}
	}
	k.meter.take((len(n.pods) + asked + len(k.onNode)*min(len(k.onNode), maxWatches)/4) * workBudget)
	for _, w := range k.onNode {
		w.budget.asked = 0
		w.budget.watch(n.slot, w.pods)
		at.limited = at.limited || w.pods > w.budget.Allowed
	}
	return at.limited
}
