package model

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestPreemptionVictim(t *testing.T) {
	now := metav1.Unix(1, 0)
	with := func(deleted *metav1.Time, reason string, status corev1.ConditionStatus) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{DeletionTimestamp: deleted}, Status: corev1.PodStatus{
			Conditions: []corev1.PodCondition{{Type: corev1.PodReady}, {Type: corev1.DisruptionTarget, Status: status, Reason: reason}}}}
	}
	tests := []struct {
		name string
		pod  *corev1.Pod
		want bool
	}{
		{"T5 preempted and ending", with(&now, corev1.PodReasonPreemptionByScheduler, corev1.ConditionTrue), true},
		{"T5 not yet ending", with(nil, corev1.PodReasonPreemptionByScheduler, corev1.ConditionTrue), false},
		{"T5 ending for another reason", with(&now, "EvictionByEvictionAPI", corev1.ConditionTrue), false},
		{"T5 condition not true", with(&now, corev1.PodReasonPreemptionByScheduler, corev1.ConditionFalse), false},
		{"T5 deleted by somebody", &corev1.Pod{ObjectMeta: metav1.ObjectMeta{DeletionTimestamp: &now}}, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := PreemptionVictim(tt.pod); got != tt.want {
				t.Errorf("got %v", got)
			}
		})
	}
}

func TestTerminal(t *testing.T) {
	for phase, want := range map[corev1.PodPhase]bool{corev1.PodPending: false, corev1.PodRunning: false, corev1.PodUnknown: false,
		corev1.PodSucceeded: true, corev1.PodFailed: true} {
		if Terminal(&corev1.Pod{Status: corev1.PodStatus{Phase: phase}}) != want {
			t.Errorf("%s: want %v", phase, want)
		}
	}
}

func TestHostPorts(t *testing.T) {
	always := corev1.ContainerRestartPolicyAlways
	ports := func(ps ...corev1.ContainerPort) corev1.Container { return corev1.Container{Ports: ps} }
	side := ports(corev1.ContainerPort{HostPort: 9000, Protocol: corev1.ProtocolUDP})
	side.RestartPolicy = &always
	pod := &corev1.Pod{Spec: corev1.PodSpec{
		InitContainers: []corev1.Container{ports(corev1.ContainerPort{HostPort: 1}), side}, // only the sidecar's count
		Containers:     []corev1.Container{ports(corev1.ContainerPort{ContainerPort: 5}, corev1.ContainerPort{HostPort: 80, HostIP: "10.0.0.1"}), ports(corev1.ContainerPort{HostPort: 80})},
	}}
	got := HostPorts(pod)
	want := []HostPort{{AnyHostIP, "TCP", 80}, {"10.0.0.1", "TCP", 80}, {AnyHostIP, "UDP", 9000}}
	if len(got) != len(want) {
		t.Fatalf("got %v, want %v", got, want)
	}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("got %v, want %v", got, want)
		}
	}
}

func TestRawScores(t *testing.T) {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", Labels: map[string]string{"zone": "a", "disk": "ssd"}}, Spec: corev1.NodeSpec{
		Taints: []corev1.Taint{{Key: "x", Effect: corev1.TaintEffectPreferNoSchedule}, {Key: "y", Effect: corev1.TaintEffectPreferNoSchedule}, {Key: "z", Effect: corev1.TaintEffectNoSchedule}}}}
	prefer := func(weight int32, key, value string) corev1.PreferredSchedulingTerm {
		return corev1.PreferredSchedulingTerm{Weight: weight, Preference: corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{expr(key, "In", value)}}}
	}
	choosy := ClassOf(&corev1.Pod{Spec: corev1.PodSpec{
		Affinity: &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{PreferredDuringSchedulingIgnoredDuringExecution: []corev1.PreferredSchedulingTerm{
			prefer(5, "zone", "a"), prefer(3, "disk", "ssd"), prefer(100, "zone", "b"), prefer(0, "zone", "a")}}},
		Tolerations: []corev1.Toleration{{Key: "x", Operator: corev1.TolerationOpExists}, {Key: "y", Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule}},
	}})
	if got := choosy.PreferredAffinity(node); got != 8 {
		t.Errorf("preferred affinity %d, want the sum of the weights that match, 8", got)
	}
	if got := choosy.PreferNoScheduleCount(node); got != 1 {
		t.Errorf("%d taints not tolerated, want 1: the toleration of y is for another effect", got)
	}
	plain := ClassOf(&corev1.Pod{})
	if choosy.AnyNode() || !plain.AnyNode() || plain.PreferredAffinity(node) != 0 {
		t.Error("AnyNode must be true only for a class that asks nothing of a node but room")
	}
}

// TestReasonKinds: every kind that a filter gives has a plugin's name and a wording.
func TestReasonKinds(t *testing.T) {
	for k := NodeUnschedulable; k <= ExistingAntiAffinity; k++ {
		if k == NodeUnschedulable+1 {
			continue // nobody gives it any more
		}
		r := Reason{Kind: k, Resource: "cpu"}
		if k.String() == "None" || r.Text() == (Reason{}).Text() {
			t.Errorf("kind %d: %s, %q", k, k, r.Text())
		}
	}
	if ReasonNone.Resolvable() {
		t.Error("no reason needs no help")
	}
}
