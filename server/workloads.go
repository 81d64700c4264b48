package server

import (
	"context"
	"slices"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/berth-dev/berth/clock"
	"github.com/berth-dev/berth/controller"
	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/guard"
	"github.com/berth-dev/berth/store"
)

const (
	// worksAtOnce bounds what one reconciler has under way.
	worksAtOnce = 32
	// changesAtOnce is how many changes a reconciler is told of at a time.
	changesAtOnce = 4096
	// workPause is how long nothing is proposed after the log has refused
	// something: it is full, or this server leads no longer.
	workPause = 50 * time.Millisecond
)

// reconciler is what the controllers of workloads have in common.
type reconciler interface {
	// Reset starts from a view; Observe is told of every change after it.
	Reset(v *fsm.View)
	Observe(v *fsm.View, changes []store.Change)
	// Step says what is to be proposed now; Settle hears what became of it.
	Step(v *fsm.View, nowUnixNano int64, most int) []controller.Work
	Settle(v *fsm.View, o controller.Outcome, nowUnixNano int64)
	// Pending: there is more to do at once; NextUnixNano: at a time.
	Pending() bool
	NextUnixNano() (int64, bool)
}

// ReplicaSetController is the name of the controller of ReplicaSets, which is Berth's own.
const ReplicaSetController = "replicaset"

// keepWorkloads runs the controllers of workloads while ctx lasts.
func (s *Server) keepWorkloads(ctx context.Context) {
	l := &workLoop{state: s.state, clock: s.node.Clock(), propose: s.proposeWork, log: s.log, asks: s.asksOthers, ask: s.askOthers, guard: s.guard}
	keeps := []reconciler{&controller.Garbage{}}
	if !slices.Contains(s.config.ControllersOff, ReplicaSetController) {
		keeps = append(keeps, &controller.ReplicaSets{Finish: s.api.FinishTemplate})
	}
	l.run(ctx, keeps...)
}

// workLoop lets reconcilers follow the state and proposes what they want,
// without waiting for one thing to commit before the next is looked at.
type workLoop struct {
	state   *fsm.State
	clock   *clock.Clock
	propose func(w controller.Work) (wait func(ctx context.Context) ([]fsm.Result, error), err error)
	log     hclog.Logger
	// asks says whether others are to be asked about a work before it is proposed, ask does so, and
	// proposes what they take. nil: nobody is asked.
	asks func(w controller.Work) bool
	ask  func(ctx context.Context, w controller.Work) ([]fsm.Result, error)
	// guard is about what goes on beside the loop: a question, an outcome. nil: there is none.
	guard guard.Func

	asking  map[string]int // works that others are asked about, by namespace
	at      int64          // the revision up to which the reconcilers know everything
	members []*member
	done    chan finishedWork
	pause   <-chan time.Time
	said    string
}

// member is a reconciler with the number of its works under way.
type member struct {
	reconciler
	underWay int
	asked    int // works that others are asked about
}

type finishedWork struct {
	by    *member
	o     controller.Outcome
	asked bool
}

func (l *workLoop) run(ctx context.Context, rs ...reconciler) {
	l.done = make(chan finishedWork, len(rs)*(worksAtOnce+worksAsked))
	for _, r := range rs {
		l.members = append(l.members, &member{reconciler: r})
	}
	changed, stop := signalChanges(ctx, l.guard.Or(), l.state.Feed())
	defer stop()
	l.reset()
	for ctx.Err() == nil {
		v := l.follow()
		if more := l.step(ctx, v, l.clock.NowUnixNano()); more {
			l.drain()
			continue
		}
		select {
		case <-ctx.Done():
		case f := <-l.done:
			l.settle(f)
			l.drain()
		case <-changed:
		case <-l.timer():
		case <-l.pause:
			l.pause = nil
		}
	}
	for _, m := range l.members {
		for m.underWay+m.asked > 0 {
			l.count(<-l.done)
		}
	}
}

