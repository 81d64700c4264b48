package fsm

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestAWorkersClockMakesNobodySenior: who has run for longest is evicted last (PR7),
// and the start is what a worker says; but not what it can not be.
func TestAWorkersClockMakesNobodySenior(t *testing.T) {
	at := func(seconds int64) metav1.Time { return metav1.NewTime(time.Unix(seconds, 0).UTC()) }
	made, now := at(1000), at(1060)
	for _, c := range []struct{ said, stored metav1.Time }{
		{at(0), made}, {at(999), made}, {at(1000), at(1000)}, {at(1030), at(1030)}, {at(1060), at(1060)}, {at(1061), now}, {at(1 << 33), now},
	} {
		s := NewState()
		must := func(seconds int64, cmd Command) {
			t.Helper()
			if r := s.Try(seconds*int64(time.Second), Proposal{User: "test", Groups: []string{"system:masters"}, Command: cmd})[0]; r.Refused() {
				t.Fatal(r.Message)
			}
		}
		must(1000, &PutNamespace{Create: true, Namespace: NamespaceWire{Object: &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default", UID: "ns"}}}})
		must(1000, &PutNode{Create: true, Node: NodeWire{Object: &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", UID: "n1"}}}})
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p", UID: "p", CreationTimestamp: made}}
		pod.Spec = corev1.PodSpec{SchedulerName: "default-scheduler", NodeName: "n1", Containers: []corev1.Container{{Name: "c", Image: "i"}}}
		must(1000, &AdmitPod{Pod: PodWire{Object: pod}})
		for _, said := range []metav1.Time{c.said, at(1)} { // the first word counts
			status := &corev1.PodStatus{Phase: corev1.PodRunning, StartTime: &said}
			must(1060, &ReportPods{Node: "n1", Reports: []PodReport{{Key: "default/p", UID: "p", Status: PodStatusWire{Object: status}}}})
		}
		got, _ := s.View().Pods.Get("default/p")
		if got.Status.StartTime == nil || !got.Status.StartTime.Equal(&c.stored) {
			t.Errorf("said to have started at %s, it has %v, want %s", c.said, got.Status.StartTime, c.stored)
		}
	}
}
