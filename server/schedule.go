package server

import (
	"context"
	"time"

	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/raftnode"
	"github.com/berth-dev/berth/sched"
)

const (
	// stepPods bounds the pods of one plan, so that entries stay small.
	stepPods = 1024
	// maxPlans bounds the plans that are on their way through the log.
	maxPlans = 8
)

// settled is a plan whose outcome is known.
type settled struct {
	plan *sched.Plan
	err  error
}

// scheduleLoop makes plans and proposes them without waiting for one to commit
// before the next is made, until it no longer leads.
func (s *Server) scheduleLoop(ctx context.Context) {
	scheduler := sched.New(s.state)
	feed := s.state.Feed()
	done := make(chan settled, maxPlans)
	changed := make(chan struct{}, 1)
	stop := s.signalChanges(ctx, changed)
	defer stop()
	settle := func(d settled) {
		scheduler.Settle(d.plan)
		if d.err != nil && ctx.Err() == nil {
			s.log.Warn("a plan was not applied for certain", "decisions", d.plan.Decisions, "error", d.err)
		}
	}
	for {
		revision := feed.Last()
		now := time.Now()
		plan := (*sched.Plan)(nil)
		if scheduler.Unsettled() < maxPlans {
			began := time.Now()
			plan = scheduler.Step(now.UnixNano(), stepPods)
			s.metrics.observeStep(plan, time.Since(began))
		}
		if plan != nil {
			// Plans enter the log in the order in which they were made.
			future, err := s.node.ProposeAsync(fsm.Proposal{User: systemUser, Groups: systemGroups, Command: plan.Command})
			go func() { done <- settled{plan, s.awaitPlan(ctx, plan, future, err)} }()
			select { // take what is settled, without waiting for it
			case d := <-done:
				settle(d)
			default:
			}
			continue
		}
		var wake <-chan time.Time
		if at, ok := s.state.View().NextBackoffUnixNano(); ok {
			wake = time.After(max(time.Until(time.Unix(0, at)), time.Millisecond))
		}
		if feed.Last() != revision && scheduler.Unsettled() == 0 {
			continue // something changed while the step was made
		}
		select {
		case <-ctx.Done():
			for scheduler.Unsettled() > 0 {
				settle(<-done)
			}
			return
		case d := <-done:
			settle(d)
		case <-changed:
		case <-wake:
		}
	}
}

// signalChanges puts a token into the channel whenever the state has changed.
func (s *Server) signalChanges(ctx context.Context, changed chan<- struct{}) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	finished := make(chan struct{})
	go func() {
		defer close(finished)
		feed := s.state.Feed()
		at := feed.Last()
		for feed.Wait(ctx, at) == nil {
			at = feed.Last()
			select {
			case changed <- struct{}{}:
			default:
			}
		}
	}()
	return func() { cancel(); <-finished }
}

// awaitPlan waits for the outcome of a plan that was proposed, or says why it
// was not.
func (s *Server) awaitPlan(ctx context.Context, plan *sched.Plan, future *raftnode.Future, err error) error {
	if err != nil {
		return err
	}
	rs, _, err := future.Wait(ctx)
	if err != nil {
		return err
	}
	if rs[0].Plan != nil {
		s.metrics.observePlan(plan.Command, rs[0].Plan)
		for _, refused := range rs[0].Plan.Refused {
			s.log.Debug("a decision was refused", "pod", refused.Key, "reason", refused.Reason)
		}
	}
	return rs[0].Err()
}
