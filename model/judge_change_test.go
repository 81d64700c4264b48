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

func TestHelpedBy(t *testing.T) {
	with := func(affinity *corev1.Affinity, spread ...corev1.TopologySpreadConstraint) *Class {
		return ClassOf(&corev1.Pod{Spec: corev1.PodSpec{Affinity: affinity, TopologySpreadConstraints: spread}})
	}
	terms := []corev1.PodAffinityTerm{{TopologyKey: "zone"}}
	for _, c := range []struct {
		name  string
		class *Class
		came  bool
	}{
		{"no rules", with(nil), false},
		{"spread", with(nil, corev1.TopologySpreadConstraint{MaxSkew: 1, TopologyKey: "zone", WhenUnsatisfiable: corev1.DoNotSchedule}), true},
		{"soft spread", with(nil, corev1.TopologySpreadConstraint{MaxSkew: 1, TopologyKey: "zone", WhenUnsatisfiable: corev1.ScheduleAnyway}), false},
		{"affinity", with(&corev1.Affinity{PodAffinity: &corev1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: terms}}), true},
		{"anti-affinity", with(&corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: terms}}), false},
	} {
		for how, want := range map[PodChange]bool{PodCame: c.came, PodLeaving: true, PodLeft: true, PodGone: true} {
			if got := c.class.HelpedBy(how); got != want {
				t.Errorf("%s, change %d: %v", c.name, how, got)
			}
		}
	}
}
