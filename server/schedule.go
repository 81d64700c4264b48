package server

import (
	"context"
	"errors"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/berth-dev/berth/clock"
	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/guard"
	"github.com/berth-dev/berth/raftnode"
	"github.com/berth-dev/berth/sched"
	"github.com/berth-dev/berth/store"
)

const (
	// stepWeight bounds what a plan weighs, in pods that it moves (fsm.Weight), so
	// that entries stay small.
	stepWeight = 1024
	// maxPlans bounds the plans that are on their way through the log.
	maxPlans = 8
	// planPause is how long no plan is made after the log has refused one: it
	// is full, or this server leads no longer and is about to hear of it.
	planPause = 50 * time.Millisecond
	// overduePause keeps the loop from spinning should pods be due that no
	// plan is made for.
	overduePause = 100 * time.Millisecond
)

// stepper is sched.Scheduler as the loop needs it.
type stepper interface {
	Step(nowUnixNano int64, decisions int) *sched.Plan
	Refused(p *sched.Plan, refusals []fsm.PlanRefusal)
	Settle(p *sched.Plan)
	Unsettled() int
	Behind() bool
}

// scheduleLoop makes plans and proposes them without waiting for one to commit
// before the next is made, until ctx ends. It steps when the state changed, a
// plan was settled or a backoff ended, and otherwise sleeps.
type scheduleLoop struct {
	scheduler stepper
	state     *fsm.State
	clock     *clock.Clock
	// propose gives a plan to the log; plans enter it in the order of these
	// calls. wait returns when the plan's outcome is known, or ctx ends.
	propose func(p *sched.Plan) (wait planOutcome, err error)
	observe func(p *sched.Plan, took time.Duration)
	tell    func() // of what the scheduler has to tell after a step
	log     hclog.Logger
	guard   guard.Func // of what goes on beside the loop; nil: there is none

	done  chan settled  // capacity maxPlans
	limit int           // of the next plan's weight, by what the log takes
	cost  raftnode.Cost // of what plans do
	said  string        // the last warning
	pause <-chan time.Time
}

// settled is a plan whose outcome is known.
type settled struct {
	plan   *sched.Plan
	result fsm.PlanResult
	err    error
}

// errUntold is of an outcome that is not known, for to wait for it panicked.
var errUntold = errors.New("what came of it is not known, by a mistake of Berth's, which its log tells")

// planOutcome waits until a plan's outcome is known: what became of its
// decisions, or why the plan was not applied for certain.
type planOutcome func(ctx context.Context) (result fsm.PlanResult, err error)

// schedule runs the scheduler while ctx lasts.
func (s *Server) schedule(ctx context.Context) {
	scheduler := sched.New(s.state)
	l := &scheduleLoop{
		scheduler: scheduler, state: s.state, clock: s.node.Clock(), propose: s.proposePlan,
		observe: s.metrics.observeStep, tell: func() { s.tellOfScheduler(scheduler) }, log: s.log, guard: s.guard,
	}
	l.run(ctx)
}

// tellOfScheduler tells what panicked in decisions, and what the scheduler and
// the state machine do not agree on.
func (s *Server) tellOfScheduler(scheduler *sched.Scheduler) {
	for _, p := range scheduler.Panics() {
		if p.Pod != "" {
			s.panics.note("decision", p.Pod, p.Value, p.Stack)
		} else {
			s.panics.note("view", p.Row, p.Value, p.Stack)
		}
	}
	for _, d := range scheduler.Disagreements() {
		s.metrics.disagreements.Inc()
		s.log.Warn("the state machine refuses a decision again and again: what the scheduler knows is read anew",
			"pod", d.Pod, "node", d.Node, "reason", d.Reason, "times", d.Times)
	}
}

func (l *scheduleLoop) run(ctx context.Context) {
	l.done, l.limit, l.cost = make(chan settled, maxPlans), stepWeight, raftnode.UsualCost
	changed, stop := signalChanges(ctx, l.guard.Or(), l.state.Feed())
	defer stop()
	for ctx.Err() == nil {
		now := l.clock.NowUnixNano()
		if plan := l.step(now); plan != nil {
			l.send(ctx, plan)
			continue
		}
		if l.mayStep() && l.scheduler.Behind() {
			l.takeSettled()
			continue
		}
		select {
		case <-ctx.Done():
		case d := <-l.done:
			l.settle(d)
		case <-changed:
		case <-l.wake(now):
		case <-l.pause:
			l.pause = nil
		}
	}
	for l.scheduler.Unsettled() > 0 {
		l.scheduler.Settle((<-l.done).plan)
	}
}

