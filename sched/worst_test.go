package sched

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/berth-dev/berth/api/berthv1"
	"github.com/berth-dev/berth/sched/clustertest"
)

// The worst cases for one step. Each benchmark tells the longest step of a life (worst-ms), how many there were, and
// what they took in all. They were found by hostile reading.

// worst drives a scheduler, plan after plan, until nothing is left to decide or so many pods were decided.
func (h *harness) worst(b *testing.B, decisions int) {
	h.sched.followAll()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var longest, all time.Duration
	steps, decided := 0, 0
	var worstUnit float64
	for decided < decisions {
		from := threadTime()
		p := h.sched.Step(h.NowUnixNano, 1024)
		took := threadTime() - from
		longest, all = max(longest, took), all+took
		if took > 5*time.Millisecond {
			worstUnit = max(worstUnit, float64(took.Nanoseconds())/float64(stepWork-h.sched.meter.left))
		}
		steps++
		if p == nil {
			if h.sched.Behind() {
				continue
			}
			break
		}
		decided += p.Decisions
		h.commit(p)
	}
	b.ReportMetric(float64(longest.Microseconds())/1000, "worst-ms")
	b.ReportMetric(all.Seconds(), "all-s")
	b.ReportMetric(worstUnit, "ns/unit")
	b.ReportMetric(float64(steps), "steps")
	b.ReportMetric(float64(decided), "decisions")
}

// zoned makes nodes in so many zones.
func (h *harness) zoned(nodes, zones int, more string) {
	for i := range nodes {
		h.PutNode(clustertest.Node(fmt.Sprintf("node-%d cpu=32 mem=64Gi pods=110 label=%s=node-%d label=%s=zone-%d %s", i, hostKey, i,
			zoneKey, i%zones, more)))
	}
}

// fill binds pods to every node.
func (h *harness) fill(nodes, each int, spec string) {
	for i := range nodes {
		for j := range each {
			h.AdmitPod(clustertest.Pod(fmt.Sprintf("low-%d-%d node=node-%d start=%d %s", i, j, i, 1+(i*7+j*13)%997, spec)))
		}
	}
}

// BenchmarkWorstRules: preemptors with rules about each other, on nodes that are full.
func BenchmarkWorstRules(b *testing.B) {
	for _, terms := range []string{
		"far=" + hostKey + ":app=A", "far=" + zoneKey + ":app=B", "spread=" + zoneKey + ":1:app=A",
		"spread=" + hostKey + ":1:app=A",
		"near=" + zoneKey + ":app=low", "far=" + hostKey + ":app=low",
	} {
		b.Run(terms[:strings.Index(terms, "=")]+"-"+terms[strings.Index(terms, "/")+1:], func(b *testing.B) {
			for b.Loop() {
				h := newHarness()
				h.zoned(benchNodes, 10, "")
				h.fill(benchNodes, 4, "priority=0 cpu=8 mem=8Gi label=app=low")
				for i := range 200 {
					h.AdmitPod(clustertest.Pod(fmt.Sprintf("high%d priority=%d cpu=%d label=app=A %s", i, 100+i%3, 4+i%7, terms)))
				}
				h.worst(b, 200)
			}
		})
	}
}

// BenchmarkWorstShapes: thousands of shapes wait, none like another.
func BenchmarkWorstShapes(b *testing.B) {
	for _, c := range []struct{ name, fill, pod string }{
		{"bound", "", "cpu=%dm mem=10Mi"},
		{"hopeless", "", "cpu=%dm mem=100Gi"},
		{"preempting", "priority=0 cpu=8 mem=8Gi", "priority=100 cpu=%dm mem=1Gi"},
		{"rules", "", "cpu=%dm label=app=x far=" + hostKey + ":app=x"},
	} {
		b.Run(c.name, func(b *testing.B) {
			for b.Loop() {
				h := newHarness()
				h.zoned(2*benchNodes, 10, "")
				if c.fill != "" {
					h.fill(2*benchNodes, 4, c.fill)
				}
				for i := range 1000 {
					h.AdmitPod(clustertest.Pod(fmt.Sprintf("p%d "+c.pod, i, 1000+i)))
				}
				h.worst(b, 1000)
			}
		})
	}
}

// BenchmarkWorstNode: one node, or a few, with thousands of pods of as many kinds, and budgets that cover them.
func BenchmarkWorstNode(b *testing.B) {
	for _, c := range []struct {
		name    string
		nodes   int
		pods    int
		levels  int
		budgets int
	}{{"alike", 1, 5000, 1, 0}, {"levels", 1, 5000, 5000, 0}, {"budgets", 1, 5000, 50, 60}, {"many", 200, 500, 50, 20}} {
		b.Run(c.name, func(b *testing.B) {
			for b.Loop() {
				h := newHarness()
				for i := range c.nodes {
					h.PutNode(clustertest.Node(fmt.Sprintf("node-%d cpu=%d mem=64Gi pods=8000", i, c.pods)))
				}
				for i := range c.budgets {
					h.PutBudget([]string{fmt.Sprintf("b%d", i), fmt.Sprintf("app=a%d", i), "min=1"})
				}
				for i := range c.nodes {
					for j := range c.pods {
						h.AdmitPod(clustertest.Pod(fmt.Sprintf("low-%d-%d node=node-%d start=%d ready priority=%d cpu=%dm mem=%dMi label=app=a%d",
							i, j, i, 1+j%997, j%c.levels, 500+(j*j)%499, 1+j%11, j%max(c.budgets, 1))))
					}
				}
				for i := range 20 {
					h.AdmitPod(clustertest.Pod(fmt.Sprintf("high%d priority=10000 cpu=%dm mem=%dMi", i, c.pods*900+i, 5000+i)))
				}
				h.worst(b, 20)
			}
		})
	}
}

