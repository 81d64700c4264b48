package model

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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

// TestLikenessTellsClassesApart: pods of one shape that find other verdicts are not alike, whatever of their terms their
// own labels match.
func TestLikenessTellsClassesApart(t *testing.T) {
	of := func(app string) *Class {
		selects := func(app string) *metav1.LabelSelector {
			return &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}
		}
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Labels: map[string]string{"app": app}}}
		pod.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{
			{TopologyKey: "host", MaxSkew: 1, WhenUnsatisfiable: corev1.ScheduleAnyway, LabelSelector: selects("a")}}
		pod.Spec.Affinity = &corev1.Affinity{PodAffinity: &corev1.PodAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{
				{TopologyKey: "host", LabelSelector: selects("b")}, {TopologyKey: "zone", LabelSelector: selects("b")}}}}
		return ClassOf(pod)
	}
	topo := NewTopology()
	topo.PutNode(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", Labels: map[string]string{"host": "1", "zone": "1"}}})
	alone, first := topo.Judge(of("a")), topo.Judge(of("b"))
	if alone.Fails("n1") == 0 || first.Fails("n1") != 0 {
		t.Fatalf("the one without a friend: %v; the first of its kind: %v", alone.Fails("n1"), first.Fails("n1"))
	}
	if alone.Likeness() == first.Likeness() {
		t.Errorf("they are alike: %q", first.Likeness())
	}
}
