package fsm

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiresource "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/api/berthv1"
)

// TestASweepGoesOnInLaterEntries: what an entry has no time to wake for is woken
// by those that follow, to the last group.
func TestASweepGoesOnInLaterEntries(t *testing.T) {
	const groups = 1200
	s, try := sweptWorld(t, groups)
	for range groups {
		if s.View().WorkPending() {
			try(&ApplyPlan{Revision: s.View().Revision()})
		}
	}
	if q := s.View().QueueLengths(); s.View().WorkPending() || q.Active != groups {
		t.Fatalf("of %d groups that the sweep means so many were woken: %+v", groups, q)
	}
}

// TestASweepThatIsMeantAnewGoesOn: however often something new is meant, and those who were woken wait again, everybody's
// turn comes.
func TestASweepThatIsMeantAnewGoesOn(t *testing.T) {
	const groups = 1200
	s, try := sweptWorld(t, groups)
	woken := map[string]bool{}
	for i := range 10 {
		fail := FailDecision{Diagnosis: &Diagnosis{Message: "no room"}}
		s.View().Queue.Scan("", func(key string, e *QueueEntry) bool {
			if e.State == berthv1.QueueActive {
				pod, _ := s.View().Pods.Get(key)
				fail.Pods, woken[key] = append(fail.Pods, PodRef{Key: key, UID: string(pod.UID)}), true
			}
			return true
		})
		try(&ApplyPlan{Revision: s.View().Revision(), Failures: []FailDecision{fail}}, preemption(i%2 == 0))
	}
	if len(woken) != groups {
		t.Fatalf("of %d groups that each of ten sweeps means so many were woken: %d", groups, len(woken))
	}
	for range groups {
		if s.View().WorkPending() {
			try(&ApplyPlan{Revision: s.View().Revision()})
		}
	}
	if s.View().WorkPending() {
		t.Fatal("the sweep does not end")
	}
}

// preemption configures that there is some, or not: all who wait are looked at.
func preemption(enabled bool) *ConfigureScheduler {
	return &ConfigureScheduler{JSON: fmt.Appendf(nil, `{"metadata":{"name":"cluster"},"spec":{"preemption":{"enabled":%v}}}`, enabled)}
}

// sweptWorld has a group for each of so many pods that wait, of which a sweep has only woken some.
func sweptWorld(t *testing.T, groups int) (s *State, try func(cs ...Command)) {
	now, index := worldStart, uint64(0)
	s = NewState()
	try = func(cs ...Command) {
		t.Helper()
		now = now.Add(time.Hour) // no backoff
		ps := make([]Proposal, len(cs))
		for i, c := range cs {
			ps[i] = Proposal{Command: c}
		}
		entry, err := EncodeEntry(Header{Version: LogVersion, TimeUnixNano: now.UnixNano()}, ps)
		if err != nil {
			t.Fatal(err)
		}
		index++
		results, err := s.Apply(index, 1, entry)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range results {
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
	try(preemption(false))
	if q := s.View().QueueLengths(); !s.View().WorkPending() || q.Waiting == 0 || q.Waiting == groups {
		t.Fatalf("%+v: the sweep was to be more than one entry's", q)
	}
	return s, try
}
