package fsm

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
	"pgregory.net/rapid"

	"github.com/berth-dev/berth/model"
)

func (r *random) budgetName() string { return r.pick("budget", "b0", "b1", "b2", "b3") }

func (r *random) randomBudget() string {
	return r.line(fmt.Sprintf("budget %s %s %s %s %s", r.budgetName(),
		r.pick("selector", "selector=a:1", "selector=a:1,b:2", "in=a:1:2", "without=b", "all", "none"),
		r.pick("amount", "min=1", "min=2", "min=50%", "max=1", "max=0", "max=25%", ""),
		r.pick("more", "", "", "unhealthy=AlwaysAllow", "unhealthy=IfHealthyBudget", "violators=5"), r.pick("how", "", "update", "update")))
}

// allReady is every worker's word that what runs is ready.
func (r *random) allReady() string {
	var lines []string
	r.view().Pods.Scan("", func(key string, p *corev1.Pod) bool {
		if p.Spec.NodeName != "" && !model.Terminal(p) {
			lines = append(lines, fmt.Sprintf("report %s %s Running ready uid=%s", p.Spec.NodeName, key, p.UID))
		}
		return true
	})
	for _, l := range lines {
		r.line(l)
	}
	return ""
}

// evict evicts a pod, and checks that no budget lost a healthy pod that it
// needs (PD6).
func (r *random) evict() string {
	name, before := r.podName(), r.view()
	answer := r.line("evict " + name)
	pod, ok := before.Pods.Get(PodKey("default", name))
	if !ok || strings.HasPrefix(answer, "429") || !model.Healthy(pod) {
		return answer
	}
	before.BudgetsOf(pod.Namespace, pod.Labels, func(was *policyv1.PodDisruptionBudget) bool {
		is, _ := r.view().Budgets.Get(PodKey(was.Namespace, was.Name))
		if _, announced := was.Status.DisruptedPods[name]; !announced && is.Status.CurrentHealthy < was.Status.DesiredHealthy {
			r.t.Fatalf("evicting %s took %s below what it needs: %s", name, was.Name, describeBudget(is))
		}
		return true
	})
	return answer
}

// checkBudgets compares every budget's status with a plain recomputation, and
// what covers a pod with every selector there is.
func (r *random) checkBudgets(t *rapid.T, v *View) {
	v.Budgets.Scan("", func(key string, b *policyv1.PodDisruptionBudget) bool {
		if got, want := numbersOf(b), recount(v, b); got != want {
			t.Fatalf("budget %s says %+v, its pods %+v", key, got, want)
		}
		return true
	})
	v.Pods.Scan("", func(key string, p *corev1.Pod) bool {
		var got, want []string
		v.BudgetsOf(p.Namespace, p.Labels, func(b *policyv1.PodDisruptionBudget) bool {
			got = append(got, b.Name)
			return true
		})
		v.Budgets.Scan(p.Namespace+"/", func(_ string, b *policyv1.PodDisruptionBudget) bool {
			if s, _ := metav1.LabelSelectorAsSelector(b.Spec.Selector); s.Matches(labels.Set(p.Labels)) {
				want = append(want, b.Name)
			}
			return true
		})
		if !slices.Equal(got, want) {
			t.Fatalf("%s is covered by %v, the selectors say %v", key, got, want)
		}
		return true
	})
}

// numbers are what a budget's status says.
type numbers struct {
	expected, healthy, desired, allowed int32
	reason                              string
	announced                           string
}

func numbersOf(b *policyv1.PodDisruptionBudget) numbers {
	n := numbers{expected: b.Status.ExpectedPods, healthy: b.Status.CurrentHealthy, desired: b.Status.DesiredHealthy, allowed: b.Status.DisruptionsAllowed}
	for _, c := range b.Status.Conditions {
		if c.Type == policyv1.DisruptionAllowedCondition {
			n.reason = c.Reason
		}
	}
	n.announced = announcedNames(b.Status.DisruptedPods)
	if b.Status.ObservedGeneration != b.Generation {
		n.reason = "not observed"
	}
	return n
}

func announcedNames(m map[string]metav1.Time) string {
	var names []string
	for name := range m {
		names = append(names, name)
	}
	slices.Sort(names)
	return strings.Join(names, " ")
}

