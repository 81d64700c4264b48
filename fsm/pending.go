package fsm

import "github.com/berth-dev/berth/queue"

// Some commands mean something for any number of pods: all have to be sorted
// anew, counted, or let into the queue. An entry of the log does only so much of
// that (queue.Work), counted from the tables alone; where it stopped is in a row,
// and the next entries go on. What wakes others goes on in the same way
// (goOnWaking).

// goOn goes on with what is pending: before a command, so that no other work keeps
// it from that, and after it, so that what it began is done at once where it is
// little.
func (tx *Tx) goOn() {
	v := tx.view
	if _, sorting := v.queue.Sorting(); sorting || v.pending.Len() > 0 {
		tx.apart(queue.PendingOrder, tx.sortQueue)
	}
	if v.pending.Len() == 0 || tx.work.HalfOver() {
		return
	}
	if p, ok := v.pending.Get(queue.PendingLeave); ok {
		tx.apart(queue.PendingLeave, func() { tx.letOut(p.From) })
	}
	if _, ok := v.pending.Get(queue.PendingJoin); ok {
		tx.apart(queue.PendingJoin, tx.takeIn)
	}
	tx.countBudgets()
	tx.apart(queue.PendingCount, tx.goOnCounting)
}

// sortQueue gives entries of the queue their place in another order.
func (tx *Tx) sortQueue() {
	v := tx.view
	now, sorting := v.queue.Sorting()
	if sorting {
		sorted, done := v.queue.Sort(&tx.work, func(from string, f func(key string, e *QueueEntry) bool) {
			v.Queue.ScanFrom("", from, f)
		})
		if !done {
			put(tx, v.pending, queue.PendingOrder, &queue.Pending{Order: &now, From: sorted})
			return
		}
	}
	if v.pending.Len() > 0 {
		remove(tx, v.pending, queue.PendingOrder)
	}
}
