package fsm

import (
	"encoding/binary"
	"math"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/api/berthv1"
	"github.com/berth-dev/berth/model"
	"github.com/berth-dev/berth/store"
)

// What wakes a waiting pod (QU8, ours) is decided here, by an index from the
// reason that blocks it to the pods that it blocks. A change on a node looks
// up the groups of equal pods whose reasons it can touch, checks each against
// that one node, and wakes as many pods of a group as could find room there,
// first ones first. Whenever a pod that was to be tried finds a place or goes
// away, the next of its group is woken; so a group goes on for as long as its
// pods find places, and nothing relies on a periodic flush (QU6).

// groupOf is what pods that wait together have in common: whatever helps one
// of a group helps each. A node alone sees no more of a pod than its shape.
// Pods with rules about others have their rules in common as well, and those
// that others keep away everything. Who is kept away by others for the first
// time finds out when it is tried, changes its group, and passes its turn on.
//
// Those whom default constraints keep off have their workload in common, too.
func groupOf(c *model.Class, d *Diagnosis, spreadOwner string) string {
	switch {
	case d.spreadByDefault(c):
		return defaultsGroup(c, spreadOwner)
	case d.keptAway(), d.namesOthers() && !c.HasHardTopology():
		return c.Signature
	case c.HasHardTopology():
		return c.Rules()
	}
	return c.Shape
}

// waitKey sorts the waiting pods by group, in each those that wait for a
// change before those that wait for their victims, and then in queue order.
func waitKey(e *QueueEntry, orderKey string) string {
	return waitPrefix(groupOf(e.class, e.Diagnosis, e.SpreadOwner), e.State) + orderKey
}

func waitPrefix(group string, state berthv1.QueueState) string {
	if state == berthv1.QueueNominated {
		return group + "n"
	}
	return group + "a"
}

// wakeup is a group under one of the reasons that block its pods.
type wakeup struct {
	class *model.Class // any class of the group
	group string
	pods  int // waiting pods of the group that this reason blocks
}

// alike: the group's pods differ in nothing, so that what others keep one of
// them away by keeps away all. Of another group any class may stand here, and
// nothing may follow from which.
func (w *wakeup) alike() bool {
	_, byDefaults := w.byDefaults()
	return byDefaults || w.group == w.class.Signature
}

// wakeKey sorts by reason, then priority, then requested amount, so that a
// node with so much of a resource to give finds just those who ask for no more.
func wakeKey(kind model.ReasonKind, resource string, c *model.Class, group string) string {
	b := make([]byte, 0, 64)
	b = append(b, byte(kind))
	b = append(b, resource...)
	b = append(b, 0)
	b = appendPriorityDescending(b, c.Priority)
	b = binary.BigEndian.AppendUint64(b, uint64(c.Request.Get(resource)))
	return string(append(b, group...))
}

// watch enters a waiting pod into the wake indexes (by 1) or takes it out
// again (by -1).
func (v *live) watch(e *QueueEntry, by int) {
	group := groupOf(e.class, e.Diagnosis, e.SpreadOwner)
	count := func(index *store.Tree[wakeup], keys []string) {
		for _, k := range keys {
			w, _ := index.Get(k)
			w.class, w.group = e.class, group
			if w.pods += by; w.pods <= 0 {
				index.Delete(k)
			} else {
				index.Set(k, w)
			}
		}
	}
	count(&v.wakeups, wakeKeys(e))
	count(&v.otherWakeups, otherKeys(e))
}

// wakeKeys are the entry's keys in the wake index, each once.
func wakeKeys(e *QueueEntry) []string {
	if e.Diagnosis == nil {
		return nil
	}
	group := groupOf(e.class, e.Diagnosis, e.SpreadOwner)
	keys := make([]string, 0, len(e.Diagnosis.Reasons))
	for i := range e.Diagnosis.Reasons {
		if r := &e.Diagnosis.Reasons[i]; !e.Diagnosis.names(r.Kind, r.Resource, i) { // else the same filter with another wording
			keys = append(keys, wakeKey(r.Kind, r.Resource, e.class, group))
		}
	}
	for _, budget := range e.Diagnosis.Budgets {
		keys = append(keys, wakeKey(model.DisruptionBudget, budget, e.class, group))
	}
	return keys
}

// names says whether one of the first n reasons is of this kind.
func (d *Diagnosis) names(kind model.ReasonKind, resource string, n int) bool {
	for i := range d.Reasons[:n] {
		if d.Reasons[i].Kind == kind && d.Reasons[i].Resource == resource {
			return true
		}
	}
	return false
}

// freed wakes those whom the room that a pod or a nomination left on a node
// could help.
func (tx *Tx) freed(node string) {
	n, ok := tx.view.Nodes.Get(node)
	if !ok {
		return
	}
	tx.mark(node)
	h := newHelp(tx.view, n)
	h.wakeNominated(tx)
	if tx.view.wakeups.Len() > 0 {
		h.wakeBlocked(tx, model.HelpPodGone)
	}
}

// nodeChanged wakes those whom a new or changed node could help.
func (tx *Tx) nodeChanged(n *corev1.Node) {
	tx.mark(n.Name)
	h := newHelp(tx.view, n)
	h.wakeNominated(tx)
	for _, w := range tx.view.waitingGroups() {
		h.wakeOrLook(tx, w)
	}
}

// wakeOrLook wakes those of a group whom the node has room for, and else one
// of them if the node blocks them now for a reason that nobody would be woken
// for.
func (h *help) wakeOrLook(tx *Tx, w wakeup) {
	if !h.wake(tx, w) && h.blocksAnew(w, func(kind model.ReasonKind, resource string) bool {
		_, ok := h.view.wakeups.Get(wakeKey(kind, resource, w.class, w.group))
		return ok
	}) {
		tx.wakeNext(w.group)
	}
}

