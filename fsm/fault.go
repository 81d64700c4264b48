package fsm

import (
	"fmt"
	"net/http"
	"reflect"
	"runtime/debug"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A panic in Apply is a mistake of Berth's, not of whoever proposed the
// command, and it comes on every server alike, now and whenever the log is
// replayed. It must end none of them. So what panicked is undone, refused and
// recorded, and all else goes on.
//
// Nothing of this costs anything while nothing panics. The state before an
// entry is the published view. When a command panics, the live view is made
// anew from that, and the entry is carried out once more from its bytes, this
// time guarded: with a savepoint before every part that stands or falls by
// itself. Commands are deterministic, so that what did not panic does the same
// again.

// Fault is a panic that was undone. Value and Stack may differ between
// servers: they are for the log of a server and never enter the state.
type Fault struct {
	Index   uint64 // of the entry
	Command string // the command's type, as in docs/log-format.md
	Part    string // what in the command it was about; "": the whole of it
	User    string
	Value   string
	Stack   []byte
}

// maxFaults bounds the savepoints that one entry goes back to. What follows in
// the entry is refused and may be proposed again.
const maxFaults = 16

// savepoint is what a part of an entry goes back to.
type savepoint struct {
	view       *View
	changes    int
	checkpoint bool
	replaced   int64
	counters   *counters
	told       int
}

func (tx *Tx) save() savepoint {
	counted := tx.view.cache.counters
	return savepoint{tx.view.freeze(), len(tx.Changes()), tx.checkpoint, tx.replaced, counted, len(counted.told)}
}

// undo goes back to a savepoint. Tables and indexes are copies; what is worked
// out from them and kept (interned classes) may be half changed, and starts anew.
// The counters of rules between pods, which it would take long to make anew, take
// back what they were told.
func (tx *Tx) undo(to savepoint) {
	counted, trying := tx.view.cache.counters, tx.view.trying
	*tx.view = *to.view.thaw()
	tx.view.trying = trying
	if counted == to.counters { // no others are those of this state
		tx.view.cache.counters = counted.after(to.told)
	}
	tx.view.effective, tx.view.bill = new(effectiveClasses), tx.bill
	tx.Undo(to.changes)
	tx.checkpoint, tx.replaced = to.checkpoint, to.replaced
	tx.walked = min(tx.walked, to.changes)
	tx.addressed = min(tx.addressed, to.changes)
}

// doubtCounters is called for a panic while its stack stands: counters that it
// came out of are made anew when they are needed.
func (tx *Tx) doubtCounters() {
	if counting() {
		tx.view.cache.counters = new(counters)
	}
}

// part carries out what stands or falls by itself: a command, or one of many
// things that a command does (key names it). It says whether it was done. In a
// guarded entry a panic undoes the part and nothing else.
func (tx *Tx) part(key string, f func()) (done bool) {
	if !tx.guarded {
		f()
		return true
	}
	if len(tx.faults) >= maxFaults {
		return false
	}
	before := tx.save()
	defer func() {
		if p := recover(); p != nil {
			tx.doubtCounters()
			tx.undo(before)
			tx.blame(key, p, debug.Stack())
			done = false
		}
	}()
	f()
	return true
}

// blame records a panic.
func (tx *Tx) blame(part string, p any, stack []byte) {
	f := Fault{
		Index: tx.view.Index(), Command: commandName(tx.command), Part: part, User: tx.User,
		Value: fmt.Sprint(p), Stack: stack,
	}
	tx.faults = append(tx.faults, f)
	tx.recordFailure(&ApplyFailure{
		Index: f.Index, Place: int32(len(tx.faults)), Command: f.Command, Part: cut(f.Part), User: cut(f.User),
		TimeUnixNano: tx.view.TimeUnixNano(),
	})
}

// failedPart is why a decision or the like was not carried out.
const failedPart = "it failed inside of the state machine, and was undone"

// refuseFailed answers for a command that panicked.
func (tx *Tx) refuseFailed() Result {
	return Result{
		Code: http.StatusInternalServerError, Reason: metav1.StatusReasonInternalError,
		Message: fmt.Sprintf("%s of log entry %d failed inside of the state machine: nothing of it was done, on any server; "+
			"this is a mistake of Berth's, and the servers' logs say where", commandName(tx.command), tx.view.Index()),
	}
}

// attempt carries commands out, and says whether none of them panicked.
func (tx *Tx) attempt(ps []Proposal) (results []Result, ok bool) {
	defer func() {
		if recover() != nil {
			tx.doubtCounters()
			results, ok = nil, false // it is looked at when it comes again
		}
	}()
	return tx.carryOut(ps), true
}

// unreadable stands for a command whose bytes can not be decoded.
type unreadable struct {
	number uint16
	value  any
}

// Apply implements Command.
func (u *unreadable) Apply(*Tx) Result { panic(u.value) }

// commandName is the name of a command's type.
func commandName(c Command) string {
	if u, ok := c.(*unreadable); ok {
		known, err := registry.New(u.number)
		if err != nil {
			return fmt.Sprintf("command %d", u.number)
		}
		c = known
	}
	return reflect.Indirect(reflect.ValueOf(c)).Type().Name()
}
