package controller

import "github.com/berth-dev/berth/fsm"

// Work is what a reconciler of workloads wants done: commands that are proposed
// together, in their order. The reconciler hears of their outcome.
type Work struct {
	// For is the object that the commands are for; one object has one Work
	// under way at a time.
	For      string
	Commands []fsm.Command
	// Seen is the revision of the state by which this was decided. Whoever lets the reconciler step knows it.
	Seen int64
}

// Outcome is what became of a Work. Err means that nothing is known for
// certain; Results are in the order of the commands.
type Outcome struct {
	Work    Work
	Results []fsm.Result
	Err     error
}

// refused is the first refusal among the results of commands of one type.
func refused[C fsm.Command](o *Outcome) (fsm.Result, bool) {
	for i, r := range o.Results {
		if _, ok := o.Work.Commands[i].(C); ok && r.Refused() {
			return r, true
		}
	}
	return fsm.Result{}, false
}
