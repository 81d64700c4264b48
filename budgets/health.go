package budgets

import (
	"fmt"
	"maps"
	"math"
	"slices"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/berth-dev/berth/model"
)

// Health is what a budget's status says in numbers, as things are now, in the
// midst of a command too.
type Health struct {
	Expected, Current, Desired, Allowed int64
	// announced are the disruptions that are still to come; see stillAnnounced.
	announced map[string]metav1.Time
	// failed says why nothing can be said of what is expected; "" if it can.
	failed string
	// counting: nothing can be said at all yet.
	counting bool
}

// HealthOf counts for a budget (PD2, PD3).
func (x *Index) HealthOf(s State, b *policyv1.PodDisruptionBudget) Health {
	c, _ := x.coverages.Get(keyOf(b))
	return x.health(s, b, c)
}

// health counts. Percentages are rounded up.
func (x *Index) health(s State, b *policyv1.PodDisruptionBudget, c *Coverage) Health {
	h := Health{Expected: c.pods, Current: c.healthy, counting: c.counting}
	if c.rule.scaled {
		h.Expected = min(c.scale, math.MaxInt32)
	}
	if c.strays > 0 {
		h.failed = "found no controller of the pods: " + x.firstStray(s, c.rule.key)
	}
	switch {
	case b.Spec.MaxUnavailable != nil:
		h.Desired = max(0, h.Expected-portion(b.Spec.MaxUnavailable, h.Expected))
	case b.Spec.MinAvailable != nil:
		h.Desired = portion(b.Spec.MinAvailable, h.Expected)
	}
	if len(b.Status.DisruptedPods) > 0 {
		h.announced = stillAnnounced(s, b, c.rule, &h.Current)
	}
	switch {
	case h.counting: // and nobody is lenient
		h.Desired = max(h.Desired, h.Current+1)
	case h.Expected > 0 && h.failed == "":
		h.Allowed = max(0, h.Current-h.Desired)
	}
	return h
}

func portion(of *intstr.IntOrString, whole int64) int64 {
	n, err := intstr.GetScaledValueFromIntOrPercent(of, int(whole), true)
	if err != nil {
		return whole // what cannot be read cannot be stored; should it be there, it protects
	}
	return int64(n)
}

// stillAnnounced are the disruptions that the eviction of another server, or a
// user, announced and that are still to come: their pods are no longer counted
// on (PD3).
func stillAnnounced(s State, b *policyv1.PodDisruptionBudget, r *rule, current *int64) map[string]metav1.Time {
	out := map[string]metav1.Time{}
	// order does not matter: it is a set that is counted.
	for name, at := range b.Status.DisruptedPods {
		pod, ok := s.Pod(b.Namespace + "/" + name)
		if !ok || model.Terminating(pod) || runsOut(at) < s.TimeUnixNano() || !r.selector.Matches(labels.Set(pod.Labels)) {
			continue
		}
		out[name] = at
		if model.Healthy(pod) {
			*current--
		}
	}
	if len(out) == 0 {
		return nil
	}
	return out
}

// Status is a budget's whole status, now being the state's time; conditions of
// others stay.
func (x *Index) Status(s State, b *policyv1.PodDisruptionBudget, now metav1.Time) policyv1.PodDisruptionBudgetStatus {
	h := x.HealthOf(s, b)
	condition := metav1.Condition{
		Type: policyv1.DisruptionAllowedCondition, ObservedGeneration: b.Generation, LastTransitionTime: now,
		Status: metav1.ConditionFalse, Reason: policyv1.InsufficientPodsReason,
	}
	switch {
	case h.counting:
		return uncounted(b, h.announced, condition)
	case h.failed != "":
		condition.Reason, condition.Message = policyv1.SyncFailedReason, h.failed
	case h.Allowed > 0:
		condition.Status, condition.Reason = metav1.ConditionTrue, policyv1.SufficientPodsReason
	}
	return policyv1.PodDisruptionBudgetStatus{
		ObservedGeneration: b.Generation,
		DisruptedPods:      h.announced,
		DisruptionsAllowed: int32(h.Allowed),
		CurrentHealthy:     int32(h.Current),
		DesiredHealthy:     int32(h.Desired),
		ExpectedPods:       int32(h.Expected),
		Conditions:         withCondition(b.Status.Conditions, condition),
	}
}

