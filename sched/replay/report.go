package replay

import (
	"bytes"
	"errors"
	"fmt"
	"reflect"

	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/sched"
)

// Report sums up a replay.
type Report struct {
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

// Plan is one plan that was decided again.
type Plan struct {
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

func (r *Replayer) compare(p recordedPlan, again *sched.Plan) {
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
	n := c.Decisions()
	r.Report.Plans++
	r.Report.Decisions += n
	r.Report.Bindings += len(c.Bindings)
	r.Report.Preemptions += len(c.Preemptions)
	r.Report.Reservations += len(c.Reservations)
	r.Report.Failures += n - len(c.Reservations) - len(c.Bindings) - len(c.Preemptions)
	if r.Compared != nil {
		r.Compared(Plan{
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

func compareEach[D any](r *Replayer, p recordedPlan, recorded, decided []D, wrap func(D) (string, fsm.ApplyPlan)) {
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

func (r *Replayer) differ(p recordedPlan, d Difference) {
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