// step makes the next plan, if one may be made and there is anything to decide.
func (l *scheduleLoop) step(nowUnixNano int64) *sched.Plan {
	if !l.mayStep() {
		return nil
	}
	began := time.Now()
	plan := l.scheduler.Step(nowUnixNano, l.most())
	if plan != nil || l.scheduler.Behind() {
		l.observe(plan, time.Since(began))
	}
	l.tell()
	return plan
}

// most is what the next plan may weigh. What costs more than a plan may would
// be deferred, and decided again.
func (l *scheduleLoop) most() int {
	return max(1, min(l.limit, int(fsm.MaxPlanWork/l.cost)))
}

func (l *scheduleLoop) mayStep() bool {
	return l.pause == nil && l.scheduler.Unsettled() < maxPlans
}

// takeSettled takes what is settled by now, one plan at most.
func (l *scheduleLoop) takeSettled() {
	select {
	case d := <-l.done:
		l.settle(d)
	default:
	}
}

// send proposes a plan and takes what is settled by now.
func (l *scheduleLoop) send(ctx context.Context, plan *sched.Plan) {
	wait, err := l.propose(plan)
	if err != nil {
		l.settle(settled{plan: plan, err: err})
		return
	}
	go func() {
		var result fsm.PlanResult
		err := l.guard.Or().Call("plan's outcome", errUntold, func() (err error) {
			result, err = wait(ctx)
			return err
		})
		l.done <- settled{plan, result, err}
	}()
	l.takeSettled()
}

// settle ends a plan. After one that the log did not take there is a pause, or
// the same plan would be made again at once; one that was too large comes in
// parts.
func (l *scheduleLoop) settle(d settled) {
	if d.err == nil {
		l.scheduler.Refused(d.plan, d.result.Refused)
	}
	l.scheduler.Settle(d.plan)
	if d.err == nil {
		l.limit, l.said = min(2*l.limit, stepWeight), ""
		if d.result.Weight > 0 {
			l.cost = l.cost.After(d.result.Weight, d.result.Work)
		}
		return
	}
	if errors.Is(d.err, raftnode.ErrTooLarge) {
		l.limit = max(1, d.plan.Weight/2)
	}
	l.pause = time.After(planPause)
	if text := d.err.Error(); text != l.said {
		l.said = text
		l.log.Warn("a plan was not applied for certain", "decisions", d.plan.Decisions, "error", d.err)
	}
}

// wake fires when the next backoff ends. What was due when the last step was
// made waits for the plans that are under way.
func (l *scheduleLoop) wake(steppedUnixNano int64) <-chan time.Time {
	at, ok := l.state.View().NextBackoffUnixNano()
	switch {
	case !ok:
		return nil
	case at > steppedUnixNano:
		return time.After(max(l.clock.Until(at), time.Millisecond))
	case l.scheduler.Unsettled() > 0 || l.pause != nil:
		return nil
	}
	return time.After(overduePause)
}

// signalChanges puts a token into the channel whenever the state has changed.
func signalChanges(ctx context.Context, g guard.Func, feed *store.Feed) (changed <-chan struct{}, stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	finished, tokens := make(chan struct{}), make(chan struct{}, 1)
	at := feed.Last() // before the first step looks at the state
	go func() {
		defer close(finished)
		g.Keep(ctx, "changes", func(ctx context.Context) {
			for feed.Wait(ctx, at) == nil {
				at = feed.Last()
				select {
				case tokens <- struct{}{}:
				default:
				}
			}
		})
	}()
	return tokens, func() { cancel(); <-finished }
}

// proposePlan gives a plan to the log.
func (s *Server) proposePlan(plan *sched.Plan) (wait planOutcome, err error) {
	future, err := s.node.ProposeAsync(fsm.Proposal{User: systemUser, Groups: systemGroups, Command: plan.Command})
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) (result fsm.PlanResult, err error) {
		rs, _, err := future.Wait(ctx)
		if err != nil {
			return result, err
		}
		if rs[0].Plan != nil {
			result = *rs[0].Plan
			s.metrics.observePlan(plan.Command, rs[0].Plan)
			for _, refused := range result.Refused {
				s.log.Debug("a decision was refused", "pod", refused.Key, "reason", refused.Reason)
			}
		}
		return result, rs[0].Err()
	}, nil
}
