package fsm

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

// flushBudgets writes into the rows of the touched budgets what their pods add
// up to now. It ends every command.
func (tx *Tx) flushBudgets() {
	v := tx.view
	for {
		k, key, ok := v.budgetTimes.Min()
		if !ok || k >= budgetTimeKey(v.TimeUnixNano(), "") {
			break
		}
		v.budgetTimes.Delete(k)
		v.touchBudget(key)
	}
	if len(v.touchedBudgets) == 0 {
		return
	}
	touched := v.touchedBudgets
	v.touchedBudgets = nil
	for _, key := range slices.Sorted(maps.Keys(touched)) {
		tx.flushBudget(key, touched[key])
	}
	v.touchedBudgets = nil // the rows changed, and nothing else
}

func (tx *Tx) flushBudget(key string, before *coverage) {
	v := tx.view
	old, ok := v.Budgets.Get(key)
	if !ok {
		return
	}
	c, _ := v.coverages.Get(key)
	next := *old
	next.Status = tx.budgetStatus(old, c)
	if !sameStatus(&next.Status, &old.Status) {
		put(tx, v.Budgets, key, &next)
	}
	tx.budgetEvents(old, &next, before, c)
}

// sameStatus is equality.Semantic.DeepEqual, which is slow where it runs for
// every change of a pod's readiness.
func sameStatus(a, b *policyv1.PodDisruptionBudgetStatus) bool {
	return a.DisruptionsAllowed == b.DisruptionsAllowed && a.CurrentHealthy == b.CurrentHealthy && a.DesiredHealthy == b.DesiredHealthy &&
		a.ExpectedPods == b.ExpectedPods && a.ObservedGeneration == b.ObservedGeneration &&
		maps.EqualFunc(a.DisruptedPods, b.DisruptedPods, func(x, y metav1.Time) bool { return x.Equal(&y) }) &&
		slices.EqualFunc(a.Conditions, b.Conditions, func(x, y metav1.Condition) bool {
			return x.Type == y.Type && x.Status == y.Status && x.Reason == y.Reason && x.Message == y.Message &&
				x.ObservedGeneration == y.ObservedGeneration && x.LastTransitionTime.Equal(&y.LastTransitionTime)
		})
}

// budgetHealth is what a budget's status says in numbers, as things are now,
// in the midst of a command too.
type budgetHealth struct {
	expected, current, desired, allowed int64
	announced                           map[string]metav1.Time
	// failed says why nothing can be said of what is expected; "" if it can.
	failed string
}

// health counts (PD2, PD3). Percentages are rounded up.
func (v *View) health(b *policyv1.PodDisruptionBudget, c *coverage) budgetHealth {
	h := budgetHealth{expected: c.pods, current: c.healthy}
	if c.rule.scaled {
		h.expected = min(c.scale, math.MaxInt32)
	}
	if c.strays > 0 {
		h.failed = "found no controller of the pods: " + v.firstStray(c.rule.key)
	}
	switch {
	case b.Spec.MaxUnavailable != nil:
		h.desired = max(0, h.expected-portion(b.Spec.MaxUnavailable, h.expected))
	case b.Spec.MinAvailable != nil:
		h.desired = portion(b.Spec.MinAvailable, h.expected)
	}
	if len(b.Status.DisruptedPods) > 0 {
		h.announced = v.stillAnnounced(b, c.rule, &h.current)
	}
	if h.expected > 0 && h.failed == "" {
		h.allowed = max(0, h.current-h.desired)
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
func (v *View) stillAnnounced(b *policyv1.PodDisruptionBudget, r *budgetRule, current *int64) map[string]metav1.Time {
	out := map[string]metav1.Time{}
	// order does not matter: it is a set that is counted.
	for name, at := range b.Status.DisruptedPods {
		pod, ok := v.Pods.Get(PodKey(b.Namespace, name))
		if !ok || model.Terminating(pod) || runsOut(at) < v.TimeUnixNano() || !r.selector.Matches(labels.Set(pod.Labels)) {
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

// budgetStatus is a budget's whole status; conditions of others stay.
func (tx *Tx) budgetStatus(b *policyv1.PodDisruptionBudget, c *coverage) policyv1.PodDisruptionBudgetStatus {
	h := tx.view.health(b, c)
	condition := metav1.Condition{
		Type: policyv1.DisruptionAllowedCondition, ObservedGeneration: b.Generation, LastTransitionTime: tx.now(),
		Status: metav1.ConditionFalse, Reason: policyv1.InsufficientPodsReason,
	}
	switch {
	case h.failed != "":
		condition.Reason, condition.Message = policyv1.SyncFailedReason, h.failed
	case h.allowed > 0:
		condition.Status, condition.Reason = metav1.ConditionTrue, policyv1.SufficientPodsReason
	}
	return policyv1.PodDisruptionBudgetStatus{
		ObservedGeneration: b.Generation,
		DisruptedPods:      h.announced,
		DisruptionsAllowed: int32(h.allowed),
		CurrentHealthy:     int32(h.current),
		DesiredHealthy:     int32(h.desired),
		ExpectedPods:       int32(h.expected),
		Conditions:         withCondition(b.Status.Conditions, condition),
	}
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

// budgetEvents tells, once when it comes about, what makes a budget not do what
// its owner expects of it.
func (tx *Tx) budgetEvents(old, b *policyv1.PodDisruptionBudget, before, c *coverage) {
	if before == nil {
		before = &coverage{rule: &budgetRule{}}
		if c.pods == 0 {
			tx.budgetEvent(b, corev1.EventTypeNormal, "NoPods", "No matching pods found")
		}
	}
	if c.unmanaged > 0 && before.unmanaged == 0 {
		tx.budgetEvent(b, corev1.EventTypeWarning, "UnmanagedPods", fmt.Sprintf(
			"Pods selected by this PodDisruptionBudget (selector: %s) have no controller, so that nobody says how many of them there should be: they are not counted as expected. Set .spec.minAvailable to a number of pods to count them.", c.rule.selector))
	}
	if c.strays > 0 && before.strays == 0 {
		tx.budgetEvent(b, corev1.EventTypeWarning, "CalculateExpectedPodCountFailed",
			"Failed to calculate the number of expected pods: "+tx.view.health(old, c).failed)
	}
}

func (tx *Tx) budgetEvent(b *policyv1.PodDisruptionBudget, eventType, reason, message string) {
	tx.repeatedEvent(b.Namespace, b.Name, budgetInvolved(b), eventType, reason, message)
}

func budgetInvolved(b *policyv1.PodDisruptionBudget) corev1.ObjectReference {
	return corev1.ObjectReference{
		Kind: "PodDisruptionBudget", APIVersion: "policy/v1", Namespace: b.Namespace, Name: b.Name, UID: b.UID, ResourceVersion: b.ResourceVersion,
	}
}
