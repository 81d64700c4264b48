package sched

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"github.com/berth-dev/berth/api/berthv1"
	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/model"
	"github.com/berth-dev/berth/sched/clustertest"
)

// world draws random clusters and what happens to them. Amounts are few and small, so that ties, full nodes and
// conflicts are common.
type world struct {
	*harness
	t        *rapid.T
	relabels bool // pods get other labels too
	claiming bool // pods mostly claim volumes
	devising bool // pods mostly claim devices
	events   []event
	saved    []byte // a snapshot, deflated
	// overtaking: plans are under way.
	overtaking bool
	stepWork   int64
}

func (w *world) pick(label string, of ...string) string {
	return rapid.SampledFrom(of).Draw(w.t, label)
}

func (w *world) putNode(i int) {
	spec := fmt.Sprintf("n%d cpu=%s mem=%s pods=%s", i, w.pick("cpu", "2", "3", "4", "0"),
		w.pick("mem", "4Gi", "8Gi", "6Gi"), w.pick("pods", "3", "5", "110"))
	for _, extra := range []string{
		w.pick("zone", "", " label=zone=a", " label=zone=b"), w.pick("disk", "", " label=disk=ssd"),
		w.pick("taint", "", "", "", " taint=team=x:NoSchedule", " taint=old=y:PreferNoSchedule",
			" taint=old=y:PreferNoSchedule taint=slow=:PreferNoSchedule"),
		w.pick("gpu", "", " a.io/gpu=2"), w.pick("cordon", "", "", "", "", " cordoned"),
	} {
		spec += extra
	}
	w.PutNode(clustertest.Node(spec))
}

func (w *world) randomPod(bound bool) *corev1.Pod {
	spec := fmt.Sprintf("p%d priority=%s", w.Admitted, w.pick("priority", "0", "0", "1", "2", "5", "-3"))
	for _, extra := range []string{
		w.pick("cpu", "", " cpu=1", " cpu=1", " cpu=500m", " cpu=2"), w.pick("mem", "", " mem=1Gi", " mem=2Gi"),
		w.pick("select", "", "", "", " select=zone=a", " select=disk=ssd"),
		w.pick("tolerate", "", "", " tolerate=team", " tolerate=old", " tolerate="),
		w.pick("prefer", "", "", " prefer=3:zone=a", " prefer=3:zone=a prefer=7:disk=ssd"),
		w.pick("port", "", "", "", " port=80", " port=10.0.0.1:80"), w.pick("gpu", "", "", "", " a.io/gpu=1"),
		w.pick("never", "", "", "", "", " never"), w.pick("app", "", " label=app=web", " label=app=db"),
	} {
		spec += extra
	}
	if bound {
		spec += " node=" + w.someNode() + w.pick("start", "", " start=10", " start=20", " start=30") +
			w.pick("ready", "", " ready")
	}
	return clustertest.Pod(spec)
}

func (w *world) someNode() string {
	var names []string
	w.State.View().Nodes.Scan("", func(name string, _ *corev1.Node) bool {
		names = append(names, name)
		return true
	})
	return w.pick("node", names...)
}

func (w *world) somePod() (string, bool) {
	var keys []string
	w.State.View().Pods.Scan("", func(key string, _ *corev1.Pod) bool {
		if !inCrowd(key) {
			keys = append(keys, key)
		}
		return true
	})
	if len(keys) == 0 {
		return "", false
	}
	return w.pick("pod", keys...), true
}

// happen lets one thing happen to the cluster.
func (w *world) happen(nodes int) {
	switch rapid.IntRange(0, 9).Draw(w.t, "event") {
	case 0, 1, 2:
		for range rapid.IntRange(1, 4).Draw(w.t, "pods") {
			w.AdmitPod(w.randomPod(false))
		}
	case 3:
		w.AdmitPod(w.randomPod(true))
	case 4, 5:
		w.Confirm()
	case 6:
		if key, ok := w.somePod(); ok {
			w.Must(&fsm.DeletePod{Key: key})
		}
	case 7:
		w.putNode(rapid.IntRange(0, nodes).Draw(w.t, "which"))
	case 8:
		if name := w.someNode(); w.State.View().Nodes.Len() > 1 {
			w.Must(&fsm.DeleteNode{Name: name})
		}
	case 9:
		if key, ok := w.somePod(); ok {
			w.end(key)
		}
	}
	w.NowUnixNano += 20 * second
}