// waitingGroups gives a class for each group of waiting pods.
func (v *View) waitingGroups() []wakeup {
	var groups []wakeup
	from := ""
	for {
		_, e, ok := v.waiting.First(from)
		if !ok {
			return groups
		}
		group := groupOf(e.class, e.Diagnosis, e.SpreadOwner)
		groups = append(groups, wakeup{class: e.class, group: group})
		from = store.After(group)
	}
}

// mark remembers that something happened on the node that could help: a plan
// made on an older state does not know of it.
func (tx *Tx) mark(node string) {
	v := tx.view
	if old, ok := v.marks.Get(node); ok && old.Revision == v.Revision() {
		return
	}
	put(tx, v.marks, node, &nodeMark{Revision: v.Revision()})
}

// missed reports whether something happened after a revision that could help a
// pod of a group for which no place was found at that revision, for the reasons
// that the diagnosis names.
func (v *live) missed(revision int64, w wakeup, d *Diagnosis) bool {
	helped := false
	if v.missedOthers(revision, w.class, d) || v.missedBudget(revision, d) {
		return true
	}
	known := func(kind model.ReasonKind, resource string) bool {
		return d.names(kind, resource, len(d.Reasons))
	}
	v.marksByRevision.ScanFrom("", markKey(revision+1, ""), func(_ string, node string) bool {
		if n, ok := v.Nodes.Get(node); ok {
			h := newHelp(v, n)
			helped = h.room(w, true) > 0 || h.blocksAnew(w, known)
		}
		return !helped
	})
	return helped
}

// leftQueue passes on the turn of a pod that is no longer waiting: one that was
// to be tried had perhaps been woken for room that others can use now; one that
// was not may have been the only one that stood in the wake index for its
// group.
func (tx *Tx) leftQueue(e *QueueEntry) {
	group := groupOf(e.class, e.Diagnosis, e.SpreadOwner)
	switch e.State {
	case berthv1.QueueActive, berthv1.QueueBackoff:
		tx.wakeNext(group)
	case berthv1.QueueUnschedulable, berthv1.QueueNominated:
		for _, k := range wakeKeys(e) {
			if _, ok := tx.view.wakeups.Get(k); !ok {
				tx.wakeNext(group)
				return
			}
		}
	}
}

// wake makes a waiting pod ready, or lets it finish its backoff first.
func (tx *Tx) wake(e *QueueEntry) {
	woken := *e
	woken.State = berthv1.QueueActive
	if woken.BackoffUntilUnixNano > tx.view.TimeUnixNano() {
		woken.State = berthv1.QueueBackoff
	}
	put(tx, tx.view.Queue, e.Key(), &woken)
}

// wakeBlocked wakes those of the groups blocked for a reason that such a
// change helps, whom the node has room for. It looks at no group that asks for
// more of the blocking resource than the node can have for its priority.
func (h *help) wakeBlocked(tx *Tx, change model.Helps) {
	v := h.view
	var groups []wakeup
	from := ""
	for {
		key, w, ok := v.wakeups.First(from)
		if !ok {
			break
		}
		if kind := model.ReasonKind(key[0]); kind.HelpedBy()&change == 0 || betweenPods(kind) {
			from = store.After(key[:1])
			continue
		}
		end := 1 + strings.IndexByte(key[1:], 0)
		resource, group := key[1:end], key[:end+1+4]
		available := int64(math.MaxInt64)
		if resource != "" {
			available = h.offer.Get(resource) - h.usageFrom(w.class.Priority).Requested.Get(resource)
		}
		v.wakeups.ScanFrom(group, group, func(_ string, w wakeup) bool {
			if resource != "" && w.class.Request.Get(resource) > available {
				return false
			}
			groups = append(groups, w)
			return true
		})
		from = store.After(group)
	}
	for _, w := range groups {
		h.wakeOrLook(tx, w)
	}
}

// wakeNominated wakes the pods that are nominated to the node and fit it now,
// which their own nominations would keep their group from seeing, and those for
// whom the node is none any more, so that they look elsewhere (T5).
func (h *help) wakeNominated(tx *Tx) {
	var ready []*QueueEntry
	h.view.NominationsOnNode(h.node.Name, func(n *Nomination) bool {
		e, ok := h.view.Queue.Get(n.Key())
		switch {
		case !ok || e.State != berthv1.QueueUnschedulable && e.State != berthv1.QueueNominated:
		case h.hasRoomFor(n), model.NodeFailures(n.class, h.node) != 0:
			ready = append(ready, e)
		}
		return true
	})
	for _, e := range ready {
		tx.wake(e)
	}
}

// wake wakes as many waiting pods of a group as the node has room
// for, first ones first, and says whether it has any.
func (h *help) wake(tx *Tx, w wakeup) bool {
	if h.woken[w.group] {
		return true
	}
	h.woken[w.group] = true
	room := h.room(w, true)
	if room == 0 {
		return false
	}
	var entries []*QueueEntry
	take := func(state berthv1.QueueState) {
		prefix := waitPrefix(w.group, state)
		h.view.waiting.ScanFrom(prefix, prefix, func(_ string, e *QueueEntry) bool {
			if len(entries) < room {
				entries = append(entries, e)
			}
			return len(entries) < room
		})
	}
	take(berthv1.QueueUnschedulable)
	// A pod that waits for its victims takes another node only if nobody has
	// to go for it there (NM6).
	if len(entries) < room && h.room(w, false) > 0 {
		take(berthv1.QueueNominated)
	}
	for _, e := range entries {
		tx.wake(e)
	}
	return true
}
