package controller

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// A node is tainted while it is short of something, and what users have written stays.
func TestPressureTaints(t *testing.T) {
	n := &corev1.Node{Spec: corev1.NodeSpec{Taints: []corev1.Taint{{Key: "own", Effect: corev1.TaintEffectNoExecute}}}}
	say := func(status corev1.ConditionStatus) {
		n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeDiskPressure, Status: status}, {Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	}
	if _, changed := withPressure(n); changed {
		t.Error("a node that says nothing is changed")
	}
	say(corev1.ConditionTrue)
	taints, changed := withPressure(n)
	if !changed || len(taints) != 2 || taints[0].Key != "own" || taints[1] != (corev1.Taint{Key: "node.kubernetes.io/disk-pressure", Effect: corev1.TaintEffectNoSchedule}) {
		t.Fatalf("it has %v", taints)
	}
	n.Spec.Taints = taints
	if _, changed := withPressure(n); changed {
		t.Error("what is there already is changed")
	}
	for _, status := range []corev1.ConditionStatus{corev1.ConditionFalse, corev1.ConditionUnknown} {
		say(status)
		if taints, changed := withPressure(n); !changed || len(taints) != 1 || taints[0].Key != "own" {
			t.Errorf("%s: it has %v", status, taints)
		}
	}
}
