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
//
// What breaks even so is of no part alone: a savepoint, or the view that is to be
// published. Then the entry is refused whole, and that is recorded; and if not even
// that can be done, it is refused without a record. Each of these begins with the
// published view, which was forked once before.

// Fault is a panic that was undone. Value and Stack may differ between
// servers: they are for the log of a server and never enter the state.
type Fault struct {
	Index   uint64 // of the entry
	Command string // the command's type, as in docs/log-format.md
	Part    string // what in the command it was about; "": the whole of it
	User    string
	Value   string
	Stack   []byte
	// Shown: what the entry did stays. It was not shown as it should be, on this server alone.
	Shown bool
	// Once: it did not come again when the entry was carried out a second time, from the same bytes and state. So it came of what this
	// server alone keeps, and of nothing that is the same on every server.
	Once bool
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
			tx.blame(key, faultOf(p))
			done = false
		}
	}()
	f()
	return true
}

// blame records a panic.
func (tx *Tx) blame(part string, f Fault) {
	f.Index, f.Command, f.Part, f.User = tx.view.Index(), commandName(tx.command), part, tx.User
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

// refuseAll answers for commands of which none was done.
func (tx *Tx) refuseAll(ps []Proposal) []Result {
	results := make([]Result, len(ps))
	for i, p := range ps {
		tx.command = p.Command
		results[i] = tx.refuseFailed()
		results[i].Revision, results[i].Index = tx.view.Revision(), tx.view.Index()
	}
	return results
}

// outcome is what an entry has come to, and nobody has seen yet.
type outcome struct {
	tx      *Tx
	view    *View
	results []Result
}

// attempt carries out an entry, up to the view that it leads to. If something panics the state is again what it was before.
func (s *State) attempt(open func() *Tx, do func(tx *Tx) []Result) (out outcome, broke *Fault) {
	counted := s.live.cache.counters
	defer func() {
		if p := recover(); p != nil {
			fault := faultOf(p)
			out, broke = outcome{}, &fault
			s.takeBack(counted, counting())
		}
	}()
	tx := open()
	results := do(tx)
	s.live.settle()
	return outcome{tx, s.live.freeze(), results}, nil
}

// takeBack makes the state what it was before an entry. counted are the counters that it had then; in doubt they are made anew
// when they are needed.
func (s *State) takeBack(counted *counters, doubt bool) {
	clear(s.spare[:cap(s.spare)])
	is, trying := s.live.cache.counters, s.live.trying
	s.live = s.View().thaw()
	s.live.trying, s.live.effective = trying, new(effectiveClasses)
	if counted == is && !doubt { // no others are those of this state
		s.live.cache.counters = counted.after(0)
	}
}

// standStill is the outcome of an entry that nothing can be done with, not even to record that: the rows are those of the
// entry before, as they are.
func (s *State) standStill(tx *Tx, ps []Proposal, why Fault) outcome {
	view := new(View)
	*view = *s.View()
	view.Position = s.live.Position
	why.Index, why.Command = view.Index(), commandName(nil)
	tx.faults = append(tx.faults, why)
	return outcome{tx, view, tx.refuseAll(ps)}
}

// contain does something that shows what an entry has done, or, if that panics, something else in its place.
func (s *State) contain(part string, f, instead func()) {
	defer func() {
		if p := recover(); p != nil {
			fault := faultOf(p)
			fault.Index, fault.Command, fault.Part, fault.Shown = s.live.Index(), commandName(nil), part, true
			s.faults = append(s.faults, fault)
			instead()
		}
	}()
	f()
}

// faultOf is a panic while its stack stands.
func faultOf(p any) Fault { return Fault{Value: fmt.Sprint(p), Stack: debug.Stack()} }

// unreadable stands for a command whose bytes can not be decoded.
type unreadable struct {
	number uint16
	value  any
}

// Apply implements Command.
func (u *unreadable) Apply(*Tx) Result { panic(u.value) }

// commandName is the name of a command's type; none is the entry itself.
func commandName(c Command) string {
	if c == nil {
		return "Entry"
	}
	if u, ok := c.(*unreadable); ok {
		known, err := registry.New(u.number)
		if err != nil {
			return fmt.Sprintf("command %d", u.number)
		}
		c = known
	}
	return reflect.Indirect(reflect.ValueOf(c)).Type().Name()
}
