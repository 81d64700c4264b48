package fsm

import (
	"strings"
	"time"

	"github.com/berth-dev/berth/queue"
)

// SinceApart is the LogVersion from which on a panic in what an entry does beside its commands (it goes on with what is pending,
// and wakes whom a change can help) undoes that and no command. It would come again with every command: nothing could be written
// any more.
const SinceApart = 21

// apartAgain is how long what panicked is let be, by the state's time. Whoever it is about waits until then.
const apartAgain = time.Minute

// apartPrefix begins the names of such parts in the records of failures.
const apartPrefix = "beside it: "

// apart does what stands or falls by itself beside a command, unless it failed a short while ago, and says whether it was done.
func (tx *Tx) apart(key string, f func()) (done bool) {
	switch v := tx.view; {
	case v.Version() < SinceApart:
		f()
		return true
	case v.ApplyFailures.Len() > 0 && v.failedLately(apartPrefix+key):
		return false
	case !tx.guarded:
		f()
		return true
	}
	return tx.part(apartPrefix+key, f)
}

// guardsApart says whether a panic in such a part would undo that alone, as the entry is guarded and of these rules.
func (tx *Tx) guardsApart() bool { return tx.guarded && tx.view.Version() >= SinceApart }

// failedLately says whether a part failed within the last minute.
func (v *View) failedLately(part string) (is bool) {
	part = cut(part)
	v.ApplyFailures.Reverse(func(_ string, f *ApplyFailure) bool {
		if v.TimeUnixNano()-f.TimeUnixNano >= int64(apartAgain) {
			return false
		}
		is = f.Part == part
		return !is
	})
	return is
}

// countBudgets goes on with the budgets whose pods earlier entries had no time to count. One that cannot be counted holds up no
// other.
func (tx *Tx) countBudgets() {
	for from := queue.PendingBudgets; ; {
		at, _, ok := tx.view.pending.First(from)
		key, is := strings.CutPrefix(at, queue.PendingBudgets)
		if !ok || !is {
			return
		}
		done := false
		if tx.apart(at, func() { done = tx.countBudget(key) }) && !done {
			return // the entry has no time for more
		}
		from = at + "\x00"
	}
}

// wakeByChanges wakes whom the changes of a command can have helped. If that fails everybody is looked at in the next entries:
// whom it should have woken is not known.
func (tx *Tx) wakeByChanges() {
	if !tx.guardsApart() {
		tx.wakeByRows()
	} else if !tx.part(apartPrefix+"wakes", tx.wakeByRows) && tx.view.queue.HasGroups() {
		put(tx, tx.view.pending, queue.PendingSweep, &queue.Pending{Scope: &queue.Scope{All: true}})
	}
}

func (tx *Tx) wakeByRows() {
	w := &wakes{tx: tx}
	w.ByLabel, w.Drivers = tx.view.Version() >= SinceLabelsLookedAt, tx.view.Version() >= SinceDevices
	for ; tx.walked < len(tx.Changes()); tx.walked++ {
		w.row(&tx.Changes()[tx.walked])
	}
	tx.wakeAll(&w.Changes)
}