// end lets a running pod finish on its own.
func (w *world) end(key string) {
	p, _ := w.State.View().Pods.Get(key)
	if p.Spec.NodeName == "" {
		return
	}
	status := corev1.PodStatus{Phase: corev1.PodSucceeded}
	w.Must(&fsm.ReportPods{Node: p.Spec.NodeName,
		Reports: []fsm.PodReport{{Key: key, UID: string(p.UID), Status: fsm.PodStatusWire{Object: &status}}}})
}

// furnish fills an empty world.
func (w *world) furnish(nodes int) {
	for i := range nodes {
		w.putNode(i)
	}
	for range rapid.IntRange(0, 3*nodes).Draw(w.t, "bound") {
		w.AdmitPod(w.randomPod(true))
	}
}

func newWorld(t *rapid.T, nodes int) *world {
	w := &world{harness: newHarness(), t: t}
	w.furnish(nodes)
	if rapid.IntRange(0, 4).Draw(t, "fifo") == 0 {
		w.Configure(func(s *berthv1.SchedulerConfigurationSpec) { s.Queue = berthv1.QueueFIFO })
	}
	return w
}

// TestOracle: on random clusters, whatever happened to them, every decision is the oracle's: same node, same victims,
// same count of every reason. And no plan is refused when nothing came between.
func TestOracle(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		nodes := rapid.IntRange(1, 6).Draw(t, "nodes")
		w := newWorld(t, nodes)
		w.drawWork()
		budgets := randomBudgets(t)
		w.Configure(func(s *berthv1.SchedulerConfigurationSpec) {
			limit := rapid.SampledFrom([]int32{0, 1000, 1000, 1000}).Draw(t, "limit")
			s.Preemption.SearchLimit = &limit
			s.Preemption.Budgets = rapid.SampledFrom([]berthv1.BudgetPolicy{"", berthv1.BudgetsStrict}).Draw(t, "budgets")
		})
		if rapid.Bool().Draw(t, "budgets of the state") {
			budgets = nil
			w.randomBudgets()
		}
		w.sched.budgets = budgets
		for range rapid.IntRange(1, 8).Draw(t, "rounds") {
			w.happen(nodes)
			if budgets == nil && rapid.IntRange(0, 2).Draw(t, "other budgets") == 0 {
				w.dropBudgets()
				w.randomBudgets()
			}
			w.runBeside(func() *oracle {
				if budgets == nil {
					return newOracle(w.State.View(), w.stateBudgets())
				}
				return newOracle(w.State.View(), budgets)
			})
		}
	})
}

// runBeside steps until nothing is left to decide, and holds every plan against an oracle of the state that it is made
// on.
func (w *world) runBeside(oracle func() *oracle) {
	for {
		ready := w.ready()
		o := oracle()
		p := w.step(rapid.IntRange(1, 8).Draw(w.t, "max"))
		if p == nil {
			if len(ready) > 0 {
				w.t.Fatalf("%d pods are ready and none was decided", len(ready))
			}
			return
		}
		w.compare(o, p, ready)
		if refused := w.commit(p); len(refused) > 0 {
			w.t.Fatalf("refused: %v", refused)
		}
		w.checkView()
	}
}

// step makes the next plan, by as many steps as that takes with the work that the world allows for one.
func (w *world) step(most int) *Plan {
	for steps := 0; ; steps++ {
		if w.stepWork > 0 {
			w.sched.stepWork = w.stepWork
		}
		p, ok := w.tryStep(most)
		if ok && (p != nil || !w.sched.Behind()) {
			return p
		}
		if steps == 10_000 {
			w.t.Fatal("steps come to no end")
		}
	}
}

