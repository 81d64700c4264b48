package sched

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"

	"github.com/berth-dev/berth/fsm"
)

// EntryLog is a log to be replayed.
type EntryLog interface {
	// Entry returns the entry at an index and its term. It is asked for each index twice at most.
	Entry(index uint64) (term uint64, entry []byte, err error)
}

// Replay decides again what a log says was decided. It applies the entries one after the other and lets a scheduler of
// its own make every plan at the revision, at the time, and over the unsettled plans that the recorded one names. A
// plan is a function of these alone: whatever else a scheduler remembers may only save it work.
//
// Where a recorded plan stopped for want of time, because it was full or had looked at too many nodes, the replay stops
// too: it makes as many decisions.
type Replay struct {
	// State is where the log begins; the replay goes on with it.
	State *fsm.State
	Log   EntryLog
	// From is the first entry whose plans are decided again; those before it only lead to the state that it needs.
	From uint64
	// Keep bounds how many differences are kept word for word.
	Keep int
	// Compared is told of every plan that was decided again, if it is set.
	Compared func(p ReplayedPlan)

	Report ReplayReport

	ahead   uint64         // up to where the log was searched for plans
	to      uint64         // where the replay ends
	coming  []recordedPlan // found, and not decided again yet
	term    uint64
	sched   *Scheduler // nil: waits for a plan that lies over no other
	open    []*Plan    // made and not settled
	started bool       // some plan was decided again
}

type recordedPlan struct {
	index, term uint64
	command     *fsm.ApplyPlan
}

// ReplayReport sums up a replay.
type ReplayReport struct {
	Entries uint64 `json:"entries"`
	// Plans were decided again, and Decisions were in them.
	Plans       int `json:"plans"`
	Decisions   int `json:"decisions"`
	Bindings    int `json:"bindings"`
	Preemptions int `json:"preemptions"`
	Failures    int `json:"failures"`
	// Reservations made or renewed.
	Reservations int `json:"reservations"`
	// Skipped are the plans that could not be decided again: those that lie over plans made before the log begins,
	// those that lie over one that is not in the log or came out otherwise, and those of versions that did not number
	// them.
	SkippedAtStart int `json:"skippedAtStart,omitempty"`
	SkippedUnknown int `json:"skippedUnknown,omitempty"`
	SkippedOld     int `json:"skippedOld,omitempty"`
	// Different is how many decisions came out otherwise; Differences are the first of them.
	Different   int          `json:"different"`
	Differences []Difference `json:"differences,omitempty"`
}

// ReplayedPlan is one plan that was decided again.
type ReplayedPlan struct {
	Index, Term uint64
	Number      int64
	Revision    int64
	Decisions   int
	Different   int
}

// Difference is a decision that came out otherwise.
type Difference struct {
	Index    uint64 `json:"index"`
	Term     uint64 `json:"term"`
	Number   int64  `json:"number"`
	Revision int64  `json:"revision"`
	Pod      string `json:"pod,omitempty"`
	// Recorded is what the log says, Decided what the replay decided; "nothing" where one of them has no such decision.
	Recorded string `json:"recorded"`
	Decided  string `json:"decided"`
}