// recount is what Kubernetes documents, over all pods.
func recount(v *View, b *policyv1.PodDisruptionBudget) numbers {
	var n numbers
	selector, _ := metav1.LabelSelectorAsSelector(b.Spec.Selector)
	controllers := map[string]int32{}
	strays, pods := false, int32(0)
	announced := map[string]metav1.Time{}
	v.Pods.Scan(b.Namespace+"/", func(_ string, p *corev1.Pod) bool {
		if !selector.Matches(labels.Set(p.Labels)) {
			return true
		}
		pods++
		at, said := b.Status.DisruptedPods[p.Name]
		said = said && p.DeletionTimestamp == nil && at.Add(2*time.Minute).UnixNano() >= v.TimeUnixNano()
		if said {
			announced[p.Name] = at
		}
		if model.Ready(p) && p.DeletionTimestamp == nil && !model.Terminal(p) && !said {
			n.healthy++
		}
		for _, o := range p.OwnerReferences {
			rs, ok := v.ReplicaSet(p.Namespace, o.Name)
			if !ok || rs.UID != o.UID {
				strays = true
				continue
			}
			controllers[string(o.UID)] = ReplicasOf(rs)
		}
		return true
	})
	for _, scale := range controllers {
		n.expected += scale
	}
	share := func(of *intstr.IntOrString) int32 {
		if of.Type == intstr.Int {
			return of.IntVal
		}
		var percent int32
		_, _ = fmt.Sscanf(of.StrVal, "%d%%", &percent)
		return int32(math.Ceil(float64(n.expected) * float64(percent) / 100))
	}
	switch {
	case b.Spec.MaxUnavailable != nil:
		n.desired = max(0, n.expected-share(b.Spec.MaxUnavailable))
	case b.Spec.MinAvailable != nil && b.Spec.MinAvailable.Type == intstr.String:
		n.desired = share(b.Spec.MinAvailable)
	default:
		n.expected, strays = pods, false
		if b.Spec.MinAvailable != nil {
			n.desired = b.Spec.MinAvailable.IntVal
		}
	}
	if n.expected > 0 && !strays {
		n.allowed = max(0, n.healthy-n.desired)
	}
	switch {
	case strays:
		n.reason = policyv1.SyncFailedReason
	case n.allowed > 0:
		n.reason = policyv1.SufficientPodsReason
	default:
		n.reason = policyv1.InsufficientPodsReason
	}
	n.announced = announcedNames(announced)
	return n
}

// TestBudgetsAreNeverOverspent: however evictions, preemptions under strictness
// and everything else interleave, no budget loses a healthy pod that it needs
// to any of them.
func TestBudgetsAreNeverOverspent(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := newRandom(t, true)
		for _, l := range []string{"configure budgets=Strict", "replicaset w replicas=4", "node n1 cpu=4", "node n2 cpu=4",
			"budget b0 selector=a:1 min=2", "budget b1 all max=50%"} {
			r.line(l)
		}
		all := r.actions()
		do := func(f func() string) func(*rapid.T) {
			return func(t *rapid.T) {
				r.t, r.world.t, r.transcript.t = t, t, t
				f()
			}
		}
		actions := map[string]func(*rapid.T){
			"covered": do(r.covered), "covered too": do(r.covered), "place": do(r.place), "place too": do(r.place),
			"plan": do(r.strictPlan), "plan again": do(r.strictPlan),
			"":            func(t *rapid.T) { r.checkBudgets(t, r.view()) },
			"evict again": all["evict"], "all ready": all["report ready"],
		}
		for _, name := range []string{"evict", "taint away", "delete", "report", "report ready", "gone", "budget", "announce", "replicaset", "advance"} {
			actions[name] = all[name]
		}
		t.Repeat(actions)
	})
}

// covered admits a pod that budgets are likely to cover.
func (r *random) covered() string {
	r.uids++
	return r.line(fmt.Sprintf("pod %s uid=u%d cpu=%s priority=%s grace=5 %s %s", r.podName(), r.uids, r.pick("cpu", "0", "1", "2", "4"), r.priority(),
		r.pick("owner", "owner=w", "owner=w", ""), r.pick("labels", "labels=a:1", "labels=a:1", "labels=a:1,b:2", "labels=a:2")))
}

// place binds what waits to where there is room, and lets it be ready.
func (r *random) place() string {
	c := decide(r.view(), r.now, 9)
	c.Preemptions, c.Failures = nil, nil
	r.propose(one(c))
	return r.allReady()
}

// strictPlan applies a plan, and checks that what it evicted left every budget
// what it needs.
func (r *random) strictPlan() string {
	before := r.view()
	answer := r.propose(one(decide(before, r.now, rapid.IntRange(1, 5).Draw(r.t, "decisions"))))
	after := r.view()
	before.Budgets.Scan("", func(key string, was *policyv1.PodDisruptionBudget) bool {
		is, _ := after.Budgets.Get(key)
		if is.Status.CurrentHealthy < was.Status.CurrentHealthy && is.Status.CurrentHealthy < was.Status.DesiredHealthy {
			r.t.Fatalf("a strict preemption took %s from %s to %s", key, describeBudget(was), describeBudget(is))
		}
		return true
	})
	return answer
}