// tryStep is a step; false if what panicked in it was not about one pod.
func (w *world) tryStep(most int) (p *Plan, ok bool) {
	defer func() {
		if value := recover(); value != nil {
			if w.sched.meter.charged == nil {
				panic(value)
			}
			p, ok = nil, false
		}
	}()
	p = w.sched.Step(w.NowUnixNano, most)
	if w.sched.meter.charged == nil {
		for _, told := range w.sched.Panics() {
			w.t.Fatalf("a decision about %s panicked: %s\n%s", told.Pod, told.Value, told.Stack)
		}
	}
	return p, true
}

// drawWork lets the steps of a world be short ones.
func (w *world) drawWork() {
	w.stepWork = rapid.SampledFrom([]int64{0, 0, 4000, 20_000}).Draw(w.t, "work of a step")
}

func (w *world) ready() []*fsm.QueueEntry {
	var out []*fsm.QueueEntry
	w.State.View().Ready(w.NowUnixNano, func(e *fsm.QueueEntry) bool {
		out = append(out, e)
		return true
	})
	return out
}

// compare takes the pods in queue order and holds every decision of the plan against the oracle's.
func (w *world) compare(o *oracle, p *Plan, ready []*fsm.QueueEntry) {
	left := len(p.assumptions)
	for _, e := range ready {
		if left == 0 {
			return
		}
		pod, _ := w.State.View().Pods.Get(e.Key())
		want := o.decide(pod)
		i := slices.IndexFunc(p.assumptions, func(f *assumption) bool { return f.uid == e.UID })
		if i < 0 {
			if want.kind == assumeBind || want.kind == assumePreempt {
				w.t.Fatalf("%s was passed over; the oracle has %+v", e.Key(), want)
			}
			continue // held back: it hangs on what was decided before it
		}
		left--
		got := p.assumptions[i]
		if got.kind != want.kind || got.node != want.node || !sameRanking(p.Command, got, &want) ||
			!o.sameVictims(got, pod, &want) {
			w.t.Fatalf("%s: got kind %d on %q evicting %v, the oracle has %+v (%v, waiting for %v; scores %v)\n%s", e.Key(),
				got.kind, got.node, got.victims,
				want, uidsOf(want.set.pods), uidsOf(want.set.waits), o.totals(o.feasible(pod), pod), describe(p.Command))
		}
		if want.kind == assumeFail {
			if counts := failureCounts(p.Command, e.Key()); !maps.Equal(counts, want.reasons) {
				w.t.Fatalf("%s: reasons %v, the oracle has %v", e.Key(), counts, want.reasons)
			}
		}
		o.assume(pod, want)
	}
	if left > 0 {
		w.t.Fatalf("%d decisions about pods that were not ready", left)
	}
}

// sameRanking says whether a binding tells of the other nodes that fit what the oracle does.
func sameRanking(c *fsm.ApplyPlan, f *assumption, want *decision) bool {
	i := slices.IndexFunc(c.Bindings, func(d fsm.BindDecision) bool { return d.UID == string(f.uid) })
	if i < 0 {
		return want.best == fsm.BindDecision{}
	}
	d := &c.Bindings[i]
	if want.best.Feasible == 0 { // NM5
		return d.RunnerUp == ""
	}
	return want.best == fsm.BindDecision{Feasible: d.Feasible, Score: d.Score, RunnerUp: d.RunnerUp}
}

// sameVictims says whether the scheduler's victims are as good as the oracle's, and goes on with them: of equally good
// choices either may be made. Those of kube-scheduler's way have to be the same. To wait for pods that are ending costs
// nothing: where rules between pods count, all that matters is that the pod fits when they have gone.
func (o *oracle) sameVictims(got *assumption, pod *corev1.Pod, want *decision) bool {
	if want.kind != assumePreempt {
		return len(got.victims) == 0
	}
	var victims, leaving, waits []*plainPod
	for _, p := range o.pods {
		named := slices.Contains(got.victims, p.obj.UID)
		switch {
		case p.leaving && (o.cross || p.node == got.node) && model.Priority(p.obj) < model.Priority(pod):
			leaving = append(leaving, p)
			if named {
				waits = append(waits, p)
			}
		case named:
			victims = append(victims, p)
		}
	}
	var n *corev1.Node
	for _, x := range o.nodes {
		if x.Name == got.node {
			n = x
		}
	}
	set, ok := o.judge(n, pod, victims)
	set.waits = waits
	byImportance(waits)
	if !ok || !equallyCheap(set, want.set) || len(waits)+len(victims) != len(got.victims) ||
		!o.opens(n, pod, append(slices.Clone(leaving), victims...)) ||
		!slices.Equal(waits, o.waits(n, pod, victims, leaving)) &&
			!(o.cross && o.opens(n, pod, slices.Concat(victims, waits))) {
		return false
	}
	byImportance(victims)
	if o.greedy && !slices.Equal(victims, want.set.pods) {
		return false
	}
	want.set = set
	return true
}

