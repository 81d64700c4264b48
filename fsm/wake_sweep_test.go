package fsm

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiresource "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestASweepGoesOnInLaterEntries: what an entry has no time to wake for is woken
// by those that follow, to the last group.
func TestASweepGoesOnInLaterEntries(t *testing.T) {
	const groups = 1200
	now, s := worldStart, NewState()
	try := func(cs ...Command) {
		t.Helper()
		ps := make([]Proposal, len(cs))
		for i, c := range cs {
			ps[i] = Proposal{Command: c}
		}
		for _, r := range s.Try(now.UnixNano(), ps...) {
			if r.Refused() {
				t.Fatal(r.Message)
			}
		}
	}
	try(&PutNamespace{Namespace: NamespaceWire{Object: &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default"}}}, Create: true})
	fail := &FailDecision{Diagnosis: &Diagnosis{Message: "no room"}}
	for i := range groups {
		pod := benchPod(i)
		pod.Spec.Containers[0].Resources.Requests["cpu"] = *apiresource.NewQuantity(int64(i+1), apiresource.DecimalSI)
		try(&AdmitPod{Pod: PodWire{Object: pod}})
		fail.Pods = append(fail.Pods, PodRef{Key: PodKey(pod.Namespace, pod.Name), UID: string(pod.UID)})
	}
	try(&ApplyPlan{Revision: s.View().Revision(), Failures: []FailDecision{*fail}})
	now = now.Add(time.Hour) // no backoff
	try(&ConfigureScheduler{JSON: []byte(`{"metadata":{"name":"cluster"},"spec":{"preemption":{"enabled":false}}}`)})
	if q := s.View().QueueLengths(); !s.View().WorkPending() || q.Waiting == 0 || q.Waiting == groups {
		t.Fatalf("%+v: the sweep was to be more than one entry's", q)
	}
	for range groups {
		if s.View().WorkPending() {
			try(&ApplyPlan{Revision: s.View().Revision()})
		}
	}
	if q := s.View().QueueLengths(); s.View().WorkPending() || q.Active != groups {
		t.Fatalf("of %d groups that the sweep means so many were woken: %+v", groups, q)
	}
}
