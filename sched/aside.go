package sched

import (
	"fmt"
	"runtime/debug"

	"github.com/berth-dev/berth/fsm"
)

// A pod whose decision panics must not keep the others from theirs. What it had changed of the plan is undone, the plan
// ends with the pod's being set aside (an attempt that failed by itself, fsm.SetAside, which is replicated and tried again
// after a back-off of its own), and the view, which may be half changed, is built anew by the next steps.
//
// Nor may one whose decision takes longer than anybody can wait for.

// Panic is a panic of a decision, or of a row that the view was to take in, for whoever can log it.
type Panic struct {
	Pod   string // its key; "": it was not a decision
	Row   string // what the row is of, "pod default/web"; "": none can be blamed
	Value string
	Stack string
}

// decisionSteps is in how many steps a decision has to be made, each of which did nothing else.
const decisionSteps = 1 << 11

const (
	// asideNanos is how long pods of a class whose decision panicked are set aside without being tried: building the
	// view anew is not cheap.
	asideNanos = 10 * nanosPerSecond
	maxAside   = 1 << 10
	maxPanics  = 16
	// maxPanicBytes bounds what is told of a panic's value.
	maxPanicBytes = 256
)

// aside is a class that is not tried before a time, because of a panic.
type aside struct {
	untilUnixNano int64
	value         string
}

// Panics returns the panics of decisions and rows since it was called last.
func (s *Scheduler) Panics() []Panic {
	out := s.panics
	s.panics = nil
	return out
}

// mark is how far a plan has come.
type mark struct{ reservations, bindings, preemptions, failures, failed, assumptions, decisions, weight int }

func (p *pass) mark() mark {
	c := p.plan.Command
	m := mark{len(c.Reservations), len(c.Bindings), len(c.Preemptions), len(c.Failures), 0, len(p.plan.assumptions),
		p.plan.Decisions, p.plan.Weight}
	if m.failures > 0 {
		m.failed = len(c.Failures[m.failures-1].Pods)
	}
	return m
}

// reset takes a plan back to where it was.
func (p *pass) reset(m mark) {
	c := p.plan.Command
	c.Reservations, c.Bindings = c.Reservations[:m.reservations], c.Bindings[:m.bindings]
	c.Preemptions, c.Failures = c.Preemptions[:m.preemptions], c.Failures[:m.failures]
	if m.failures > 0 {
		last := &c.Failures[m.failures-1]
		last.Pods = last.Pods[:m.failed]
	}
	p.plan.assumptions, p.plan.Decisions, p.plan.Weight = p.plan.assumptions[:m.assumptions], m.decisions, m.weight
	p.reserving = nil
}

// attempt calls f, which decides something about a pod. It says whether that panicked, and how: then the plan is as it
// was before, and the view is built anew.
func (s *Scheduler) attempt(p *pass, e *fsm.QueueEntry, now int64, f func()) (said string, panicked bool) {
	before := p.mark()
	defer func() {
		value := recover()
		if value == nil {
			return
		}
		panicked = true
		said = fmt.Sprint(value)
		said = said[:min(len(said), maxPanicBytes)]
		if len(s.panics) < maxPanics {
			s.panics = append(s.panics, Panic{Pod: e.Key(), Value: said, Stack: string(debug.Stack())})
		}
		s.keepAside(e, now, said)
		p.reset(before)
		p.closed = true // what it knows of boards is about a view that is gone
		s.spoilt, s.seen.hiding = true, nil
	}()
	f()
	return "", false
}

// keepAside has the pods of a class set aside without being tried for a while.
func (s *Scheduler) keepAside(e *fsm.QueueEntry, now int64, said string) {
	if len(s.asides) >= maxAside {
		clear(s.asides)
	}
	s.asides[e.Class().Signature] = aside{now + asideNanos, said}
}

// isAside says whether pods of the class are not to be tried now, and why.
func (s *Scheduler) isAside(e *fsm.QueueEntry, now int64) (said string, is bool) {
	a, ok := s.asides[e.Class().Signature]
	if ok && a.untilUnixNano <= now {
		delete(s.asides, e.Class().Signature)
		return "", false
	}
	return a.value, ok
}

// setAside adds to the plan that the attempt to find a place for the pod failed by itself.
func (s *Scheduler) setAside(p *pass, e *fsm.QueueEntry, said string) {
	s.decided(p, s.failAside(p, e, said))
}

// failAside is the decision that setAside adds.
func (s *Scheduler) failAside(p *pass, e *fsm.QueueEntry, said string) *assumption {
	d, given := s.given[e.UID]
	if !given {
		d = &fsm.SetAside{Kind: "Panic", Message: said}
	}
	ref := fsm.PodRef{Key: e.Key(), UID: string(e.UID)}
	p.plan.Command.Failures = append(p.plan.Command.Failures, fsm.FailDecision{Pods: []fsm.PodRef{ref}, SetAside: d})
	return newAssumption(e, assumeFail, "")
}
