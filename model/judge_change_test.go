package model

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
)

func TestLowestPriority(t *testing.T) {
	of := func(priority int32) *Class {
		return ClassOf(&corev1.Pod{Spec: corev1.PodSpec{Priority: &priority}})
	}
	topo := NewTopology()
	empty := topo.LowestPriority()
	if empty < HighestUserPriority {
		t.Errorf("no pods: %d", empty)
	}
	topo.AddPod("n1", of(5), false)
	topo.Nominate("n1", of(-3), -3)
	if got := topo.LowestPriority(); got != -3 {
		t.Errorf("5 and -3: %d", got)
	}
	topo.Unnominate("n1", of(-3), -3)
	if got := topo.LowestPriority(); got != 5 {
		t.Errorf("5 alone: %d", got)
	}
	topo.RemovePod("n1", of(5), false)
	if got := topo.LowestPriority(); got != empty {
		t.Errorf("no pods any more: %d, and %d before there were any", got, empty)
	}
}