// Run replays the entries after the state's own index, up to and including an index.
func (r *Replay) Run(to uint64) error {
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
func (r *Replay) decideAgain() error {
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
func (r *Replay) unreached(index uint64) {
	for len(r.coming) > 0 && r.coming[0].index <= index {
		r.stray(r.coming[0])
		r.coming = r.coming[1:]
	}
}

func (r *Replay) stray(p recordedPlan) {
	r.sched = nil
	if !r.started { // it was made before the log begins
		r.Report.SkippedAtStart++
		return
	}
	r.differ(p, Difference{Recorded: fmt.Sprintf("a plan made at revision %d", p.command.Revision),
		Decided: "nothing: no entry ends at that revision"})
}

// step decides one plan again, if what it depends on is known.
func (r *Replay) step(p recordedPlan) {
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
		r.sched, r.open = New(r.State), nil
		r.sched.meter.boundless, r.sched.replaying = true, true
	}
	if !r.settle(c.Over) {
		// It lies over a plan that never came into the log. So do its successors, until one lies over none.
		r.sched = nil
		r.Report.SkippedUnknown++
		return
	}
	r.started = true
	r.sched.made, r.sched.draining, r.sched.given = c.Number-1, false, asideIn(c)
	r.sched.reserveOnly = ""
	for i := range c.Reservations {
		r.sched.reserveOnly = c.Reservations[i].Key
	}
	again := r.sched.decideNext(c.StepUnixNano, most{decisionsIn(c), math.MaxInt})
	r.compare(p, again)
	if again != nil {
		r.open = append(r.open, again)
	}
}

// settle ends the plans that were settled when the next was made, and says whether all others are known.
func (r *Replay) settle(over []int64) bool {
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

func decisionsIn(c *fsm.ApplyPlan) int {
	n := len(c.Reservations) + len(c.Bindings) + len(c.Preemptions)
	for i := range c.Failures {
		n += len(c.Failures[i].Pods)
	}
	return n
}

func (r *Replay) compare(p recordedPlan, again *Plan) {
	c, d := p.command, &fsm.ApplyPlan{}
	if again != nil {
		d = again.Command
	}
	before := r.Report.Different
	compareEach(r, p, c.Reservations, d.Reservations, func(b fsm.ReserveDecision) (string, fsm.ApplyPlan) {
		return b.Key, fsm.ApplyPlan{Reservations: []fsm.ReserveDecision{b}}
	})
	compareEach(r, p, c.Bindings, d.Bindings, func(b fsm.BindDecision) (string, fsm.ApplyPlan) {
		return b.Key, fsm.ApplyPlan{Bindings: []fsm.BindDecision{b}}
	})
	compareEach(r, p, c.Preemptions, d.Preemptions, func(b fsm.PreemptDecision) (string, fsm.ApplyPlan) {
		return b.Key, fsm.ApplyPlan{Preemptions: []fsm.PreemptDecision{b}}
	})
	compareEach(r, p, failuresOf(c), failuresOf(d), func(b fsm.FailDecision) (string, fsm.ApplyPlan) {
		return b.Pods[0].Key, fsm.ApplyPlan{Failures: []fsm.FailDecision{b}}
	})
	n := decisionsIn(c)
	r.Report.Plans++
	r.Report.Decisions += n
	r.Report.Bindings += len(c.Bindings)
	r.Report.Preemptions += len(c.Preemptions)
	r.Report.Reservations += len(c.Reservations)
	r.Report.Failures += n - len(c.Reservations) - len(c.Bindings) - len(c.Preemptions)
	if r.Compared != nil {
		r.Compared(ReplayedPlan{
			Index: p.index, Term: p.term, Number: c.Number, Revision: c.Revision, Decisions: n,
			Different: r.Report.Different - before,
		})
	}
	if r.Report.Different > before {
		r.sched = nil // what was laid over the state is no longer what the recorded plans were laid over
	}
}

// failuresOf gives every failure a decision of its own: how they are put together is no part of what was decided.
func failuresOf(c *fsm.ApplyPlan) []fsm.FailDecision {
	var out []fsm.FailDecision
	for _, d := range c.Failures {
		for i := range d.Pods {
			one := d
			one.Pods = d.Pods[i : i+1 : i+1]
			out = append(out, one)
		}
	}
	return out
}

func compareEach[D any](r *Replay, p recordedPlan, recorded, decided []D, wrap func(D) (string, fsm.ApplyPlan)) {
	for i := range max(len(recorded), len(decided)) {
		diff := Difference{Recorded: "nothing", Decided: "nothing"}
		switch {
		case i < len(recorded) && i < len(decided):
			if reflect.DeepEqual(recorded[i], decided[i]) || sameBytes(recorded[i], decided[i], wrap) {
				continue
			}
			fallthrough
		case i < len(recorded):
			key, c := wrap(recorded[i])
			diff.Pod, diff.Recorded = key, summary(&c)
		}
		if i < len(decided) {
			key, c := wrap(decided[i])
			diff.Decided = summary(&c)
			if diff.Pod == "" {
				diff.Pod = key
			}
		}
		r.differ(p, diff)
	}
}

// sameBytes: two decisions are equal that come out of the log equal, whatever they look like in memory.
func sameBytes[D any](a, b D, wrap func(D) (string, fsm.ApplyPlan)) bool {
	_, x := wrap(a)
	_, y := wrap(b)
	left, err := fsm.EncodeProposal(fsm.Proposal{Command: &x})
	right, err2 := fsm.EncodeProposal(fsm.Proposal{Command: &y})
	return errors.Join(err, err2) == nil && bytes.Equal(left, right)
}

func (r *Replay) differ(p recordedPlan, d Difference) {
	r.Report.Different++
	if len(r.Report.Differences) < r.Keep {
		d.Index, d.Term, d.Number, d.Revision = p.index, p.term, p.command.Number, p.command.Revision
		r.Report.Differences = append(r.Report.Differences, d)
	}
}

// summary says in a line what a plan of one decision decides.
func summary(c *fsm.ApplyPlan) string {
	for _, d := range c.Bindings {
		return fmt.Sprintf("%s is bound to %s, which is the best of %d (score %d, before %q)", d.Key, d.Node,
			d.Feasible, d.Score, d.RunnerUp)
	}
	for _, d := range c.Reservations {
		return fmt.Sprintf("room is kept for %s on %s", d.Key, d.Node)
	}
	for _, d := range c.Preemptions {
		out := fmt.Sprintf("%s preempts on %s:", d.Key, d.Node)
		for _, v := range d.Victims {
			out += " " + v.Key
			if v.ViolatesBudget {
				out += " (violating a budget)"
			}
		}
		if d.Alternatives != nil {
			out += fmt.Sprintf("; %+v", *d.Alternatives)
		}
		if d.Diagnosis != nil {
			out += "; " + d.Diagnosis.Message
		}
		return out
	}
	for _, d := range c.Failures {
		if d.SetAside != nil {
			return fmt.Sprintf("%s is set aside: %s %s", d.Pods[0].Key, d.SetAside.Kind, d.SetAside.Message)
		}
		out := d.Pods[0].Key + " has no place"
		if d.ClearNomination {
			out += " and loses its nomination"
		}
		if d.Diagnosis != nil {
			out += fmt.Sprintf(": %s %+v", d.Diagnosis.Message, d.Diagnosis.Reasons)
		}
		return out
	}
	return "nothing"
}
