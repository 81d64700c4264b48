package fsm

import (
	"encoding/binary"
	"math"
	"strings"

	"github.com/tidwall/btree"
	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/api/berthv1"
	"github.com/berth-dev/berth/model"
)

// What wakes a waiting pod (QU8, ours) is decided here, by an index from the
// reason that blocks it to the pods that it blocks. A change on a node looks
// up the classes whose reasons it can touch, checks each against that one
// node, and wakes as many pods of a class as could find room there, first
// ones first. Whenever a pod of a class leaves the queue, the next of its
// class is woken; so a class goes on for as long as its pods find places, and
// nothing relies on a periodic flush (QU6).

// wakeup is a class under one of the reasons that block its pods.
type wakeup struct {
	class *model.Class
	pods  int // waiting pods of the class that this reason blocks
}

// wakeKey sorts by reason, then priority, then requested amount, so that a
// node with so much of a resource to give finds just those who ask for no more.
func wakeKey(kind model.ReasonKind, resource string, c *model.Class) string {
	b := wakePrefix(kind, resource)
	b = appendPriorityDescending(b, c.Priority)
	b = binary.BigEndian.AppendUint64(b, uint64(c.Request.Get(resource)))
	return string(append(b, c.Signature...))
}

func wakePrefix(kind model.ReasonKind, resource string) []byte {
	b := make([]byte, 0, 64)
	b = append(b, byte(kind))
	b = append(b, resource...)
	return append(b, 0)
}

func (v *View) watch(e *QueueEntry) {
	for _, k := range wakeKeys(e) {
		w, _ := v.wakeups.Get(k)
		w.class = e.class
		w.pods++
		v.wakeups.Set(k, w)
	}
}

func (v *View) unwatch(e *QueueEntry) {
	for _, k := range wakeKeys(e) {
		w, _ := v.wakeups.Get(k)
		if w.pods--; w.pods <= 0 {
			v.wakeups.Delete(k)
		} else {
			v.wakeups.Set(k, w)
		}
	}
}

// wakeKeys are the entry's keys in the wake index, each once.
func wakeKeys(e *QueueEntry) []string {
	if e.Diagnosis == nil {
		return nil
	}
	keys := make([]string, 0, len(e.Diagnosis.Reasons))
next:
	for i, r := range e.Diagnosis.Reasons {
		for _, earlier := range e.Diagnosis.Reasons[:i] {
			if earlier.Kind == r.Kind && earlier.Resource == r.Resource {
				continue next // the same filter with another wording
			}
		}
		keys = append(keys, wakeKey(r.Kind, r.Resource, e.class))
	}
	return keys
}

// freed wakes those whom the room that a pod or a nomination left on a node
// could help.
func (tx *Tx) freed(node string) {
	tx.mark(node)
	if tx.view.wakeups.Len() == 0 {
		return
	}
	n, ok := tx.view.Nodes.Get(node)
	if !ok {
		return
	}
	h := newHelp(tx, n)
	h.wakeBlocked(model.HelpPodGone)
}

// nodeChanged wakes those whom a new or changed node could help.
func (tx *Tx) nodeChanged(n *corev1.Node) {
	tx.mark(n.Name)
	h := newHelp(tx, n)
	for _, c := range tx.view.waitingClasses() {
		h.wake(c)
	}
}

func (v *View) waitingClasses() []*model.Class {
	var classes []*model.Class
	from := ""
	for {
		_, e, ok := first(v.waiting, from)
		if !ok {
			return classes
		}
		classes = append(classes, e.class)
		from = afterPrefix(e.class.Signature)
	}
}

func first[V any](m *btree.Map[string, V], from string) (key string, value V, ok bool) {
	m.Ascend(from, func(k string, v V) bool {
		key, value, ok = k, v, true
		return false
	})
	return key, value, ok
}

// afterPrefix is the least string above all that start with the prefix.
func afterPrefix(prefix string) string {
	b := []byte(prefix)
	for i := len(b) - 1; i >= 0; i-- {
		if b[i]++; b[i] != 0 {
			return string(b[:i+1])
		}
	}
	return strings.Repeat("\xff", len(b)+1)
}

// mark remembers that something happened on the node that could help: a plan
// made on an older state does not know of it.
func (tx *Tx) mark(node string) {
	v := tx.view
	if old, ok := v.marks.Get(node); ok && old.Revision == v.revision {
		return
	}
	put(tx, v.marks, node, &nodeMark{Revision: v.revision})
}

// missed reports whether something happened after a revision that could help a
// pod for which no place was found at that revision.
func (tx *Tx) missed(revision int64, c *model.Class) bool {
	helped := false
	tx.view.marksByRevision.Ascend(markKey(revision+1, ""), func(_ string, node string) bool {
		if n, ok := tx.view.Nodes.Get(node); ok {
			helped = newHelp(tx, n).room(c, true) > 0
		}
		return !helped
	})
	return helped
}

