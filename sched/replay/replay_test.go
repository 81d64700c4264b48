package replay

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/sched"
	"github.com/berth-dev/berth/sched/clustertest"
	"github.com/berth-dev/berth/store"
)

// TestReplayFindsWhatIsNotSo: one decision of the log is another than the scheduler would have made, and the replay
// says which.
func TestReplayFindsWhatIsNotSo(t *testing.T) {
	for _, c := range []struct {
		what, pod string
		alter     func(c *fsm.ApplyPlan) bool
	}{
		{"a victim", "default/high", func(c *fsm.ApplyPlan) bool {
			if len(c.Preemptions) == 0 {
				return false
			}
			d := c.Preemptions[0]
			d.Victims = d.Victims[:1]
			c.Preemptions = []fsm.PreemptDecision{d}
			return true
		}},
		{"a runner-up", "default/low0", func(c *fsm.ApplyPlan) bool {
			if len(c.Bindings) == 0 {
				return false
			}
			c.Bindings = slices.Clone(c.Bindings)
			c.Bindings[0].RunnerUp += "0"
			return true
		}},
		{"a reservation", "default/large", func(c *fsm.ApplyPlan) bool {
			if len(c.Reservations) == 0 {
				return false
			}
			c.Reservations = slices.Clone(c.Reservations)
			c.Reservations[0].Node = "n2"
			return true
		}},
	} {
		t.Run(c.what, func(t *testing.T) {
			log := lifeWith(t, c.alter)
			r := &Replayer{State: fsm.NewState(), Log: log, Keep: 3}
			if err := r.Run(log.Last()); err != nil {
				t.Fatal(err)
			}
			if r.Report.Different != 1 || len(r.Report.Differences) != 1 || r.Report.Differences[0].Pod != c.pod {
				t.Fatalf("one decision was altered; the replay found %+v", r.Report)
			}
			if r.Report.Bindings == 0 || r.Report.Preemptions == 0 || r.Report.Failures == 0 || r.Report.Reservations == 0 {
				t.Errorf("a life without some kind of decision: %+v", r.Report)
			}
			if d := r.Report.Differences[0]; d.Recorded == d.Decided || d.Index == 0 || d.Number == 0 {
				t.Errorf("a difference that does not tell: %+v", d)
			}
		})
	}
}

// lifeWith records decisions of all kinds; the first plan that can be is altered.
func lifeWith(t *testing.T, alter func(c *fsm.ApplyPlan) bool) *clustertest.Log {
	log := &clustertest.Log{Term: 1}
	cl := clustertest.NewLogged(log)
	s := sched.New(cl.State)
	for _, n := range []string{"n1 cpu=4", "n2 cpu=2", "n3 cpu=1"} {
		cl.PutNode(clustertest.Node(n))
	}
	altered := false
	next := func() *sched.Plan { return clustertest.Next(s, cl.NowUnixNano, 4) }
	decide := func() {
		for p := next(); p != nil; p = next() {
			c := *p.Command
			altered = altered || alter(&c)
			cl.Must(&c)
			s.Settle(p)
		}
	}
	for i := range 6 {
		cl.AdmitPod(clustertest.Pod(fmt.Sprintf("low%d priority=0 cpu=1", i)))
	}
	decide()
	cl.AdmitPod(clustertest.Pod("high priority=10 cpu=2"))
	cl.AdmitPod(clustertest.Pod("huge priority=10 cpu=9"))
	cl.AdmitPod(clustertest.Pod("large priority=-1 cpu=4"))
	decide()
	cl.NowUnixNano += 400 * int64(time.Second)
	decide()
	if !altered {
		t.Fatal("there was nothing to alter")
	}
	return log
}

// TestReplayNeedsItsLog: an entry that is missing is an error, not a difference.
func TestReplayNeedsItsLog(t *testing.T) {
	l := &clustertest.Log{Term: 1}
	l.Add(1, &fsm.Checkpoint{})
	r := &Replayer{State: fsm.NewState(), Log: l}
	if err := r.Run(2); err == nil || errors.Is(err, store.ErrUnknownCommand) {
		t.Errorf("a log without entry 2: %v", err)
	}
}
