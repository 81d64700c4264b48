package sched

import (
	"fmt"
	"testing"

	policyv1 "k8s.io/api/policy/v1"
	"pgregory.net/rapid"

	"github.com/berth-dev/berth/api/berthv1"
	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/sched/clustertest"
)

// TestPropertyStrictBudgets: however evictions and preemptions fall together, plans being under way, lost and
// overtaken, under Strict no budget ever has fewer healthy pods than it needs; and in the end nobody sleeps for whom
// pods may go.
func TestPropertyStrictBudgets(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		nodes := rapid.IntRange(1, 4).Draw(t, "nodes")
		w := &world{harness: newHarness(), t: t}
		w.Configure(func(s *berthv1.SchedulerConfigurationSpec) { s.Preemption.Budgets = berthv1.BudgetsStrict })
		for i := range nodes {
			w.PutNode(clustertest.Node(fmt.Sprintf("n%d cpu=4 mem=8Gi pods=110", i)))
			for range rapid.IntRange(0, 4).Draw(t, "pods") {
				w.AdmitPod(clustertest.Pod(fmt.Sprintf("p%d priority=%s cpu=1 node=n%d label=app=%s%s%s", w.Admitted, w.pick("priority", "0", "1"), i,
					w.pick("app", "web", "db", "none"), w.pick("start", " start=10", " start=20"),
					w.pick("ready", " ready", " ready", ""))))
			}
		}
		for _, app := range []string{"web", "db"} {
			if healthy := w.healthy(app); rapid.Bool().Draw(t, "budget") {
				w.PutBudget([]string{app, "app=" + app, fmt.Sprintf("min=%d", rapid.IntRange(0, healthy).Draw(t, "min"))})
			}
		}
		if healthy := w.healthy(""); rapid.Bool().Draw(t, "all") {
			w.PutBudget([]string{"all", fmt.Sprintf("min=%d", rapid.IntRange(0, healthy).Draw(t, "min"))})
		}
		var under []*Plan
		for range rapid.IntRange(5, 40).Draw(t, "turns") {
			under = w.disturb(under)
			w.budgetsHold()
		}
		for _, p := range under {
			w.commit(p)
			w.budgetsHold()
		}
		w.Confirm()
		w.NowUnixNano += 100 * second
		w.run()
		w.NowUnixNano += 100 * second
		w.run()
		w.budgetsHold()
		w.checkView()
		w.nobodySleepsBesideRoom()
	})
}

func (w *world) healthy(app string) int {
	w.PutBudget([]string{"probe", "app=" + app})
	if app == "" {
		w.PutBudget([]string{"probe"})
	}
	b, _ := w.State.View().Budgets.Get("default/probe")
	w.Must(&fsm.DeleteDisruptionBudget{Namespace: "default", Name: "probe"})
	return int(b.Status.CurrentHealthy)
}

// disturb lets one thing happen that no budget can be blamed for.
func (w *world) disturb(under []*Plan) []*Plan {
	switch rapid.IntRange(0, 6).Draw(w.t, "turn") {
	case 0, 1:
		if p := w.step(rapid.IntRange(1, 4).Draw(w.t, "max")); p != nil {
			under = append(under, p)
		}
	case 2:
		if len(under) > 0 {
			if rapid.IntRange(0, 5).Draw(w.t, "lost") > 0 {
				w.Must(under[0].Command)
			}
			w.sched.Settle(under[0])
			under = under[1:]
		}
	case 3:
		w.AdmitPod(clustertest.Pod(fmt.Sprintf("p%d priority=%s cpu=%s%s", w.Admitted, w.pick("priority", "5", "9"),
			w.pick("cpu", "1", "2", "3"), w.pick("app", "", " label=app=web"))))
	case 4:
		if key, ok := w.somePod(); ok {
			w.Apply(&fsm.EvictPod{Key: key}) // may be refused
		}
	case 5:
		w.Confirm()
	case 6:
		if key, ok := w.somePod(); ok {
			if p, _ := w.State.View().Pods.Get(key); p.Spec.NodeName != "" && p.DeletionTimestamp == nil {
				w.Report(key, true)
			}
		}
	}
	w.NowUnixNano += second
	return under
}

func (w *world) budgetsHold() {
	w.State.View().Budgets.Scan("", func(_ string, b *policyv1.PodDisruptionBudget) bool {
		if b.Status.CurrentHealthy < b.Status.DesiredHealthy {
			w.t.Fatalf("%s has %d healthy pods and needs %d", b.Name, b.Status.CurrentHealthy, b.Status.DesiredHealthy)
		}
		return true
	})
}