func failureCounts(c *fsm.ApplyPlan, key string) map[string]int {
	out := map[string]int{}
	for _, d := range c.Failures {
		for _, ref := range d.Pods {
			if ref.Key != key {
				continue
			}
			for _, r := range d.Diagnosis.Reasons {
				out[r.Text] += int(r.Nodes)
			}
		}
	}
	return out
}

func byUID(noms []*nomination) []*nomination {
	return slices.SortedFunc(slices.Values(noms),
		func(a, b *nomination) int { return strings.Compare(string(a.UID), string(b.UID)) })
}

// checkView holds the followed view against one built anew from the state.
func (w *world) checkView() { w.checkViewOf(w.t.Fatalf) }

func (w *world) checkViewOf(fatalf func(format string, values ...any)) {
	fresh := New(w.State)
	fresh.followAll()
	w.sched.followAll()
	for i := range fresh.view.nodes {
		want := &fresh.view.nodes[i]
		slot, ok := w.sched.view.byName[want.name]
		if !ok {
			fatalf("node %s is missing", want.name)
		}
		got := &w.sched.view.nodes[slot]
		if got.obj != want.obj || !got.alloc.Equal(want.alloc) || !got.usage.Requested.Equal(want.usage.Requested) ||
			got.usage.Ports.String() != want.usage.Ports.String() || got.unsettled != 0 ||
			len(got.noms) != len(want.noms) || !slices.EqualFunc(byUID(got.noms), byUID(want.noms),
			func(a, b *nomination) bool { return a.Same(b.Claim) }) ||
			!slices.EqualFunc(got.pods, want.pods, func(a, b *pod) bool {
				return a.UID == b.UID && a.obj == b.obj && a.isLeaving() == b.isLeaving() && a.StartUnixNano == b.StartUnixNano &&
					a.Priority == b.Priority && a.class.Signature == b.class.Signature
			}) {
			fatalf("node %s: followed %+v, built anew %+v", want.name, got, want)
		}
	}
	w.State.View().Queue.Scan("", func(key string, e *fsm.QueueEntry) bool {
		for i := range fresh.view.nodes {
			name := fresh.view.nodes[i].name
			got, want := w.sched.view.topo.Judge(e.Class()).Reasons(name), fresh.view.topo.Judge(e.Class()).Reasons(name)
			if !slices.Equal(got, want) {
				fatalf("%s on %s: by the view followed %v, by one built anew %v", key, name, got, want)
			}
		}
		return true
	})
	if n := len(w.sched.unsettledClasses); n != 0 {
		fatalf("%d classes of settled plans are left", n)
	}
	if n := len(w.sched.assumptions) + len(w.sched.evicting) + len(w.sched.unsettledSlots); n != 0 {
		fatalf("%d traces of settled plans are left", n)
	}
}

type budgetTable map[string]*Budget

func (b budgetTable) Of(_ string, labels map[string]string) []*Budget {
	var out []*Budget
	for _, key := range []string{labels["app"], "all"} {
		if budget, ok := b[key]; ok {
			out = append(out, budget)
		}
	}
	return out
}

func (w *world) stateBudgets() Budgets {
	return &stateBudgets{state: w.State.View(), known: map[types.UID]*Budget{}}
}