// BenchmarkWorstReserve: the pods that room would be kept for are many, and every node has pods with deadlines.
func BenchmarkWorstReserve(b *testing.B) {
	for b.Loop() {
		h := newHarness()
		h.Configure(func(s *berthv1.SchedulerConfigurationSpec) { s.Reservation.AfterSeconds = new(int32(1)) })
		h.zoned(2*benchNodes, 10, "")
		h.fill(2*benchNodes, 8, "priority=10 cpu=4 mem=1Gi deadline=1000")
		for i := range 2 * maxBlocked {
			h.AdmitPod(clustertest.Pod(fmt.Sprintf("large%d cpu=%dm mem=65Gi", i, 20_000+i)))
		}
		h.worst(b, 1000)
		h.NowUnixNano += 100 * second
		for i := range 20 {
			h.AdmitPod(clustertest.Pod(fmt.Sprintf("small%d priority=1 cpu=1m", i)))
			h.worst(b, 1)
		}
		h.worst(b, 1)
	}
}

// BenchmarkWorstSearched: worlds that the search for the worst found, each with what happened before its longest step.
// They have a twentieth of the nodes that are the goal.
func BenchmarkWorstSearched(b *testing.B) {
	plain := worstPlan{
		Nodes: 500, Zones: 50, NodeLabels: 4, Each: 10, Kinds: 1000, Levels: 300, Waiting: 1000, Shapes: 1000, Ask: 2,
		SearchLimit: 1000, OtherNodes: 3,
	}
	with := func(change func(p *worstPlan)) worstPlan {
		p := plain
		change(&p)
		return p
	}
	for _, c := range []struct {
		name   string
		plan   worstPlan
		events []string
	}{
		{"shapes", plain, []string{"leader", "reload", "budget", "gone"}},
		{"terms", with(func(p *worstPlan) { p.WaitingRules = worstRules{Affinity: 1, Preferred: 60} }),
			[]string{"leader", "relabel-pods"}},
		{"rules", with(func(p *worstPlan) { p.WaitingRules = worstRules{Anti: 4, Spread: 4, Key: 1, About: 1} }),
			[]string{"leader", "gone", "disputes"}},
		{"everybody", with(func(p *worstPlan) { p.WaitingRules = worstRules{Anti: 4, Spread: 4, Key: 1, About: 2} }),
			[]string{"leader"}},
		{"hosts", with(func(p *worstPlan) { p.WaitingRules, p.Taints, p.Resources = worstRules{Anti: 64, Spread: 4}, 4, 28 }),
			[]string{"leader", "taint", "relabel"}},
		{"budgets", with(func(p *worstPlan) { p.Nodes, p.Budgets, p.AnyBudget, p.Strict = 200, 64, true, true }),
			[]string{"leader", "budgets"}},
		{"ports", with(func(p *worstPlan) {
			p.Nodes, p.Crowd, p.Crowded, p.Ports, p.Waiting, p.Shapes = 10, 100, 1, 100, 100, 100
		}), []string{"leader", "gone"}},
		{"large-pods", with(func(p *worstPlan) {
			p.Containers, p.Images, p.NodeTerms, p.Tolerations, p.Waiting, p.Shapes = 128, 10, 64, 128, 100, 100
		}), []string{"leader", "reload"}},
		{"volumes", with(func(p *worstPlan) { p.Each, p.Volumes = 0, worstVolumes{Free: 10_000, Claims: 256} }),
			[]string{"leader", "volume"}},
		{"one-volume", with(func(p *worstPlan) { p.Each, p.Ask, p.Volumes = 0, 0, worstVolumes{Free: 10_000, Claims: 1} }),
			[]string{"leader", "volume"}},
		{"demands", with(func(p *worstPlan) {
			p.Each, p.Volumes = 0, worstVolumes{Free: 10_000, At: 3, Claims: 16, Demands: 16}
		}), []string{"leader", "volume"}},
		{"bound", with(func(p *worstPlan) { p.Each, p.Volumes = 0, worstVolumes{Free: 1, Claims: 256, Bound: true} }),
			[]string{"leader", "volume"}},
	} {
		var w *worstWorld
		for _, event := range c.events {
			b.Run(c.name+"/"+event, func(b *testing.B) {
				if w == nil {
					w = c.plan.build()
					w.live(b, 30)
				}
				for b.Loop() {
					w.happen(event)
					w.live(b, 30)
				}
			})
		}
	}
}

// live makes so many steps, or until there is nothing to decide, and tells the longest.
func (w *worstWorld) live(b *testing.B, steps int) {
	var longest worstCost
	for range steps {
		cost, plan := w.measure()
		if cost.Time > longest.Time {
			longest = cost
		}
		if plan != nil {
			w.Apply(plan.Command)
			w.sched.Settle(plan)
		} else if !w.sched.Behind() {
			break
		}
	}
	b.ReportMetric(float64(longest.Time.Microseconds())/1000, "worst-ms")
	b.ReportMetric(longest.perUnit(), "ns/unit")
}
