package fsm

import (
	"encoding/binary"
	"strings"

	"github.com/berth-dev/berth/api/berthv1"
	"github.com/berth-dev/berth/model"
	"github.com/berth-dev/berth/store"
)

// What wakes a waiting pod (QU8, ours) follows from rows: when a command is
// done, its changes are walked once, and one function a table says what the old
// and the new row mean for those who wait (wake_rows.go). Nothing relies on a
// command's remembering somebody, on what a pod was told, or on a periodic
// flush (QU6).
//
// Waiting pods stand in indexes under what their class asks: amounts, and the
// places of pods that its rules are about. A node that got better, or on which
// room came free, is looked at once a command (wake_nodes.go); a pod that came,
// left, began to leave or changed looks up the groups whose rules it matches
// (wake_pods.go); what may help anybody of a kind is swept (wake_sweep.go). As
// many pods of a group are woken as could find room, first ones first. Whenever
// a pod that was to be tried finds a place or goes away, the next of its group
// is woken; so a group goes on for as long as its pods find places.

// group is what pods that wait together have in common: whatever helps one of a
// group helps each. A node alone sees no more of a pod than its shape. Pods
// with rules about others have their rules in common as well, and those that
// others keep away, or default constraints spread, everything. Who is kept away
// by others is known when it was tried: it changes its group then, and passes
// its turn on.
func (e *QueueEntry) group() string {
	c := e.class
	switch {
	case e.ByDefaults:
		return defaultsGroup(c, e.SpreadOwner)
	case e.KeptAway:
		return c.Signature
	case c.HasHardTopology():
		return c.Rules()
	}
	return c.Shape
}

// waitKey sorts the waiting pods by group, in each those that wait for a
// change before those that wait for their victims, and then in queue order.
func waitKey(e *QueueEntry, orderKey string) string {
	return waitPrefix(e.group(), e.State) + orderKey
}

func waitPrefix(group string, state berthv1.QueueState) string {
	if state == berthv1.QueueNominated {
		return group + "n"
	}
	return group + "a"
}

// wakeup is a group of waiting pods in an index.
type wakeup struct {
	class *model.Class // any class of the group
	group string
	pods  int // waiting pods of the group
	// rules is the class by which the group's pods are judged, where that is
	// known; nil in an index.
	rules *model.Class
}

// alike: the group's pods differ in nothing, so that what others keep one of
// them away by keeps away all. Of another group any class may stand here, and
// nothing may follow from which.
func (w *wakeup) alike() bool {
	_, byDefaults := w.byDefaults()
	return byDefaults || w.group == w.class.Signature
}

// What keys of the wake index begin with: by which amount they are sorted.
const wakeByCPU, wakeByMemory = 'c', 'm'

// wakeKey sorts by priority and then by a requested amount, so that a node with
// so much to give finds just those who ask for no more. Every group stands
// there once for each amount.
func wakeKey(by byte, c *model.Class, group string) string {
	b := make([]byte, 0, 1+4+8+len(group))
	b = appendPriorityDescending(append(b, by), c.Priority)
	amount := c.Request.MilliCPU
	if by == wakeByMemory {
		amount = c.Request.MemoryBytes
	}
	b = binary.BigEndian.AppendUint64(b, uint64(amount))
	return string(append(b, group...))
}

// levelLen is how much of a key of the wake index says the amount's kind and
// the priority.
const levelLen = 1 + 4

// watch enters a waiting pod into the wake indexes (by 1) or takes it out
// again (by -1).
func (v *live) watch(e *QueueEntry, by int) {
	group := e.group()
	count := func(index *store.Tree[wakeup], k string) {
		w, _ := index.Get(k)
		w.class, w.group = e.class, group
		if w.pods += by; w.pods <= 0 {
			index.Delete(k)
		} else {
			index.Set(k, w)
		}
	}
	count(&v.wakeups, wakeKey(wakeByCPU, e.class, group))
	count(&v.wakeups, wakeKey(wakeByMemory, e.class, group))
	for _, k := range otherKeys(e, group) {
		count(&v.otherWakeups, k)
	}
}

// wake makes a waiting pod ready, or lets it finish its backoff first.
func (tx *Tx) wake(e *QueueEntry) {
	tx.wakeWork += costWake
	woken := *e
	woken.State = berthv1.QueueActive
	if woken.BackoffUntilUnixNano > tx.view.TimeUnixNano() {
		woken.State = berthv1.QueueBackoff
	}
	put(tx, tx.view.Queue, e.Key(), &woken)
}

// wakeNext wakes the first of a group that waits for a change, and says whether
// there is one.
func (tx *Tx) wakeNext(group string) bool {
	prefix := waitPrefix(group, berthv1.QueueUnschedulable)
	k, e, ok := tx.view.waiting.First(prefix)
	if ok = ok && strings.HasPrefix(k, prefix); ok {
		tx.wake(e)
	}
	return ok
}

// wakeWaiting wakes the first of a group that waits for a change, and those
// that wait for their victims: what happened has nothing to do with any one
// node, so that nobody can say which of them it helps.
func (tx *Tx) wakeWaiting(group string) {
	tx.wakeNext(group)
	tx.wakeNominees(group)
}

// wakeNominees wakes those of a group that wait for their victims: each may
// find a place elsewhere for which nobody has to go (NM6).
func (tx *Tx) wakeNominees(group string) {
	var entries []*QueueEntry
	prefix := waitPrefix(group, berthv1.QueueNominated)
	tx.view.waiting.ScanFrom(prefix, prefix, func(_ string, e *QueueEntry) bool {
		entries = append(entries, e)
		return true
	})
	for _, e := range entries {
		tx.wake(e)
	}
}
