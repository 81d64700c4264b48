package model

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestWorkerStatusDigest: what a worker and the servers hold of a status differs where something else is true on the
// node, and nowhere else; they would tell each other for ever.
func TestWorkerStatusDigest(t *testing.T) {
	at := func(seconds int64) metav1.Time { return metav1.NewTime(time.Unix(seconds, 0)) }
	status := func(change func(s *corev1.PodStatus)) *corev1.PodStatus {
		started := at(100)
		s := &corev1.PodStatus{Phase: corev1.PodRunning, StartTime: &started, Conditions: []corev1.PodCondition{
			{Type: corev1.PodScheduled, Status: corev1.ConditionTrue, LastTransitionTime: at(90)},
			{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: at(110)},
		}}
		change(s)
		return s
	}
	same := WorkerStatusDigest(status(func(*corev1.PodStatus) {}))
	later := at(1000)
	for name, c := range map[string]struct {
		change func(s *corev1.PodStatus)
		equal  bool
	}{
		"the start":              {func(s *corev1.PodStatus) { s.StartTime = &later }, true},
		"the nomination":         {func(s *corev1.PodStatus) { s.NominatedNodeName = "n" }, true},
		"since when it is ready": {func(s *corev1.PodStatus) { s.Conditions[1].LastTransitionTime = later }, true},
		"another's condition":    {func(s *corev1.PodStatus) { s.Conditions[0].Status = corev1.ConditionFalse }, true},
		"whether it is ready":    {func(s *corev1.PodStatus) { s.Conditions[1].Status = corev1.ConditionFalse }, false},
		"why it is ready":        {func(s *corev1.PodStatus) { s.Conditions[1].Reason = "Other" }, false},
		"its phase":              {func(s *corev1.PodStatus) { s.Phase = corev1.PodFailed }, false},
	} {
		if equal := WorkerStatusDigest(status(c.change)) == same; equal != c.equal {
			t.Errorf("%s: equal %t", name, equal)
		}
	}
}