func (l *workLoop) reset() {
	v := l.state.View()
	l.at = v.Revision()
	for _, m := range l.members {
		m.Reset(v)
	}
}

// follow tells the reconcilers what has changed, and gives a view that has all
// of it.
func (l *workLoop) follow() *fsm.View {
	for {
		changes, err := l.state.Feed().After(l.at, changesAtOnce)
		switch {
		case err != nil: // too far behind, or the state was restored
			l.reset()
			continue
		case len(changes) == 0:
			return l.state.View()
		}
		l.at = changes[len(changes)-1].Revision
		v := l.state.View()
		for _, m := range l.members {
			m.Observe(v, changes)
		}
	}
}

// step proposes what the reconcilers want; more: they want more at once.
func (l *workLoop) step(ctx context.Context, v *fsm.View, nowUnixNano int64) (more bool) {
	for _, m := range l.members {
		room := worksAtOnce - m.underWay
		if l.pause != nil || room <= 0 {
			continue
		}
		for _, w := range m.Step(v, nowUnixNano, room) {
			m.underWay++
			w.Seen = l.at
			l.send(ctx, m, w)
		}
		more = more || m.Pending() && m.underWay < worksAtOnce && l.pause == nil
	}
	return more
}

func (l *workLoop) send(ctx context.Context, m *member, w controller.Work) {
	if l.asks != nil && l.asks(w) {
		l.sendAsked(ctx, m, w)
		return
	}
	wait, err := l.propose(w)
	if err != nil {
		l.settle(finishedWork{by: m, o: controller.Outcome{Work: w, Err: err}})
		return
	}
	go func() {
		var results []fsm.Result
		err := l.guard.Or().Call("controllers/outcome", errUntold, func() (err error) {
			results, err = wait(ctx)
			return err
		})
		l.done <- finishedWork{by: m, o: controller.Outcome{Work: w, Results: results, Err: err}}
	}()
}

// drain settles what is finished by now.
func (l *workLoop) drain() {
	for {
		select {
		case f := <-l.done:
			l.settle(f)
		default:
			return
		}
	}
}

func (l *workLoop) settle(f finishedWork) {
	l.count(f)
	f.by.Settle(l.state.View(), f.o, l.clock.NowUnixNano())
	if f.o.Err == nil {
		l.said = ""
		for i, r := range f.o.Results {
			if r.Refused() {
				l.log.Debug("a workload's command was refused", "for", f.o.Work.For, "command", i, "reason", r.Message)
			}
		}
		return
	}
	l.pause = time.After(workPause)
	if text := f.o.Err.Error(); text != l.said {
		l.said = text
		l.log.Warn("what the controllers of workloads want was not done for certain", "for", f.o.Work.For, "error", f.o.Err)
	}
}

// count: a work is not under way any more.
func (l *workLoop) count(f finishedWork) {
	if !f.asked {
		f.by.underWay--
		return
	}
	f.by.asked--
	namespace := namespaceOf(f.o.Work)
	if l.asking[namespace]--; l.asking[namespace] == 0 {
		delete(l.asking, namespace)
	}
}

// timer fires when a reconciler has something to do by the passage of time.
func (l *workLoop) timer() <-chan time.Time {
	var at int64
	for _, m := range l.members {
		if next, ok := m.NextUnixNano(); ok && (at == 0 || next < at) {
			at = max(next, 1)
		}
	}
	if at == 0 || l.pause != nil {
		return nil
	}
	return time.After(max(l.clock.Until(at), time.Millisecond))
}

// proposeWork gives a work to the log.
func (s *Server) proposeWork(w controller.Work) (wait func(ctx context.Context) ([]fsm.Result, error), err error) {
	entered, err := s.enter(true, s.decided(w.Seen, w.Commands...))
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) ([]fsm.Result, error) {
		rs, _, err := entered.Wait(ctx)
		return rs, err
	}, nil
}
