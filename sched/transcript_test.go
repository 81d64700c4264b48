package sched

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/api/berthv1"
	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/sched/clustertest"
)

// TestTranscripts replays testdata/*.txt; -rewrite regenerates what the system answers. The verbs are in transcript.
func TestTranscripts(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		if !strings.HasSuffix(path, ".txt") {
			return // what rapid keeps of a failure
		}
		s := &transcript{harness: newHarness(), held: map[string]*Plan{}}
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			return s.do(t, d)
		})
	})
}

type transcript struct {
	*harness
	held map[string]*Plan
}

func (s *transcript) do(t *testing.T, d *datadriven.TestData) string {
	switch d.Cmd {
	case "new": // forget everything
		s.harness = newHarness()
		return "ok"
	case "cluster": // one node, pod or other object a line
		if err := s.Put(d.Input); err != nil {
			return err.Error()
		}
		return "ok"
	case "step": // step [max=N] [keep=NAME] [scores]: decide; apply and settle the plan, or keep it under way
		return s.stepPlan(d)
	case "apply": // apply NAME: the kept plan is committed
		return s.settle(d.CmdArgs[0].Key, true)
	case "lose": // lose NAME: the kept plan never gets into the log
		return s.settle(d.CmdArgs[0].Key, false)
	case "gone": // gone KEY...: pods leave their node; without keys all that are ending
		if len(d.CmdArgs) == 0 {
			s.Confirm()
		}
		for _, a := range d.CmdArgs {
			s.Remove(a.Key)
		}
		return "ok"
	case "delete": // delete KEY...: pods begin to end
		for _, a := range d.CmdArgs {
			s.Must(&fsm.DeletePod{Key: a.Key})
		}
		return "ok"
	case "ready", "unready": // ready KEY...
		for _, a := range d.CmdArgs {
			s.Report(a.Key, d.Cmd == "ready")
		}
		return "ok"
	case "remove-budget":
		s.Must(&fsm.DeleteDisruptionBudget{Namespace: "default", Name: d.CmdArgs[0].Key})
		return "ok"
	case "remove-node":
		s.Must(&fsm.DeleteNode{Name: d.CmdArgs[0].Key})
		return "ok"
	case "wait": // wait SECONDS
		n, err := strconv.Atoi(d.CmdArgs[0].Key)
		if err != nil {
			t.Fatal(err)
		}
		s.NowUnixNano += int64(n) * second
		return "ok"
	case "config":
		s.Configure(func(spec *berthv1.SchedulerConfigurationSpec) {
			for _, a := range d.CmdArgs {
				on := func() *bool {
					is := a.Vals[0] == "on"
					return &is
				}
				number := func() *int32 {
					n, err := strconv.ParseInt(a.Vals[0], 10, 32)
					if err != nil {
						t.Fatal(err)
					}
					out := int32(n)
					return &out
				}
				switch a.Key {
				case "preemption":
					spec.Preemption.Enabled = on()
				case "system-budgets":
					spec.Preemption.SystemClassBudgets = berthv1.BudgetPolicy(a.Vals[0])
				case "search-limit":
					spec.Preemption.SearchLimit = number()
				case "other-nodes":
					spec.Preemption.MaxOtherNodes = number()
				case "aging":
					spec.Aging.SecondsPerPoint = number()
				case "reservation":
					spec.Reservation.Enabled = on()
				case "reserve-after":
					spec.Reservation.AfterSeconds = number()
				case "budgets":
					spec.Preemption.Budgets = berthv1.BudgetPolicy(a.Vals[0])
				case "queue":
					spec.Queue = berthv1.QueueOrder(a.Vals[0])
				case "defaulting":
					spec.PodTopologySpread.DefaultingType = berthv1.SpreadDefaulting(a.Vals[0])
				case "hardPodAffinityWeight":
					spec.HardPodAffinityWeight = number()
				case "constraint": // as spread=, with - for the selector
					for _, word := range a.Vals {
						c, err := clustertest.Constraint(word)
						if err != nil {
							t.Fatal(err)
						}
						spec.PodTopologySpread.DefaultConstraints = append(spec.PodTopologySpread.DefaultConstraints, c)
					}
				case "profile": // profile=(NAME,PLUGIN:WEIGHT,...)
					p := berthv1.SchedulerProfile{SchedulerName: a.Vals[0],
						Plugins: berthv1.ProfilePlugins{Weights: map[string]int32{}}}
					for _, word := range a.Vals[1:] {
						plugin, weight, _ := strings.Cut(word, ":")
						n, _ := strconv.Atoi(weight)
						p.Plugins.Weights[plugin] = int32(n)
					}
					spec.Profiles = append(spec.Profiles, p)
				}
			}
		})
		return "ok"
	case "restart": // a new leader: nothing but the state is left
		s.sched = New(s.State)
		clear(s.held)
		return "ok"
	case "order":
		var b strings.Builder
		s.State.View().InOrder(func(position int32, e *fsm.QueueEntry) bool {
			fmt.Fprintf(&b, "%d %s\n", position, e.Key())
			return true
		})
		return b.String()
	case "queue":
		return s.DescribeQueue()
	case "pods":
		return s.placed()
	case "why":
		return s.why(t, d.CmdArgs[0].Key)
	}
	t.Fatalf("unknown verb %s", d.Cmd)
	return ""
}

