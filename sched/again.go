package sched

import (
	"math"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/fsm"
)

// DecideAgain makes the plan that a recorded one was made as: with its number and at its time, on the state as it is now,
// over the plans of this scheduler that are not settled. A plan is a function of these alone; what may have hung on how
// much work the steps before had done is taken from the record, which are how many decisions were made, the pods that
// were set aside, and the one that room was kept for. Where everything is as it was, so is the plan.
//
// It takes as much work as it takes. nil: there is nothing to decide. The plan is to be settled as one of Step's; a
// scheduler that decides again is for nothing else.
func (s *Scheduler) DecideAgain(recorded *fsm.ApplyPlan) *Plan {
	s.meter.boundless, s.replaying = true, true
	s.made, s.draining, s.given = recorded.Number-1, false, asideIn(recorded)
	s.reserveOnly = ""
	for i := range recorded.Reservations {
		s.reserveOnly = recorded.Reservations[i].Key
	}
	return s.decideNext(recorded.StepUnixNano, most{recorded.Decisions(), math.MaxInt})
}

// asideIn are the pods that a plan sets aside, with what it says of them.
func asideIn(c *fsm.ApplyPlan) map[types.UID]*fsm.SetAside {
	out := map[types.UID]*fsm.SetAside{}
	for i := range c.Failures {
		if d := &c.Failures[i]; d.SetAside != nil {
			for _, ref := range d.Pods {
				out[types.UID(ref.UID)] = d.SetAside
			}
		}
	}
	return out
}
