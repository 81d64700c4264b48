package model

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Priorities and names that mean something to the system (PC2, PC3, PC5, T6).
const (
	DefaultPriority               int32 = 0
	HighestUserPriority           int32 = 1_000_000_000
	SystemCriticalPriority        int32 = 2_000_000_000
	SystemClusterCriticalPriority int32 = SystemCriticalPriority
	SystemNodeCriticalPriority    int32 = SystemCriticalPriority + 1000

	SystemClassPrefix     = "system-"
	SystemClusterCritical = SystemClassPrefix + "cluster-critical"
	SystemNodeCritical    = SystemClassPrefix + "node-critical"
)

// RolesAnnotation says on the namespace kube-system that the cluster has had roles, so that one whose
// last role was deleted is not taken for one of before there were any.
const RolesAnnotation = "berth.dev/has-roles"

// RestrictedUseAnnotation says on a PriorityClass, by "true", that pods that name it are made only by those whose roles
// allow them the verb "use" on it (AD5).
const RestrictedUseAnnotation = "berth.dev/restricted-use"

// RestrictsUse says whether a class is one that not everybody may use.
func RestrictsUse(pc *schedulingv1.PriorityClass) bool {
	return pc.Annotations[RestrictedUseAnnotation] == "true"
}

// ValidateRestrictedUse checks the annotation, if it is there.
func ValidateRestrictedUse(annotations map[string]string) field.ErrorList {
	value, ok := annotations[RestrictedUseAnnotation]
	if !ok || value == "true" || value == "false" {
		return nil
	}
	return field.ErrorList{field.NotSupported(field.NewPath("metadata", "annotations").Key(RestrictedUseAnnotation), value, []string{"true", "false"})}
}

// Priority returns the pod's priority; a pod that has none counts as 0 (AD6).
func Priority(pod *corev1.Pod) int32 {
	if pod.Spec.Priority == nil {
		return DefaultPriority
	}
	return *pod.Spec.Priority
}

// NeverPreempts says whether the pod waits in the queue by its priority but evicts nobody (PC12).
func NeverPreempts(pod *corev1.Pod) bool {
	return pod.Spec.PreemptionPolicy != nil && *pod.Spec.PreemptionPolicy == corev1.PreemptNever
}

// SystemClasses returns fresh copies of the two classes that exist in every cluster and cannot be deleted (PC3).
func SystemClasses() []*schedulingv1.PriorityClass {
	preempt := corev1.PreemptLowerPriority
	class := func(name string, value int32, description string) *schedulingv1.PriorityClass {
		return &schedulingv1.PriorityClass{
			TypeMeta:         metav1.TypeMeta{},
			ObjectMeta:       metav1.ObjectMeta{Name: name},
			Value:            value,
			Description:      description,
			PreemptionPolicy: &preempt,
		}
	}
	return []*schedulingv1.PriorityClass{
		class(SystemClusterCritical, SystemClusterCriticalPriority,
			"Used for system critical pods that must run in the cluster, but can be moved to another node if necessary."),
		class(SystemNodeCritical, SystemNodeCriticalPriority,
			"Used for system critical pods that must not be moved from their current node."),
	}
}

// IsSystemClass says whether name is one of the two system classes.
func IsSystemClass(name string) bool {
	return name == SystemClusterCritical || name == SystemNodeCritical
}

// ValidateUserClass checks what PC2 and PC3 demand of a class that somebody wants to store: a value within the users'
// range, no name with the system prefix unless it is exactly a system class, and a disruption policy that there is. An
// empty list means it may be stored.
func ValidateUserClass(pc *schedulingv1.PriorityClass) field.ErrorList {
	if errs := ValidateDisruptionPolicy(pc.Annotations); len(errs) > 0 {
		return errs
	}
	if strings.HasPrefix(pc.Name, SystemClassPrefix) {
		if reason := notSystemClass(pc); reason != "" {
			return field.ErrorList{field.Forbidden(field.NewPath("metadata", "name"),
				"priority class names with '"+SystemClassPrefix+"' prefix are reserved for system use only. error: "+reason)}
		}
		return nil
	}
	if pc.Value > HighestUserPriority {
		return field.ErrorList{field.Forbidden(field.NewPath("value"),
			fmt.Sprintf("maximum allowed value of a user defined priority is %d", HighestUserPriority))}
	}
	return nil
}

func notSystemClass(pc *schedulingv1.PriorityClass) string {
	for _, known := range SystemClasses() {
		switch {
		case known.Name != pc.Name:
			continue
		case known.Value != pc.Value:
			return fmt.Sprintf("value of %s PriorityClass must be %d", known.Name, known.Value)
		case known.GlobalDefault != pc.GlobalDefault:
			return fmt.Sprintf("globalDefault of %s PriorityClass must be %t", known.Name, known.GlobalDefault)
		}
		return ""
	}
	return pc.Name + " is not a known system priority class"
}

// ValidateClassUpdate checks that an update leaves value and preemptionPolicy as they are (PC8).
func ValidateClassUpdate(updated, old *schedulingv1.PriorityClass) field.ErrorList {
	var errs field.ErrorList
	if updated.Value != old.Value {
		errs = append(errs, field.Forbidden(field.NewPath("value"), "may not be changed in an update."))
	}
	if policyOf(updated) != policyOf(old) {
		errs = append(errs, field.Invalid(field.NewPath("preemptionPolicy"), policyOf(updated), "field is immutable"))
	}
	return errs
}

func policyOf(pc *schedulingv1.PriorityClass) corev1.PreemptionPolicy {
	if pc.PreemptionPolicy == nil {
		return corev1.PreemptLowerPriority
	}
	return *pc.PreemptionPolicy
}
