package fsm

import (
	"slices"

	"github.com/berth-dev/berth/api/berthv1"
	"github.com/berth-dev/berth/model"
	"github.com/berth-dev/berth/queue"
)

// lookAt wakes those whom a node can have helped by what happened there, or
// leaves that to a later entry if this one has woken for long. Of groups with
// rules one is woken at a time, and of some (woken) it has been.
func (tx *Tx) lookAt(c *queue.NodeChange, woken map[string]bool) {
	n, ok := tx.view.Nodes.Get(c.Name)
	if !ok {
		return
	}
	h := newHelp(tx.view, n)
	h.woken = woken
	h.wakeNominated(tx)
	if !c.Changed && !c.Room {
		return
	}
	tx.mark(c.Name)
	if !tx.view.queue.HasGroups() {
		return
	}
	from := ""
	if p, ok := tx.view.pending.Get(queue.PendingNodes + c.Name); ok {
		from = tx.goesOn(p)
	}
	if c.Changed && c.Before != nil && !c.Room && from == "" {
		h.before = c.Before
		offer := model.Allocatable(c.Before)
		h.offerBefore = &offer
	}
	h.look(tx, from, from != "")
}

// look asks the groups for which the node may have room, from a key of the wake
// index on, and wakes of each as many as fit. If the entry has no time for all
// of them, the node is remembered, with where to go on.
func (h *help) look(tx *Tx, from string, again bool) {
	tx.round(queue.PendingNodes+h.node.Name, nil, from, again, func(from string) (next string) {
		return h.view.queue.Candidates(&tx.work, from, h.free, func(g queue.Group) {
			if !h.woken[g.Key] {
				h.wake(tx, g)
			}
		})
	})
}

// free is what the node has for pods of a priority, with or without evicting.
func (h *help) free(priority int32) model.Resources {
	used := &h.usageFrom(priority).Requested
	return model.Resources{
		Pods: h.offer.Pods - used.Pods,
		// Who asks for nothing fits where more is used than there is.
		MilliCPU: max(0, h.offer.MilliCPU-used.MilliCPU), MemoryBytes: max(0, h.offer.MemoryBytes-used.MemoryBytes),
	}
}

// wakeNominated wakes the pods that are nominated to the node and fit it now,
// which their own nominations would keep their group from seeing, and those for
// whom the node is none any more, so that they look elsewhere (T5). One that
// waits there for nobody of its own looks again whatever happened.
func (h *help) wakeNominated(tx *Tx) {
	var ready []*QueueEntry
	h.view.NominationsOnNode(h.node.Name, func(n *Nomination) bool {
		e, ok := h.view.Queue.Get(n.Key())
		if ok && e.Waits() && (e.State == berthv1.QueueUnschedulable && !n.Reserved || h.looksAgain(tx, n)) {
			ready = append(ready, e)
		}
		return true
	})
	for _, e := range ready {
		tx.wake(e)
	}
}

// looksAgain says whether a pod that is nominated to the node is to look again
// because of what happened there: one for which room is kept, when there may be
// somebody to evict. When nothing is left to spend on finding out it is.
func (h *help) looksAgain(tx *Tx, n *Nomination) bool {
	return tx.work.Over() || h.concernsNominated(tx, n)
}

// concernsNominated says whether a pod that is nominated to the node is to look
// again because of what the node is now.
func (h *help) concernsNominated(tx *Tx, n *Nomination) (does bool) {
	if !h.view.mayAsk(h.view.ruledClassOf(n.Key(), n.Class())) {
		return true
	}
	tx.waking(func() {
		does = h.hasRoomFor(n) || n.Reserved && h.couldEvictFor(n) || !h.view.mayStillTake(h.node, n)
	})
	return does
}

// wake wakes as many waiting pods of a group as the node has room for, first
// ones first.
func (h *help) wake(tx *Tx, g queue.Group) {
	var entries []*QueueEntry
	evicting := h.room(tx, g, true)
	room, bars := h.roomBeside(tx, g, false)
	helped := room > 0 && !h.helpedBefore(&g, false)
	// Whom it had room for with evictions it did not help, unless nobody has to go any more: evictions may not have been possible.
	if evicting > 0 && (!h.helpedBefore(&g, true) || helped && h.view.Version() >= SinceRoomForNothing) {
		entries = h.view.queue.Waiting(g.Key, berthv1.QueueUnschedulable, evicting)
	}
	// A pod that waits for its victims takes another node only if nobody has
	// to go for it there (NM6). Its own nomination is not in its way, nor is the
	// reservation of one that has been waiting for long.
	switch {
	case !helped:
	case bars == 0:
		entries = append(entries, h.view.queue.Waiting(g.Key, berthv1.QueueNominated, room)...)
	default:
		nominated := h.view.queue.Nominees(g.Key)
		if e, ok := h.view.reservedIn(g.Key); ok && !slices.Contains(entries, e) {
			nominated = append(nominated, e)
		}
		free := h.freeOfOwn(tx, g, nominated)
		entries = append(entries, free[:min(room, len(free))]...)
	}
	for _, e := range entries {
		tx.wake(e)
	}
}

// SinceRoomForNothing is the LogVersion from which on a node that had room with evictions, and has room for which nobody goes
// since it changed, wakes those who found nobody whom they could evict.
const SinceRoomForNothing = 25

// helpedBefore says whether the node could have taken pods of the group before
// it was changed, with or without evicting, as far as the node and its room go:
// then it is not by this change that it can now.
func (h *help) helpedBefore(g *queue.Group, evicting bool) bool {
	return h.before != nil && h.view.ruledGroup(g).fits(h.before, h.offerBefore, h.usage(g.Class, evicting))
}

// reservedIn is the pod of a group for which room is kept, if it waits.
func (v *View) reservedIn(group string) (*QueueEntry, bool) {
	r := v.Reservation()
	if r == nil {
		return nil, false
	}
	e, ok := v.Queue.Get(r.Key())
	return e, ok && e.State == berthv1.QueueUnschedulable && e.Group() == group
}
