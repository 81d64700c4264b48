package fsm

import (
	"slices"
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
		s := newReported(t)
		for _, said := range []metav1.Time{c.said, at(1)} { // the first word counts
			s.report(1060, &corev1.PodStatus{Phase: corev1.PodRunning, StartTime: &said})
		}
		got := s.pod()
		if got.Status.StartTime == nil || !got.Status.StartTime.Equal(&c.stored) {
			t.Errorf("said to have started at %s, it has %v, want %s", c.said, got.Status.StartTime, c.stored)
		}
	}
}

// TestAWorkersClockDecidesNoScaleIn: who has been ready for the shortest time goes first
// (SI6), and since when a pod is ready is the state's time, whatever its worker says.
func TestAWorkersClockDecidesNoScaleIn(t *testing.T) {
	at := func(seconds int64) metav1.Time { return metav1.NewTime(time.Unix(seconds, 0).UTC()) }
	for _, worker := range []metav1.Time{{}, at(0), at(1005), at(1010), at(1 << 33)} {
		s := newReported(t)
		for _, step := range []struct {
			now   int64
			ready corev1.ConditionStatus
			want  metav1.Time
		}{
			{1010, corev1.ConditionFalse, at(1010)},
			{1020, corev1.ConditionTrue, at(1020)},
			{1030, corev1.ConditionTrue, at(1020)},
			{1040, corev1.ConditionFalse, at(1040)},
			{1050, corev1.ConditionTrue, at(1050)},
		} {
			status := &corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{
				{Type: corev1.PodReady, Status: step.ready, LastTransitionTime: worker},
			}}
			s.report(step.now, status)
			conditions := s.pod().Status.Conditions
			i := slices.IndexFunc(conditions, func(c corev1.PodCondition) bool { return c.Type == corev1.PodReady })
			if got := conditions[i]; got.Status != step.ready || !got.LastTransitionTime.Equal(&step.want) {
				t.Errorf("at %d its worker says %s since %s: it is %s since %s, want %s",
					step.now, step.ready, worker, got.Status, got.LastTransitionTime, step.want)
			}
			// Said again by a clock that was set, nothing has changed.
			revision := s.pod().ResourceVersion
			status.Conditions[0].LastTransitionTime = at(1015)
			s.report(step.now, status)
			if now := s.pod().ResourceVersion; now != revision {
				t.Errorf("at %d the same by another clock made revision %s of %s", step.now, now, revision)
			}
		}
	}
}

// reported is a state with one pod on one node.
type reported struct {
	*State
	t *testing.T
}

func newReported(t *testing.T) *reported {
	s := &reported{NewState(), t}
	s.must(1000, &PutNamespace{Create: true, Namespace: NamespaceWire{
		Object: &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default", UID: "ns"}},
	}})
	s.must(1000, &PutNode{Create: true, Node: NodeWire{Object: &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", UID: "n1"}}}})
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: "default", Name: "p", UID: "p", CreationTimestamp: metav1.NewTime(time.Unix(1000, 0).UTC()),
	}}
	pod.Spec = corev1.PodSpec{
		SchedulerName: "default-scheduler", NodeName: "n1", Containers: []corev1.Container{{Name: "c", Image: "i"}},
	}
	s.must(1000, &AdmitPod{Pod: PodWire{Object: pod}})
	return s
}

func (s *reported) must(seconds int64, cmd Command) {
	s.t.Helper()
	p := Proposal{User: "test", Groups: []string{"system:masters"}, Command: cmd}
	if r := s.Try(seconds*int64(time.Second), p)[0]; r.Refused() {
		s.t.Fatal(r.Message)
	}
}

func (s *reported) report(seconds int64, status *corev1.PodStatus) {
	s.t.Helper()
	s.must(seconds, &ReportPods{Node: "n1", Reports: []PodReport{
		{Key: "default/p", UID: "p", Status: PodStatusWire{Object: status.DeepCopy()}},
	}})
}

func (s *reported) pod() *corev1.Pod {
	pod, _ := s.View().Pods.Get("default/p")
	return pod
}

// TestABrokenReportIsNamed: who reported learns of which pod nothing was kept; the others' statuses count.
func TestABrokenReportIsNamed(t *testing.T) {
	w := newTranscript(t)
	w.run("cluster", nil, "node n1 cpu=4\npod a cpu=1 uid=a\npod b cpu=1 uid=b")
	w.run("plan", nil, "bind a n1\nbind b n1")
	explode(t, podTable, "default/a")
	status := PodStatusWire{Object: &corev1.PodStatus{Phase: corev1.PodRunning}}
	rs := w.apply(&ReportPods{Node: "n1", Reports: []PodReport{{Key: "default/a", UID: "a", Status: status}, {Key: "default/b", UID: "b", Status: status}}})
	if rs[0].Refused() || !slices.Equal(rs[0].Failed, []string{"default/a"}) {
		t.Errorf("%+v", rs[0])
	}
	for name, phase := range map[string]corev1.PodPhase{"a": corev1.PodPending, "b": corev1.PodRunning} {
		if p, _ := w.view().Pods.Get("default/" + name); p.Status.Phase != phase {
			t.Errorf("%s is %s", name, p.Status.Phase)
		}
	}
}

// TestScheduledTellsTheGeneration: the condition PodScheduled of a bound pod tells the newest generation that its worker has seen, and
// none that there was not.
func TestScheduledTellsTheGeneration(t *testing.T) {
	type said struct{ observed, want int64 }
	for version, reports := range map[int][]said{
		SinceScheduledGeneration - 1: {{1, 1}, {2, 1}},
		SinceScheduledGeneration:     {{0, 1}, {3, 1}, {1, 1}, {2, 2}, {1, 2}, {0, 2}, {-1, 2}},
	} {
		w := newTranscriptBy(t, version)
		w.run("cluster", nil, "node n1 cpu=4\npod a cpu=1 uid=a generation=1")
		w.run("plan", nil, "bind a n1")
		w.line("update-pod a resize cpu=2")
		for _, r := range reports {
			w.apply(&ReportPods{Node: "n1", Reports: []PodReport{{Key: "default/a", UID: "a", Status: PodStatusWire{
				Object: &corev1.PodStatus{Phase: corev1.PodRunning, ObservedGeneration: r.observed},
			}}}})
			pod, _ := w.view().Pods.Get("default/a")
			if c := findCondition(&pod.Status, corev1.PodScheduled); pod.Generation != 2 || c == nil || c.ObservedGeneration != r.want {
				t.Errorf("version %d, of generation %d the worker has seen %d: %+v", version, pod.Generation, r.observed, c)
			}
		}
	}
}
