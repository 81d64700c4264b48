package model

import (
	"fmt"
	"math"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/berth-dev/berth/api/berthv1"
)

const (
	// DisruptionPolicyAnnotation says on a pod whether preempting for it may violate disruption budgets. On a
	// PriorityClass it is what new pods of the class get that say nothing themselves.
	DisruptionPolicyAnnotation = "berth.dev/disruption-policy"
	// StrictBudgets: no budget is ever violated for the pod.
	StrictBudgets = "Strict"
	// BestEffortBudgets: budgets are violated where nothing else makes room (PD13).
	BestEffortBudgets = "BestEffort"

	// ViolatorPriorityAnnotation says on a PodDisruptionBudget from which priority on a pod may violate it.
	ViolatorPriorityAnnotation = "berth.dev/allow-disruption-by-priority-greater-than-or-equal"
)

// Ready says whether the pod's Ready condition is true.
func Ready(pod *corev1.Pod) bool {
	for i := range pod.Status.Conditions {
		if c := &pod.Status.Conditions[i]; c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// Healthy says whether the pod counts as healthy for its disruption budgets (PD3): ready, and neither ended nor on its
// way out.
func Healthy(pod *corev1.Pod) bool { return !Terminating(pod) && !Terminal(pod) && Ready(pod) }

// DemandsStrictBudgets says whether the pod itself demands that no budget is violated for it.
func DemandsStrictBudgets(pod *corev1.Pod) bool {
	return pod.Annotations[DisruptionPolicyAnnotation] == StrictBudgets
}

// ValidateDisruptionPolicy checks the annotation of a pod or a PriorityClass.
func ValidateDisruptionPolicy(annotations map[string]string) field.ErrorList {
	switch v, ok := annotations[DisruptionPolicyAnnotation]; {
	case !ok, v == StrictBudgets, v == BestEffortBudgets:
		return nil
	default:
		return field.ErrorList{field.NotSupported(annotationPath(DisruptionPolicyAnnotation), v, []string{StrictBudgets, BestEffortBudgets})}
	}
}

// ValidateViolatorPriority checks the annotation of a PodDisruptionBudget: an integer that no system class exceeds.
func ValidateViolatorPriority(annotations map[string]string) field.ErrorList {
	v, ok := annotations[ViolatorPriorityAnnotation]
	if !ok {
		return nil
	}
	path := annotationPath(ViolatorPriorityAnnotation)
	n, err := strconv.ParseInt(v, 10, 32)
	switch {
	case err != nil:
		return field.ErrorList{field.Invalid(path, v, "must be an integer of 32 bits")}
	case n > int64(SystemCriticalPriority):
		return field.ErrorList{field.Invalid(path, v, fmt.Sprintf("must not be above %d, so that system pods always find room", SystemCriticalPriority))}
	}
	return nil
}

func annotationPath(key string) *field.Path { return field.NewPath("metadata", "annotations").Key(key) }

// StrictFor says whether no budget is ever violated for the pods of a class: they demand it themselves, or the
// configuration does. A system class obeys the configuration's strictness only where that says so, or any user's budget
// would keep the system's own pods out.
func StrictFor(p *berthv1.PreemptionConfiguration, class *Class) bool {
	switch {
	case class.StrictBudgets:
		return true
	case class.Priority >= SystemCriticalPriority && p.SystemClassBudgets != berthv1.BudgetsStrict:
		return false
	}
	return p.Budgets == berthv1.BudgetsStrict
}

// ProtectsBelow is the priority below which no pod may violate the budget when preempting, strict or not; false if it says
// none.
func ProtectsBelow(b *policyv1.PodDisruptionBudget) (priority int64, ok bool) {
	v, ok := b.Annotations[ViolatorPriorityAnnotation]
	if !ok {
		return 0, false
	}
	n, err := strconv.ParseInt(v, 10, 32)
	if err != nil {
		return math.MaxInt64, true // it cannot be stored; should it be there nonetheless, it protects
	}
	return n, true
}

// MayViolate says whether preempting for a pod may violate the budget: not under strictness, and not for a pod of lower
// priority than the budget's annotation names.
func MayViolate(b *policyv1.PodDisruptionBudget, priority int32, strict bool) bool {
	if strict {
		return false
	}
	below, ok := ProtectsBelow(b)
	return !ok || int64(priority) >= below
}