// uncounted is the status of a budget whose pods are being counted: what was said
// of it before, but that it allows nothing.
func uncounted(
	b *policyv1.PodDisruptionBudget, announced map[string]metav1.Time, condition metav1.Condition,
) policyv1.PodDisruptionBudgetStatus {
	out := *b.Status.DeepCopy()
	out.DisruptedPods, out.DisruptionsAllowed = announced, 0
	// Nobody may read leniency from what was.
	out.DesiredHealthy = max(out.DesiredHealthy, out.CurrentHealthy+1)
	condition.ObservedGeneration = out.ObservedGeneration
	condition.Reason, condition.Message = policyv1.SyncFailedReason, "the pods that the budget covers are being counted"
	out.Conditions = withCondition(b.Status.Conditions, condition)
	return out
}

// withCondition replaces or adds a condition in a copy of the list; the
// transition time stays if the status does.
func withCondition(list []metav1.Condition, c metav1.Condition) []metav1.Condition {
	out := slices.Clone(list)
	i := slices.IndexFunc(out, func(o metav1.Condition) bool { return o.Type == c.Type })
	if i < 0 {
		return append(out, c)
	}
	if out[i].Status == c.Status {
		c.LastTransitionTime = out[i].LastTransitionTime
	}
	out[i] = c
	return out
}

// SameStatus is equality.Semantic.DeepEqual, which is slow where it runs for
// every change of a pod's readiness.
func SameStatus(a, b *policyv1.PodDisruptionBudgetStatus) bool {
	return a.DisruptionsAllowed == b.DisruptionsAllowed && a.CurrentHealthy == b.CurrentHealthy && a.DesiredHealthy == b.DesiredHealthy &&
		a.ExpectedPods == b.ExpectedPods && a.ObservedGeneration == b.ObservedGeneration &&
		maps.EqualFunc(a.DisruptedPods, b.DisruptedPods, func(x, y metav1.Time) bool { return x.Equal(&y) }) &&
		slices.EqualFunc(a.Conditions, b.Conditions, func(x, y metav1.Condition) bool {
			return x.Type == y.Type && x.Status == y.Status && x.Reason == y.Reason && x.Message == y.Message &&
				x.ObservedGeneration == y.ObservedGeneration && x.LastTransitionTime.Equal(&y.LastTransitionTime)
		})
}

// Notice is an event about a budget.
type Notice struct{ Type, Reason, Message string }

// Notices tell, once when it comes about, what makes a budget not do what its
// owner expects of it. before is what Touched gave.
func (x *Index) Notices(s State, b *policyv1.PodDisruptionBudget, before *Coverage) (out []Notice) {
	c, _ := x.coverages.Get(keyOf(b))
	if c.counting {
		return nil // and everything then
	}
	if before == nil || before.counting {
		before = &Coverage{}
		if c.pods == 0 {
			out = append(out, Notice{corev1.EventTypeNormal, "NoPods", "No matching pods found"})
		}
	}
	if c.unmanaged > 0 && before.unmanaged == 0 {
		out = append(out, Notice{corev1.EventTypeWarning, "UnmanagedPods", fmt.Sprintf(
			"Pods selected by this PodDisruptionBudget (selector: %s) have no controller, so that nobody says how many of them there should be: they are not counted as expected. Set .spec.minAvailable to a number of pods to count them.", c.rule.selector)})
	}
	if c.strays > 0 && before.strays == 0 {
		out = append(out, Notice{corev1.EventTypeWarning, "CalculateExpectedPodCountFailed",
			"Failed to calculate the number of expected pods: " + x.health(s, b, c).failed})
	}
	return out
}

// Lacks says, as the eviction API does, why a budget does not let a pod go.
func (h *Health) Lacks(budget string) string {
	switch {
	case h.counting:
		return fmt.Sprintf("The disruption budget %s is still being processed by the server.", budget)
	case h.failed != "":
		return fmt.Sprintf("The disruption budget %s does not allow evicting pods currently because it failed sync: %s", budget, h.failed)
	case h.Current <= h.Desired:
		return fmt.Sprintf("The disruption budget %s needs %d healthy pods and has %d currently", budget, h.Desired, h.Current)
	}
	return fmt.Sprintf("The disruption budget %s does not allow evicting pods currently", budget)
}
