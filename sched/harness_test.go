package sched

import (
	"bytes"
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/sched/clustertest"
)

// harness is a cluster and a scheduler on it, with no log and no server: plans are applied when the test says so.
type harness struct {
	*clustertest.Cluster
	sched *Scheduler
}

const second = int64(nanosPerSecond)

func newHarness() *harness { return newHarnessOn(clustertest.New()) }

func newHarnessOn(cl *clustertest.Cluster) *harness { return &harness{cl, New(cl.State)} }

// restored is a state as a server has it that comes from a snapshot.
func restored(state *fsm.State) *fsm.State {
	var snapshot bytes.Buffer
	if err := state.View().Write(&snapshot); err != nil {
		panic(err)
	}
	out := fsm.NewState()
	if err := out.Restore(&snapshot); err != nil {
		panic(err)
	}
	return out
}

// run steps until nothing is left to decide, applying every plan, and returns the refusals.
func (h *harness) run() []fsm.PlanRefusal {
	var refused []fsm.PlanRefusal
	for plans := 0; ; plans++ {
		p := h.next(1024)
		if p == nil {
			return refused
		}
		if plans == 1000 {
			panic("the scheduler goes round in circles: " + describe(p.Command) +
				describeRefused(refused[max(0, len(refused)-3):]))
		}
		refused = append(refused, h.commit(p)...)
	}
}

// commit applies a plan and settles it.
func (h *harness) commit(p *Plan) []fsm.PlanRefusal {
	r := h.Must(p.Command)
	h.sched.Settle(p)
	return r.Plan.Refused
}

// describe writes a plan in the order of its decisions' kinds.
func describe(c *fsm.ApplyPlan) string {
	var b strings.Builder
	for _, d := range c.Reservations {
		fmt.Fprintf(&b, "reserve %s for %s\n", d.Node, d.Key)
	}
	for _, d := range c.Bindings {
		fmt.Fprintf(&b, "bind %s -> %s\n", d.Key, d.Node)
	}
	for _, d := range c.Preemptions {
		var victims []string
		for _, v := range d.Victims {
			name := v.Key
			if v.ViolatesBudget {
				name += " (violates a budget)"
			}
			victims = append(victims, name)
		}
		fmt.Fprintf(&b, "preempt for %s on %s: %s\n", d.Key, d.Node, strings.Join(victims, ", "))
		if !d.Minimal {
			fmt.Fprintf(&b, "  not proven minimal within %d steps\n", d.SearchLimit)
		}
		if a := d.Alternatives; a != nil && a.RunnerUp != "" {
			fmt.Fprintf(&b, "  %d candidates of %d nodes; before %s by %s\n", a.Candidates, a.NodesConsidered, a.RunnerUp,
				a.DecidedBy)
		}
	}
	for _, d := range c.Failures {
		for _, ref := range d.Pods {
			if d.SetAside != nil {
				fmt.Fprintf(&b, "set aside %s: %s\n", ref.Key, d.SetAside.Message)
				continue
			}
			fmt.Fprintf(&b, "unschedulable %s: %s\n", ref.Key, d.Diagnosis.Message)
		}
	}
	return b.String()
}

// explainAll is Explain for whoever waits for as long as it takes.
func explainAll(state *fsm.View, pod *corev1.Pod) []NodeVerdict {
	out, err := Explain(context.Background(), state, pod, nil)
	if err != nil {
		panic(err)
	}
	return out
}

// next makes the next plan, by as many steps as that takes.
func (h *harness) next(most int) *Plan { return clustertest.Next(h.sched, h.NowUnixNano, most) }

// followAll brings the view up to the newest state, whatever work that is.
func (s *Scheduler) followAll() {
	s.lookAway()
	s.seen.state = s.state.View()
	s.meter.boundless = true
	s.follow()
	s.meter.boundless = false
	s.seen = glimpse{}
}