// leftQueue wakes the next pod of a class after one of them was bound or went
// away.
func (tx *Tx) leftQueue(c *model.Class) {
	scanFrom(tx.view.waiting, c.Signature, c.Signature, func(_ string, e *QueueEntry) bool {
		if e.State != berthv1.QueueUnschedulable {
			return true
		}
		tx.wake(e)
		return false
	})
}

// wake makes a waiting pod ready, or lets it finish its backoff first.
func (tx *Tx) wake(e *QueueEntry) {
	woken := *e
	woken.State = berthv1.QueueActive
	if woken.BackoffUntilUnixNano > tx.view.timeUnixNano {
		woken.State = berthv1.QueueBackoff
	}
	put(tx, tx.view.Queue, e.Key(), &woken)
}

// help answers for one node whom it has room for.
type help struct {
	tx    *Tx
	node  *corev1.Node
	alloc model.Resources
	// usage of the pods and nominations of at least this priority
	above map[int32]model.Usage
	woken map[string]bool // classes done, by signature
}

func newHelp(tx *Tx, n *corev1.Node) *help {
	return &help{tx: tx, node: n, alloc: model.Allocatable(n), above: map[int32]model.Usage{}, woken: map[string]bool{}}
}

// wakeBlocked wakes those of the classes blocked for a reason that such a
// change helps, whom the node has room for. It looks at no class that asks for
// more of the blocking resource than the node can have for its priority.
func (h *help) wakeBlocked(change model.Helps) {
	v := h.tx.view
	var classes []*model.Class
	from := ""
	for {
		key, w, ok := first(v.wakeups, from)
		if !ok {
			break
		}
		if model.ReasonKind(key[0]).HelpedBy()&change == 0 {
			from = afterPrefix(key[:1])
			continue
		}
		end := 1 + strings.IndexByte(key[1:], 0)
		resource, group := key[1:end], key[:end+1+4]
		available := int64(math.MaxInt64)
		if resource != "" {
			available = h.alloc.Get(resource) - h.usageFrom(w.class.Priority).Requested.Get(resource)
		}
		scanFrom(v.wakeups, group, group, func(_ string, w wakeup) bool {
			if resource != "" && w.class.Request.Get(resource) > available {
				return false
			}
			classes = append(classes, w.class)
			return true
		})
		from = afterPrefix(group)
	}
	for _, c := range classes {
		h.wake(c)
	}
}

// wake wakes as many waiting pods of the class as the node has room for, first
// ones first.
func (h *help) wake(c *model.Class) {
	if h.woken[c.Signature] {
		return
	}
	h.woken[c.Signature] = true
	room := h.room(c, true)
	if room == 0 {
		return
	}
	free := h.room(c, false)
	var entries []*QueueEntry
	scanFrom(h.tx.view.waiting, c.Signature, c.Signature, func(_ string, e *QueueEntry) bool {
		// A pod that waits for its victims takes another node only if nobody
		// has to go for it there (NM6).
		if e.State == berthv1.QueueUnschedulable || free > 0 {
			entries = append(entries, e)
		}
		return len(entries) < room
	})
	for _, e := range entries {
		h.tx.wake(e)
	}
}

// room is how many pods of the class the node could take, with or without
// evicting pods of lower priority.
func (h *help) room(c *model.Class, evicting bool) int {
	u := h.usage(c, evicting)
	if len(model.Check(c, h.node, h.alloc, &u)) > 0 {
		return 0
	}
	n := h.alloc.Pods - u.Requested.Pods
	fits := func(asked, has int64) {
		if asked > 0 {
			n = min(n, has/asked)
		}
	}
	fits(c.Request.MilliCPU, h.alloc.MilliCPU-u.Requested.MilliCPU)
	fits(c.Request.MemoryBytes, h.alloc.MemoryBytes-u.Requested.MemoryBytes)
	return int(max(n, 1))
}

// usage is what a pod of the class must leave alone on the node: everything
// there, or, if it may evict, what has at least its priority.
func (h *help) usage(c *model.Class, evicting bool) model.Usage {
	v := h.tx.view
	if evicting && !c.NeverPreempts && *v.SchedulerConfig().Spec.Preemption.Enabled {
		return h.usageFrom(c.Priority)
	}
	return v.withNominations(*v.Usage(h.node.Name), h.node.Name, c.Priority, "")
}

// usageFrom is what the pods and nominations of at least this priority use.
func (h *help) usageFrom(priority int32) model.Usage {
	if u, ok := h.above[priority]; ok {
		return u
	}
	v := h.tx.view
	var u model.Usage
	v.PodsOnNode(h.node.Name, func(pod *corev1.Pod) bool {
		if usedNode(pod) != "" && model.Priority(pod) >= priority {
			u = u.With(v.cache.class(pod))
		}
		return true
	})
	u = v.withNominations(u, h.node.Name, priority, "")
	h.above[priority] = u
	return u
}

// withNominations adds what the nominations to the node of at least a priority
// will use (NM4), but for the pod's own.
func (v *View) withNominations(u model.Usage, node string, priority int32, self string) model.Usage {
	v.NominationsOnNode(node, func(n *Nomination) bool {
		if n.Priority >= priority && n.Key() != self {
			u = u.With(n.class)
		}
		return true
	})
	return u
}