func (s *transcript) stepPlan(d *datadriven.TestData) string {
	limit, keep, scores := 1024, "", false
	for _, a := range d.CmdArgs {
		switch a.Key {
		case "keep":
			keep = a.Vals[0]
		case "max":
			limit, _ = strconv.Atoi(a.Vals[0])
		case "scores":
			scores = true
		}
	}
	p := s.next(limit)
	if p == nil {
		return "nothing to decide"
	}
	out := describe(p.Command)
	for _, d := range p.Command.Bindings {
		if scores {
			out += fmt.Sprintf("  %s: score %d, %d fit, next %s\n", d.Key, d.Score, d.Feasible, cmp.Or(d.RunnerUp, "none"))
		}
	}
	if keep != "" {
		s.held[keep] = p
		return out
	}
	return out + describeRefused(s.commit(p))
}

func (s *transcript) settle(name string, committed bool) string {
	p := s.held[name]
	delete(s.held, name)
	if !committed {
		s.sched.Settle(p)
		return "ok"
	}
	if out := describeRefused(s.commit(p)); out != "" {
		return out
	}
	return "ok"
}

func describeRefused(refused []fsm.PlanRefusal) string {
	var b strings.Builder
	for _, r := range refused {
		fmt.Fprintf(&b, "refused %s: %s\n", r.Key, r.Reason)
	}
	return b.String()
}

func (s *transcript) placed() string {
	var b strings.Builder
	s.State.View().Pods.Scan("", func(key string, p *corev1.Pod) bool {
		if p.Spec.NodeName != "" {
			fmt.Fprintf(&b, "%s on %s", key, p.Spec.NodeName)
			if p.DeletionTimestamp != nil {
				b.WriteString(", ending")
			}
			b.WriteString("\n")
		}
		return true
	})
	return b.String()
}

func (s *transcript) why(t *testing.T, key string) string {
	pod, ok := s.State.View().Pods.Get(key)
	if !ok {
		t.Fatalf("no pod %s", key)
	}
	var b strings.Builder
	for _, v := range explainAll(s.State.View(), pod) {
		fmt.Fprintf(&b, "%s:", v.Node)
		if len(v.Reasons) == 0 {
			b.WriteString(" fits")
		}
		for i, r := range v.Reasons {
			if i > 0 {
				b.WriteString(";")
			}
			b.WriteString(" " + r.Explain() + describeBlockers(r.Blockers))
		}
		if v.Preemption != "" {
			b.WriteString(" | " + strings.TrimSpace(v.Preemption+" "+strings.Join(append(v.Victims, v.Ending...), ", ")))
		}
		b.WriteString("\n")
	}
	return b.String()
}

// describeBlockers names who is in the way.
func describeBlockers(blockers []*Blockers) string {
	var b strings.Builder
	for _, c := range blockers {
		var names []string
		for _, p := range c.Pods {
			name := p.Key
			if p.Node != c.Value {
				name += " on " + p.Node
			}
			if p.Nominated {
				name = "nominated " + name
			}
			if p.Ending {
				name = "ending " + name
			}
			names = append(names, name)
		}
		fmt.Fprintf(&b, " [%s]", strings.Join(names, ", "))
	}
	return b.String()
}
