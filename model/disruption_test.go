package model

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestViolatorPriority(t *testing.T) {
	budget := func(from string) *policyv1.PodDisruptionBudget {
		b := &policyv1.PodDisruptionBudget{}
		if from != "" {
			b.Annotations = map[string]string{ViolatorPriorityAnnotation: from}
		}
		return b
	}
	for _, c := range []struct {
		from     string
		valid    bool
		priority int32
		strict   bool
		may      bool
	}{
		{"", true, -5, false, true},
		{"", true, 5, true, false},
		{"10", true, 9, false, false},
		{"10", true, 10, false, true},
		{"10", true, 10, true, false},
		{"-10", true, -10, false, true},
		{"2000000000", true, SystemNodeCriticalPriority, false, true},
		{"2000000001", false, SystemNodeCriticalPriority, false, true},
		{"99999999999", false, SystemNodeCriticalPriority, false, false},
		{"high", false, 5, false, false},
		{"1.5", false, 5, false, false},
	} {
		b := budget(c.from)
		if valid := len(ValidateViolatorPriority(b.Annotations)) == 0; valid != c.valid {
			t.Errorf("%q is valid: %t", c.from, valid)
		}
		if may := MayViolate(b, c.priority, c.strict); may != c.may {
			t.Errorf("priority %d, strict %t may violate a budget from %q on: %t", c.priority, c.strict, c.from, may)
		}
	}
}

func TestValidateDisruptionPolicy(t *testing.T) {
	for value, valid := range map[string]bool{"Strict": true, "BestEffort": true, "": false, "strict": false} {
		if got := len(ValidateDisruptionPolicy(map[string]string{DisruptionPolicyAnnotation: value})) == 0; got != valid {
			t.Errorf("%q is valid: %t", value, got)
		}
	}
	if ValidateDisruptionPolicy(nil) != nil {
		t.Error("the annotation is needed")
	}
}

func TestHealthy(t *testing.T) {
	now := metav1.Now()
	for name, c := range map[string]struct {
		change func(p *corev1.Pod)
		want   bool
	}{
		"ready":       {func(*corev1.Pod) {}, true},
		"not ready":   {func(p *corev1.Pod) { p.Status.Conditions[0].Status = corev1.ConditionFalse }, false},
		"not known":   {func(p *corev1.Pod) { p.Status.Conditions = nil }, false},
		"terminating": {func(p *corev1.Pod) { p.DeletionTimestamp = &now }, false},
		"succeeded":   {func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }, false},
		"failed":      {func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }, false},
	} {
		p := &corev1.Pod{Status: corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}}}
		c.change(p)
		if Healthy(p) != c.want {
			t.Errorf("%s: %t", name, !c.want)
		}
	}
}
