package fsm

import (
	"encoding/binary"
	"math"

	"github.com/berth-dev/berth/api/berthv1"
	"github.com/berth-dev/berth/model"
	"github.com/berth-dev/berth/store"
)

// lookAt wakes those whom a node can have helped by what happened there, or
// leaves that to a later entry if this one has woken for long. Of groups with
// rules one is woken at a time, and of some (woken) it has been.
func (tx *Tx) lookAt(at *nodeEvent, woken map[string]bool) {
	n, ok := tx.view.Nodes.Get(at.name)
	if !ok {
		return
	}
	h := newHelp(tx.view, n)
	h.woken = woken
	h.wakeNominated(tx)
	if !at.changed && !at.room {
		return
	}
	tx.mark(at.name)
	if tx.view.wakeups.Len() == 0 {
		return
	}
	if at.changed && at.before != nil && !at.room {
		h.before = at.before
		offer := model.Allocatable(at.before)
		h.offerBefore = &offer
	}
	h.look(tx, "")
}

// look asks the groups for which the node may have room, from a key of the wake
// index on, and wakes of each as many as fit. If the entry has no time for all
// of them, the node is remembered, with where to go on.
func (h *help) look(tx *Tx, from string) {
	next := h.candidates(tx, from, func(w wakeup) {
		if !h.woken[w.group] && !h.helpedBefore(w.class) {
			h.wake(tx, w)
		}
	})
	tx.remember(pendingNode+h.node.Name, next)
}

// candidates calls f for every group, from a key of the index on, that asks for
// no more than the node can have for its priority, and returns where to go on
// if the time that an entry has was over; "" if all were asked. For each
// priority it walks those with little CPU and those with little memory in
// turns, and takes whichever are fewer.
func (h *help) candidates(tx *Tx, from string, f func(w wakeup)) (next string) {
	v := h.view
	level := from
	if level == "" {
		level = string(rune(wakeByCPU))
	}
	for {
		key, w, ok := v.wakeups.First(level)
		if !ok || key[0] != wakeByCPU {
			return ""
		}
		if tx.wakeWork >= maxWakeWork {
			return key
		}
		tx.wakeWork += costLook
		prefix := key[:levelLen]
		free := h.free(w.class.Priority)
		begin := prefix
		if level > prefix {
			begin = level // in the middle of a priority
		}
		level = store.After(prefix)
		if free.Pods < 1 {
			continue
		}
		found, byCPU := v.fewest(prefix, begin, free)
		for i := range found {
			if byCPU && tx.wakeWork >= maxWakeWork && i > 0 {
				return wakeKey(wakeByCPU, found[i].class, found[i].group)
			}
			f(found[i])
			tx.wakeWork += costAsk
		}
	}
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

// fewest are the groups of a priority that ask for no more CPU and memory than
// is free; byCPU says that they stand in order of CPU, from begin on. It costs
// as much as there are groups that ask for little of the scarcer of the two.
func (v *View) fewest(prefix, begin string, free model.Resources) (found []wakeup, byCPU bool) {
	byMemory := string(rune(wakeByMemory)) + prefix[1:]
	for most := firstLook; ; most *= 2 {
		found, all := v.thatFit(prefix, begin, free.MilliCPU, free, most)
		if all {
			return found, true
		}
		if begin == prefix { // else what comes before was asked already
			if found, all = v.thatFit(byMemory, byMemory, free.MemoryBytes, free, most); all {
				return found, false
			}
		}
	}
}

// firstLook is how many groups are looked at first in either order.
const firstLook = 64

// thatFit are, of at most so many groups whose amount is not above a bound,
// those that ask for no more than is free, and whether there are no others.
func (v *View) thatFit(prefix, begin string, bound int64, free model.Resources, most int) (found []wakeup, all bool) {
	all = true
	v.wakeups.ScanFrom(prefix, begin, func(key string, w wakeup) bool {
		if amountIn(key) > bound {
			return false
		}
		if most--; most < 0 {
			all = false
			return false
		}
		if w.class.Request.MilliCPU <= free.MilliCPU && w.class.Request.MemoryBytes <= free.MemoryBytes {
			found = append(found, w)
		}
		return true
	})
	return found, all
}

// amountIn is the amount by which a key of the wake index is sorted.
func amountIn(key string) int64 {
	return int64(min(binary.BigEndian.Uint64([]byte(key[levelLen:levelLen+8])), math.MaxInt64))
}

// wakeNominated wakes the pods that are nominated to the node and fit it now,
// which their own nominations would keep their group from seeing, and those for
// whom the node is none any more, so that they look elsewhere (T5). One that
// waits there for nobody of its own looks again whatever happened.
func (h *help) wakeNominated(tx *Tx) {
	var ready []*QueueEntry
	h.view.NominationsOnNode(h.node.Name, func(n *Nomination) bool {
		e, ok := h.view.Queue.Get(n.Key())
		switch {
		case !ok || e.State != berthv1.QueueUnschedulable && e.State != berthv1.QueueNominated:
		case e.State == berthv1.QueueUnschedulable && !n.Reserved, h.hasRoomFor(n), model.NodeFailures(n.class, h.node) != 0:
			ready = append(ready, e)
		}
		return true
	})
	for _, e := range ready {
		tx.wake(e)
	}
}

// wake wakes as many waiting pods of a group as the node has room for, first
// ones first.
func (h *help) wake(tx *Tx, w wakeup) {
	room := h.room(tx, w, true)
	if room == 0 {
		return
	}
	var entries []*QueueEntry
	take := func(state berthv1.QueueState, most int) {
		h.view.waiting.Scan(waitPrefix(w.group, state), func(_ string, e *QueueEntry) bool {
			entries = append(entries, e)
			most--
			return most > 0
		})
	}
	take(berthv1.QueueUnschedulable, room)
	// A pod that waits for its victims takes another node only if nobody has
	// to go for it there (NM6).
	if room = h.room(tx, w, false); room > 0 {
		take(berthv1.QueueNominated, room)
	}
	for _, e := range entries {
		tx.wake(e)
	}
}

// helpedBefore says whether the node could have taken pods of the class before
// it was changed, as far as the node and its room go: then it is not by this
// change that it can now.
func (h *help) helpedBefore(c *model.Class) bool {
	return h.before != nil && model.Fits(c, h.before, h.offerBefore, h.usage(c, true))
}
