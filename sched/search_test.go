package sched

import (
	"fmt"
	"math/rand"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"github.com/berth-dev/berth/api/berthv1"
	"github.com/berth-dev/berth/model"
	"github.com/berth-dev/berth/sched/clustertest"
	"github.com/berth-dev/berth/sched/victims"
)

// oneNode draws a node with pods of several kinds, some of them ending, and a pod that wants to go there.
type oneNode struct {
	n       node
	c       *model.Class
	budgets budgetTable
}

func drawNode(t *rapid.T, most int) *oneNode {
	w := &oneNode{budgets: budgetTable{}}
	obj := clustertest.Node(fmt.Sprintf("n cpu=%d mem=%dGi a.io/gpu=4", rapid.IntRange(2, 12).Draw(t, "cpu"),
		rapid.IntRange(2, 12).Draw(t, "mem")))
	w.n = node{name: "n", obj: obj, alloc: model.Allocatable(obj)}
	pick := func(label string, of ...string) string { return rapid.SampledFrom(of).Draw(t, label) }
	for i := range rapid.IntRange(0, most).Draw(t, "pods") {
		spec := fmt.Sprintf("p%d priority=%s", i, pick("priority", "0", "0", "1", "2", "7", "-2147483648", "2000000000"))
		for _, extra := range []string{
			pick("cpu", "", " cpu=1", " cpu=2", " cpu=3"), pick("mem", "", " mem=1Gi", " mem=2Gi"),
			pick("gpu", "", "", " a.io/gpu=1"),
			pick("start", "", " start=10", " start=20", " start=30"), pick("port", "", "", "", "", "", " port=80"),
			pick("app", "", " label=app=web", " label=app=db"),
		} {
			spec += extra
		}
		obj := clustertest.Pod(spec)
		obj.UID, obj.Namespace = types.UID(obj.Name), "default"
		p := newPod(obj, model.ClassOf(obj))
		p.leaving = rapid.IntRange(0, 7).Draw(t, "leaving") == 0
		w.n.pods = append(w.n.pods, p)
		w.n.usage = w.n.usage.With(p.class)
	}
	slices.SortFunc(w.n.pods, moreImportant)
	for _, app := range []string{"web", "db", "all"} {
		if n := rapid.Int32Range(-1, 3).Draw(t, "budget-"+app); n >= 0 {
			w.budgets[app] = &Budget{Name: "default/" + app, Allowed: n}
			if rapid.IntRange(0, 3).Draw(t, "hard") == 0 {
				from := rapid.Int32Range(0, 20).Draw(t, "from")
				w.budgets[app].ViolableFrom = &from
			}
		}
	}
	w.c = model.ClassOf(clustertest.Pod("x priority=" + pick("its priority", "5", "10", "1") + pick("its cpu", "", " cpu=1",
		" cpu=3", " cpu=6") +
		pick("its mem", "", " mem=2Gi", " mem=5Gi") + pick("its gpu", "", "", " a.io/gpu=2") + pick("its port", "", "",
		" port=80")))
	return w
}

func (w *oneNode) fitsWithout(gone []*pod) bool {
	u := w.n.usage
	for _, p := range gone {
		u = u.Without(p.class)
	}
	return model.UsageFailures(w.c, &w.n.alloc, &u) == 0
}

// costOf is what evicting the pods costs, and whether it may be.
func (w *oneNode) costOf(gone []*pod, strict bool) (victims.Cost, bool) {
	spent, c := map[*Budget]int32{}, victims.None
	for _, v := range gone {
		c = c.With(&v.Pod)
		for _, b := range w.budgets.Of("default", v.class.Labels) {
			if spent[b]++; spent[b] > b.Allowed {
				if strict || b.protects(w.c.Priority) {
					return victims.Impossible, false
				}
				c.Violations++
			}
		}
	}
	return c, true
}

// exhaust looks at every set of pods of lower priority; the leaving ones are gone in any case.
func (w *oneNode) exhaust(strict bool) (best victims.Cost, found bool) {
	var leaving, stay []*pod
	for _, p := range lowerOn(&w.n, w.c.Priority) {
		if p.isLeaving() {
			leaving = append(leaving, p)
		} else {
			stay = append(stay, p)
		}
	}
	for set := range 1 << len(stay) {
		var gone []*pod
		for i, p := range stay {
			if set>>i&1 == 1 {
				gone = append(gone, p)
			}
		}
		if !w.fitsWithout(append(slices.Clone(gone), leaving...)) {
			continue
		}
		if c, ok := w.costOf(gone, strict); ok && (!found || c.Less(&best)) {
			best, found = c, true
		}
	}
	return best, found
}

func preemptionOf(strict bool) *berthv1.PreemptionConfiguration {
	if strict {
		return &berthv1.PreemptionConfiguration{Budgets: berthv1.BudgetsStrict}
	}
	return &berthv1.PreemptionConfiguration{Budgets: berthv1.BudgetsBestEffort}
}

