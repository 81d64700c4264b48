package server

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/raftnode"
	"github.com/berth-dev/berth/sched"
)

// fakeScheduler makes a plan of so many decisions at each of its next steps.
type fakeScheduler struct {
	mu        sync.Mutex
	plans     []int
	steps     int
	limits    []int
	unsettled int
	settled   int
}

func (f *fakeScheduler) Step(_ int64, limit int) *sched.Plan {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.steps++
	if len(f.plans) == 0 {
		return nil
	}
	n := min(f.plans[0], limit)
	if f.plans[0] -= n; f.plans[0] == 0 {
		f.plans = f.plans[1:]
	}
	f.limits = append(f.limits, limit)
	f.unsettled++
	return &sched.Plan{Command: &fsm.ApplyPlan{}, Decisions: n, Weight: n}
}

func (f *fakeScheduler) Settle(*sched.Plan) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.unsettled--
	f.settled++
}

func (f *fakeScheduler) Refused(*sched.Plan, []fsm.PlanRefusal) {}

func (f *fakeScheduler) Behind() bool { return false }

func (f *fakeScheduler) Unsettled() int { return f.now().unsettled }

// now is a copy of what has happened so far.
func (f *fakeScheduler) now() (c struct{ steps, unsettled, settled, left int }) {
	f.mu.Lock()
	defer f.mu.Unlock()
	c.steps, c.unsettled, c.settled, c.left = f.steps, f.unsettled, f.settled, len(f.plans)
	return c
}

// fakeLog takes plans, or not.
type fakeLog struct {
	mu      sync.Mutex
	err     error
	largest int           // 0: any
	cost    int64         // of a decision; 0: a plan does nothing
	outcome chan struct{} // a plan's outcome is known when it gives one; nil: at once
	taken   int
	broken  int // of so many plans to wait for the outcome panics
}

func (l *fakeLog) propose(p *sched.Plan) (planOutcome, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil {
		return nil, l.err
	}
	if l.largest > 0 && p.Weight > l.largest {
		return nil, fmt.Errorf("a plan: %w", raftnode.ErrTooLarge)
	}
	l.taken++
	var result fsm.PlanResult
	if l.cost > 0 {
		result.Weight = min(p.Weight, int(fsm.MaxPlanWork/l.cost)+1)
		result.Work = int64(result.Weight) * l.cost
	}
	broken := l.taken <= l.broken
	return func(ctx context.Context) (fsm.PlanResult, error) {
		if broken {
			panic("the outcome breaks")
		}
		if l.outcome == nil {
			return result, nil
		}
		select {
		case <-l.outcome:
			return result, nil
		case <-ctx.Done():
			return result, ctx.Err()
		}
	}, nil
}

func (l *fakeLog) refuse(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.err = err
}

func (l *fakeLog) proposed() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.taken
}

// runSchedule starts a loop in the present bubble; stop ends it.
func runSchedule(scheduler stepper, log *fakeLog, state *fsm.State) (stop func()) {
	l := &scheduleLoop{
		scheduler: scheduler, state: state, clock: runningClock(), propose: log.propose,
		observe: func(*sched.Plan, time.Duration) {}, tell: func() {}, log: hclog.NewNullLogger(), guard: quiet,
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		l.run(ctx)
	}()
	synctest.Wait()
	return func() { cancel(); <-ended }
}

// applyTo carries out a command at the bubble's time.
func applyTo(t *testing.T, s *fsm.State, c fsm.Command) {
	t.Helper()
	entry, err := fsm.EncodeEntry(fsm.Header{Version: fsm.LogVersion, TimeUnixNano: time.Now().UnixNano()}, []fsm.Proposal{{User: "test", Command: c}})
	if err != nil {
		t.Fatal(err)
	}
	rs, err := s.Apply(s.View().Index()+1, 1, entry)
	if err == nil {
		err = rs[0].Err()
	}
	if err != nil {
		t.Fatal(err)
	}
}

// pass lets time of the bubble pass.
func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func addNamespace(t *testing.T, s *fsm.State, name string) {
	t.Helper()
	applyTo(t, s, &fsm.PutNamespace{Create: true, Namespace: fsm.NamespaceWire{Object: &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}}})
}

// quiet is a guard that tells nobody.
func quiet(_ string, f func()) (ok bool) {
	defer func() { _ = recover() }()
	f()
	return true
}

// TestScheduleGoesOnAfterAnOutcomeThatPanics: the plan is settled as one of which it is not known what came of it.
func TestScheduleGoesOnAfterAnOutcomeThatPanics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeScheduler{plans: []int{1, 1, 1}}
		stop := runSchedule(f, &fakeLog{broken: 2}, fsm.NewState())
		pass(10 * planPause)
		if f.now().settled != 3 || f.now().unsettled != 0 {
			t.Errorf("%d plans are settled and %d not", f.now().settled, f.now().unsettled)
		}
		stop()
	})
}

func TestScheduleSleepsWhenNothingCanBeDone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		state := fsm.NewState()
		f := &fakeScheduler{}
		stop := runSchedule(f, &fakeLog{}, state)
		defer stop()
		if f.now().steps != 1 {
			t.Errorf("%d steps at the start, want 1", f.now().steps)
		}
		pass(time.Hour)
		if f.now().steps != 1 {
			t.Errorf("%d steps in an hour without a change, want 1", f.now().steps)
		}
		addNamespace(t, state, "a")
		synctest.Wait()
		if f.now().steps < 2 || f.now().steps > 3 {
			t.Errorf("%d steps after one change, want one more", f.now().steps)
		}
	})
}

func TestSchedulePlansArePipelinedAndBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeScheduler{plans: make([]int, 0, 20)}
		for range 20 {
			f.plans = append(f.plans, 10)
		}
		log := &fakeLog{outcome: make(chan struct{})}
		stop := runSchedule(f, log, fsm.NewState())
		if log.proposed() != maxPlans || f.now().unsettled != maxPlans {
			t.Errorf("%d plans are on their way, %d unsettled, want %d", log.proposed(), f.now().unsettled, maxPlans)
		}
		pass(time.Hour)
		if f.now().steps != maxPlans {
			t.Errorf("%d steps while no plan may be made, want %d", f.now().steps, maxPlans)
		}
		log.outcome <- struct{}{}
		synctest.Wait()
		if log.proposed() != maxPlans+1 {
			t.Errorf("%d plans were proposed after one was settled, want %d", log.proposed(), maxPlans+1)
		}
		stop()
		if f.now().unsettled != 0 || f.now().settled != maxPlans+1 {
			t.Errorf("leadership is lost: %d plans are settled and %d not", f.now().settled, f.now().unsettled)
		}
	})
}

func TestSchedulePausesWhenTheLogRefuses(t *testing.T) {
	for _, err := range []error{raftnode.ErrBusy, &raftnode.NotLeaderError{}, errors.New("something else")} {
		t.Run(err.Error(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := &fakeScheduler{}
				for range 1000 {
					f.plans = append(f.plans, 1)
				}
				state := fsm.NewState()
				log := &fakeLog{err: err}
				stop := runSchedule(f, log, state)
				for i := range 100 { // changes do not cut the pause short
					addNamespace(t, state, fmt.Sprintf("n%d", i))
					synctest.Wait()
				}
				pass(10*planPause - time.Millisecond)
				if f.now().steps != 10 {
					t.Errorf("%d steps in ten pauses, want 10", f.now().steps)
				}
				log.refuse(nil)
				pass(planPause)
				if f.now().unsettled != 0 || f.now().left != 0 {
					t.Errorf("%d plans are left after the log takes them again", f.now().left)
				}
				stop()
			})
		})
	}
}

func TestSchedulePlanThatIsTooLargeComesInParts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeScheduler{plans: []int{1000, 5000}}
		log := &fakeLog{largest: 300}
		stop := runSchedule(f, log, fsm.NewState())
		pass(time.Second)
		stop()
		if log.proposed() == 0 || f.limits[1] != 500 || f.limits[2] > 300 {
			t.Errorf("plans of at most %v pods were made, and %d taken", f.limits, log.proposed())
		}
	})
}

// A plan is no larger than what one plan may cost, by what the last ones did.
func TestSchedulePlanThatIsTooDearIsNotMadeAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeScheduler{plans: []int{100_000}}
		log := &fakeLog{cost: fsm.MaxPlanWork / 100}
		stop := runSchedule(f, log, fsm.NewState())
		pass(time.Second)
		stop()
		if f.limits[0] != stepWeight || slices.Max(f.limits[maxPlans+1:]) > 100 || len(f.plans) > 0 {
			t.Errorf("plans of at most %v pods were made, where one may cost as much as 100", f.limits)
		}
	})
}

// A pod that waits for its backoff is tried when it ends.
func TestScheduleWakesWhenABackoffEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		state := fsm.NewState()
		addNamespace(t, state, "default")
		until := backOff(t, state)
		f := &fakeScheduler{}
		stop := runSchedule(f, &fakeLog{}, state)
		defer stop()
		before := f.now().steps
		pass(time.Until(until) - time.Nanosecond)
		if f.now().steps != before {
			t.Errorf("%d steps before the backoff ended", f.now().steps-before)
		}
		pass(time.Millisecond)
		synctest.Wait()
		if f.now().steps != before+1 {
			t.Errorf("%d steps when the backoff ended, want 1", f.now().steps-before)
		}
		// This scheduler does not take the pod: no reason to spin.
		before = f.now().steps
		pass(10 * time.Second)
		if n := f.now().steps - before; n > int(10*time.Second/overduePause) {
			t.Errorf("%d steps for a pod that is overdue", n)
		}
	})
}

// backOff brings a pod into its backoff: an attempt failed for an error.
func backOff(t *testing.T, state *fsm.State) (until time.Time) {
	t.Helper()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p", UID: "uid-p"},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "none"}}},
	}
	applyTo(t, state, &fsm.AdmitPod{Pod: fsm.PodWire{Object: pod}})
	applyTo(t, state, &fsm.ApplyPlan{Revision: state.View().Revision(), Failures: []fsm.FailDecision{{
		Pods: []fsm.PodRef{{Key: "default/p", UID: "uid-p"}}, Error: true, Diagnosis: &fsm.Diagnosis{Message: "an error"},
	}}})
	at, ok := state.View().NextBackoffUnixNano()
	if !ok {
		t.Fatal("the pod does not back off")
	}
	return time.Unix(0, at)
}
