package sched

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"pgregory.net/rapid"

	"github.com/berth-dev/berth/api/berthv1"
	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/model"
	"github.com/berth-dev/berth/sched/clustertest"
)

// TestStrictBudgetsProperty: evictions, drains and preemptions of every kind interleave, leaders are lost with plans
// under way and go on from snapshots, and nobody but these disrupts a pod. Under strict budgets each of them then has,
// after every entry, the healthy pods that it demands.
func TestStrictBudgetsProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newStrictWorld(t)
		var under []*Plan
		for range rapid.IntRange(10, 50).Draw(t, "turns") {
			switch rapid.IntRange(0, 10).Draw(t, "turn") {
			case 0, 1, 2:
				if p := w.step(rapid.IntRange(1, 4).Draw(t, "max")); p != nil && len(under) < 4 {
					under = append(under, p)
					t.Logf("decided: %s", describe(p.Command))
				} else if p != nil {
					w.sched.Settle(p)
				}
			case 3, 4:
				if len(under) > 0 {
					w.held(under[0].Command)
					w.sched.Settle(under[0])
					under = under[1:]
				}
			case 5:
				w.arrive()
			case 6:
				if key, ok := w.somePod(); ok {
					w.held(&fsm.EvictPod{Key: key})
				}
			case 7:
				w.drain(w.someNode())
			case 8:
				w.Confirm()
				w.ready()
			case 9: // the leader is lost; of what it had proposed a part may be in the log
				for _, p := range under[:rapid.IntRange(0, len(under)).Draw(t, "in the log")] {
					w.held(p.Command)
				}
				under = nil
				if rapid.Bool().Draw(t, "restored") {
					w.State = restored(w.State)
				}
				w.sched = New(w.State)
			case 10:
				w.NowUnixNano += int64(rapid.IntRange(1, 40).Draw(t, "seconds")) * second
			}
		}
	})
}

// strictWorld is a cluster whose pods are all ready and covered by budgets that they satisfy.
type strictWorld struct {
	*world
	need map[string]int // budget to the healthy pods that it demands
}

func newStrictWorld(t *rapid.T) *strictWorld {
	w := &strictWorld{world: &world{harness: newHarness(), t: t}, need: map[string]int{}}
	for i := range 3 {
		w.PutNode(clustertest.Node(fmt.Sprintf("n%d cpu=4 mem=8Gi", i)))
	}
	for i := range 9 {
		pod := clustertest.Pod(fmt.Sprintf("low%d priority=%s cpu=1 node=n%d start=%d %s", i, w.pick("priority", "0", "1", "2"), i%3,
			10+i, w.labels()))
		w.AdmitPod(pod)
	}
	w.ready()
	strict := berthv1.BudgetsStrict
	w.Configure(func(s *berthv1.SchedulerConfigurationSpec) { s.Preemption.Budgets = strict })
	for _, budget := range []struct{ name, label string }{{"web", "app=web"}, {"db", "app=db"}, {"gold", "tier=gold"}} {
		selector, err := metav1.ParseToLabelSelector(budget.label)
		if err != nil {
			t.Fatal(err)
		}
		least := rapid.IntRange(0, w.healthy(selector)).Draw(t, "min "+budget.name)
		w.need[budget.label] = least
		amount := intstr.FromInt(least)
		w.Must(&fsm.PutDisruptionBudget{Create: true, Budget: fsm.BudgetWire{Object: &policyv1.PodDisruptionBudget{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: budget.name, UID: types.UID(budget.name)},
			Spec:       policyv1.PodDisruptionBudgetSpec{MinAvailable: &amount, Selector: selector}}}})
	}
	return w
}

func (w *strictWorld) labels() string {
	return w.pick("app", "label=app=web", "label=app=web", "label=app=db", "") + " " +
		w.pick("tier", "", "label=tier=gold")
}

// arrive admits a pod: one that may have to evict others, or one more of those that are covered.
func (w *strictWorld) arrive() {
	if rapid.Bool().Draw(w.t, "covered") {
		w.AdmitPod(clustertest.Pod(fmt.Sprintf("low%d priority=%s cpu=1 %s", w.Admitted, w.pick("priority", "0", "1", "2"), w.labels())))
		return
	}
	w.AdmitPod(clustertest.Pod(fmt.Sprintf("high%d priority=%s cpu=%s", w.Admitted, w.pick("priority", "2", "5", "9"),
		w.pick("cpu", "1", "2", "3", "4"))))
}

// drain cordons a node and evicts whoever may go (PD10).
func (w *strictWorld) drain(node string) {
	n, _ := w.State.View().Nodes.Get(node)
	n = n.DeepCopy()
	n.Spec.Unschedulable = !n.Spec.Unschedulable // or ends the drain
	w.Must(&fsm.PutNode{Node: fsm.NodeWire{Object: n}})
	if !n.Spec.Unschedulable {
		return
	}
	var keys []string
	w.State.View().PodsOnNode(node, func(p *corev1.Pod) bool {
		keys = append(keys, fsm.PodKey(p.Namespace, p.Name))
		return true
	})
	for _, key := range keys {
		w.held(&fsm.EvictPod{Key: key})
	}
}

// ready is every worker's word that its pods run and are ready.
func (w *strictWorld) ready() {
	var reports []*fsm.ReportPods
	w.State.View().Pods.Scan("", func(key string, p *corev1.Pod) bool {
		if p.Spec.NodeName != "" && !model.Ready(p) {
			status := p.Status.DeepCopy()
			status.Phase = corev1.PodRunning
			status.Conditions = append(status.Conditions, corev1.PodCondition{Type: corev1.PodReady,
				Status: corev1.ConditionTrue})
			reports = append(reports, &fsm.ReportPods{Node: p.Spec.NodeName, Reports: []fsm.PodReport{
				{Key: key, UID: string(p.UID), Status: fsm.PodStatusWire{Object: status}}}})
		}
		return true
	})
	for _, r := range reports {
		w.Must(r)
	}
}

// held applies a command, which may be refused for the sake of a budget, and checks what is left.
func (w *strictWorld) held(c fsm.Command) {
	if r := w.Apply(c); r.Refused() && r.Code != http.StatusTooManyRequests {
		w.t.Fatalf("%T: %s", c, r.Message)
	}
	for label, least := range w.need {
		selector, err := metav1.ParseToLabelSelector(label)
		if err != nil {
			w.t.Fatal(err)
		}
		if n := w.healthy(selector); n < least {
			w.t.Fatalf("after %T %d pods with %s are healthy, and the budget demands %d:\n%s", c, n, label, least, w.list())
		}
	}
}

// healthy counts the ready pods that nobody has told to end, from the pods alone.
func (w *strictWorld) healthy(of *metav1.LabelSelector) int {
	selector, err := metav1.LabelSelectorAsSelector(of)
	if err != nil {
		w.t.Fatal(err)
	}
	n := 0
	w.State.View().Pods.Scan("", func(_ string, p *corev1.Pod) bool {
		if selector.Matches(labels.Set(p.Labels)) && model.Ready(p) && !model.Terminating(p) {
			n++
		}
		return true
	})
	return n
}

func (w *strictWorld) list() string {
	var b strings.Builder
	w.State.View().Pods.Scan("", func(key string, p *corev1.Pod) bool {
		fmt.Fprintf(&b, "%s on %q, priority %d, labels %v, ready %t, ending %t\n", key, p.Spec.NodeName, model.Priority(p),
			p.Labels, model.Ready(p), model.Terminating(p))
		return true
	})
	return b.String()
}