// randomBudgets stores budgets, some of which pods of lower priority must not violate.
func (w *world) randomBudgets() {
	for _, name := range []string{"web", "db", "all"} {
		words := []string{name}
		if name != "all" {
			words = append(words, "app="+name)
		}
		if n := rapid.IntRange(-1, 4).Draw(w.t, "min-"+name); n >= 0 {
			words = append(words, fmt.Sprintf("min=%d", n))
			if extra := w.pick("kind", "", "", "from=3", "always-allow"); extra != "" {
				words = append(words, extra)
			}
			w.PutBudget(words)
		}
	}
}

// dropBudgets removes some of the budgets.
func (w *world) dropBudgets() {
	for _, name := range []string{"web", "db", "all"} {
		if _, ok := w.State.View().Budgets.Get("default/" + name); ok && rapid.Bool().Draw(w.t, "drop-"+name) {
			w.Must(&fsm.DeleteDisruptionBudget{Namespace: "default", Name: name})
		}
	}
}

func randomBudgets(t *rapid.T) Budgets {
	b := budgetTable{}
	for _, app := range []string{"web", "db", "all"} {
		if n := rapid.Int32Range(-1, 2).Draw(t, "budget-"+app); n >= 0 {
			b[app] = &Budget{Allowed: n, Disrupted: func(name string) bool { return name == "p1" }}
		}
	}
	return b
}

// TestPipeline: with several plans under way, committed in order, some of them lost, others overtaken by what happens
// to the cluster: no pod is decided twice at once, none is left waiting while a node has room for it, and when all is
// settled the view is that of the state.
func TestPipeline(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		nodes := rapid.IntRange(1, 5).Draw(t, "nodes")
		w := newWorld(t, nodes)
		w.pipeline(nodes, w.happen)
		w.nobodySleepsBesideRoom()
	})
}

func (w *world) pipeline(nodes int, happen func(nodes int)) {
	t := w.t
	var under []*Plan
	for range rapid.IntRange(5, 40).Draw(t, "turns") {
		switch rapid.IntRange(0, 6).Draw(t, "turn") {
		case 5: // the feed was lost
			w.sched.broken = true
		case 6: // too many classes for memory, and changes long gone
			w.forgetClasses(nodes)
		case 0, 1:
			if p := w.step(rapid.IntRange(1, 4).Draw(t, "max")); p != nil {
				under = append(under, p)
				w.notTwice(under)
				t.Logf("at %d decided: %s", p.Command.Revision, describe(p.Command))
			}
		case 2, 3:
			if len(under) == 0 {
				continue
			}
			if rapid.IntRange(0, 5).Draw(t, "lost") > 0 {
				r := w.Must(under[0].Command)
				t.Logf("applied, refused %v", r.Plan.Refused)
			}
			w.sched.Settle(under[0])
			under = under[1:]
		case 4:
			happen(nodes)
		}
	}
	for _, p := range under {
		t.Logf("applied at the end: refused %v", w.commit(p))
	}
	w.Confirm()
	w.NowUnixNano += 100 * second
	w.run()
	w.NowUnixNano += 100 * second
	w.run()
	w.checkView()
}

// forgetClasses has the scheduler forget what it knows of classes, and which of so many nodes changed long ago.
func (w *world) forgetClasses(nodes int) {
	w.sched.dropAll()
	if w.sched.view != nil {
		w.sched.view.log.keep = -8 * nodes
	}
}

func (w *world) notTwice(plans []*Plan) {
	seen := map[types.UID]bool{}
	for _, p := range plans {
		for _, f := range p.assumptions {
			if seen[f.uid] {
				w.t.Fatalf("%s is decided twice at once", f.key)
			}
			seen[f.uid] = true
		}
	}
}

// nobodySleepsBesideRoom: no pod is unschedulable while a node would take it.
func (w *world) nobodySleepsBesideRoom() {
	v := w.State.View()
	o := newOracle(v, w.stateBudgets())
	v.Queue.Scan("", func(key string, e *fsm.QueueEntry) bool {
		pod, _ := v.Pods.Get(key)
		if d := o.decide(pod); e.State == berthv1.QueueUnschedulable && d.kind != assumeFail {
			w.t.Fatalf("%s sleeps, and the oracle has %+v", key, d)
		}
		return true
	})
}
