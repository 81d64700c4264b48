// Package replay decides again what a log says was decided, and compares: that every decision comes out the same shows that
// the scheduler decided by the replicated state alone.
//
// Like the scheduler itself it must never read a clock, draw a random number, start a goroutine or do I/O: the log comes
// to it through an interface.
package replay

import (
	"fmt"
	"slices"

	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/sched"
)

// Log is a log to be replayed.
type Log interface {
	// Entry returns the entry at an index and its term. It is asked for each index twice at most.
	Entry(index uint64) (term uint64, entry []byte, err error)
}

// Replayer decides again what a log says was decided. It applies the entries one after the other and lets a scheduler of
// its own make every plan at the revision, at the time, and over the unsettled plans that the recorded one names. A
// plan is a function of these alone: whatever else a scheduler remembers may only save it work.
//
// Where a recorded plan stopped for want of time, because it was full or had looked at too many nodes, the replay stops
// too: it makes as many decisions.
type Replayer struct {
	// State is where the log begins; the replay goes on with it.
	State *fsm.State
	Log   Log
	// From is the first entry whose plans are decided again; those before it only lead to the state that it needs.
	From uint64
	// Keep bounds how many differences are kept word for word.
	Keep int
	// Compared is told of every plan that was decided again, if it is set.
	Compared func(p Plan)

	Report Report

	ahead   uint64         // up to where the log was searched for plans
	to      uint64         // where the replay ends
	coming  []recordedPlan // found, and not decided again yet
	term    uint64
	sched   *sched.Scheduler // nil: waits for a plan that lies over no other
	open    []*sched.Plan    // made and not settled
	started bool             // some plan was decided again
}

type recordedPlan struct {
	index, term uint64
	command     *fsm.ApplyPlan
}

// Run replays the entries after the state's own index, up to and including an index.
func (r *Replayer) Run(to uint64) error {
	at := r.State.View().Index()
	r.ahead, r.to = max(r.ahead, at), to
	for ; at < to; at++ {
		if err := r.decideAgain(); err != nil {
			return err
		}
		r.unreached(at + 1)
		term, entry, err := r.Log.Entry(at + 1)
		if err != nil {
			return err
		}
		if _, err := r.State.Apply(at+1, term, entry); err != nil {
			return err
		}
		r.Report.Entries++
	}
	return nil
}

// decideAgain makes the plans that were made on the state as it is now. Plans come in the order in which they were
// made, so that the first one that was made later ends the search.
func (r *Replayer) decideAgain() error {
	for {
		for len(r.coming) == 0 && r.ahead < r.to {
			term, entry, err := r.Log.Entry(r.ahead + 1)
			if err != nil {
				return err
			}
			plans, err := fsm.PlansOf(entry)
			if err != nil {
				return fmt.Errorf("entry %d: %w", r.ahead+1, err)
			}
			r.ahead++
			for _, c := range plans {
				r.coming = append(r.coming, recordedPlan{r.ahead, term, c})
			}
		}
		if len(r.coming) == 0 || r.coming[0].command.Revision > r.State.View().Revision() {
			return nil
		}
		p := r.coming[0]
		r.coming = r.coming[1:]
		r.step(p)
	}
}

// unreached drops the plans of an entry that is about to be applied although the state never stood where they were
// made.
func (r *Replayer) unreached(index uint64) {
	for len(r.coming) > 0 && r.coming[0].index <= index {
		r.stray(r.coming[0])
		r.coming = r.coming[1:]
	}
}

func (r *Replayer) stray(p recordedPlan) {
	r.sched = nil
	if !r.started { // it was made before the log begins
		r.Report.SkippedAtStart++
		return
	}
	r.differ(p, Difference{Recorded: fmt.Sprintf("a plan made at revision %d", p.command.Revision),
		Decided: "nothing: no entry ends at that revision"})
}

// step decides one plan again, if what it depends on is known.
func (r *Replayer) step(p recordedPlan) {
	c := p.command
	switch {
	case p.index < r.From:
		return
	case c.Number == 0:
		r.Report.SkippedOld++ // made by a version that did not say what a plan depends on
		return
	case c.Revision != r.State.View().Revision():
		r.stray(p)
		return
	}
	if p.term != r.term || c.Number == 1 {
		r.sched, r.term = nil, p.term
	}
	if r.sched == nil {
		if len(c.Over) > 0 {
			if r.started {
				r.Report.SkippedUnknown++
			} else {
				r.Report.SkippedAtStart++
			}
			return
		}
		r.sched, r.open = sched.New(r.State), nil
	}
	if !r.settle(c.Over) {
		// It lies over a plan that never came into the log. So do its successors, until one lies over none.
		r.sched = nil
		r.Report.SkippedUnknown++
		return
	}
	r.started = true
	again := r.sched.DecideAgain(c)
	r.compare(p, again)
	if again != nil {
		r.open = append(r.open, again)
	}
}

// settle ends the plans that were settled when the next was made, and says whether all others are known.
func (r *Replayer) settle(over []int64) bool {
	open := r.open[:0]
	for _, p := range r.open {
		if slices.Contains(over, p.Command.Number) {
			open = append(open, p)
		} else {
			r.sched.Settle(p)
		}
	}
	r.open = open
	return len(open) == len(over)
}