// TestOracleMinimumVictims: the choice on one node costs exactly as much as the best of all sets of pods; a bound is
// never above it; a search that is cut short is never worse than reprieving, and claims nothing that is not so.
func TestOracleMinimumVictims(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := drawNode(t, 12)
		strict := rapid.IntRange(0, 3).Draw(t, "strict") == 0
		limit := rapid.SampledFrom([]int32{0, 1, 3, 10, 1000000, 1000000, 1000000}).Draw(t, "limit")
		p := newProblem(w.c, preempting{config: preemptionOf(strict), searchLimit: limit})
		set := p.chooseVictims(&w.n, w.budgets)
		if len(lowerOn(&w.n, w.c.Priority)) == 0 {
			if set.verdict != verdictNoVictims {
				t.Fatalf("verdict %d", set.verdict)
			}
			return
		}
		want, found := w.exhaust(strict)
		if limit == 1000000 || set.verdict == verdictCandidate {
			if found != (set.verdict == verdictCandidate) {
				t.Fatalf("verdict %d (minimal %v), possible %v at %+v", set.verdict, set.minimal, found, want)
			}
		}
		if set.verdict != verdictCandidate {
			return
		}
		got, ok := w.costOf(set.victims, strict)
		if !ok || got != set.cost || !slices.IsSortedFunc(set.victims, moreImportant) {
			t.Fatalf("the victims %v cost %+v (%v) and not %+v", keys(set.victims), got, ok, set.cost)
		}
		if got.Less(&want) || set.minimal && got != want || limit == 1000000 && (got != want || !set.minimal) {
			t.Fatalf("minimal %v: %v cost %+v, the least is %+v", set.minimal, keys(set.victims), got, want)
		}
		if !set.minimal && want.Less(&set.known) {
			t.Fatalf("%+v is said to be a bound of %+v", set.known, want)
		}
		p.fill(&w.n, w.budgets)
		if least, _ := p.solver.Bound(); want.Less(&least) {
			t.Fatalf("bound %+v is above %+v", least, want)
		}
		if reprieved, ok := p.solver.Reprieve(); ok && reprieved.Cost.Less(&got) {
			t.Fatalf("%v cost %+v; reprieving, %v cost %+v", keys(set.victims), got, keys(p.chosen(&reprieved).victims),
				reprieved.Cost)
		}
		w.checkWaits(t, set)
	})
}

func (w *oneNode) checkWaits(t *rapid.T, set victimSet) {
	if gone := slices.Concat(set.victims, set.waits); !w.fitsWithout(gone) {
		t.Fatalf("does not fit without %v", keys(gone))
	}
	for i := range set.waits {
		if w.fitsWithout(slices.Concat(set.victims, set.waits[:i], set.waits[i+1:])) {
			t.Fatalf("nobody has to wait for %s", set.waits[i].key)
		}
	}
}

// BenchmarkSearch: one node of 15 pods that differ in everything, and a pod that needs a third of it.
func BenchmarkSearch(b *testing.B) {
	for _, size := range []int{5, 15, 40, 110} {
		b.Run(fmt.Sprintf("pods=%d", size), func(b *testing.B) {
			rng := rand.New(rand.NewSource(1))
			var nodes []node
			for range 100 {
				obj := clustertest.Node(fmt.Sprintf("n cpu=%dm mem=%dMi pods=200", 350*size, 600*size))
				n := node{obj: obj, alloc: model.Allocatable(obj)}
				for i := range size {
					obj := clustertest.Pod(fmt.Sprintf("p%d priority=%d cpu=%dm mem=%dMi start=%d", i, rng.Intn(3), 100+50*rng.Intn(10),
						128+64*rng.Intn(12), rng.Intn(1000)))
					obj.UID = types.UID(obj.Name)
					n.pods = append(n.pods, newPod(obj, model.ClassOf(obj)))
					n.usage = n.usage.With(n.pods[i].class)
				}
				slices.SortFunc(n.pods, moreImportant)
				nodes = append(nodes, n)
			}
			p := newProblem(model.ClassOf(clustertest.Pod(fmt.Sprintf("x priority=10 cpu=%dm mem=%dMi", 120*size, 200*size))),
				preempting{searchLimit: 1000})
			minimal, steps := 0, int32(0)
			i := 0
			for b.Loop() {
				n := &nodes[i%len(nodes)]
				p.fill(n, budgetTable{})
				least, _ := p.solver.Bound()
				s, _ := p.solver.Solve(least)
				if i < len(nodes) {
					steps += s.Steps
					if s.Minimal {
						minimal++
					}
				}
				i++
			}
			b.ReportMetric(float64(minimal), "%minimal")
			b.ReportMetric(float64(steps)/100, "steps")
		})
	}
}
