package controller_test

import (
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/controller"
	"github.com/berth-dev/berth/fsm"
)

// What changed nothing is not wanted again at once, over and over: the leader would do
// nothing else.
func TestReplicaSetThatChangesNothingWaits(t *testing.T) {
	state := fsm.NewState()
	one, labels := int32(1), map[string]string{"app": "web"}
	set := &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", UID: "web"}, Spec: appsv1.ReplicaSetSpec{
		Replicas: &one, Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}}}}
	raw, err := set.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	entry, err := fsm.EncodeEntry(fsm.Header{Version: fsm.LogVersion, TimeUnixNano: 1, Server: "s1"}, []fsm.Proposal{
		{Command: &fsm.PutNamespace{Create: true, Namespace: fsm.NamespaceWire{Object: &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default", UID: "default"}}}}},
		{Command: &fsm.PutObject{Resource: "replicasets", Raw: raw, Create: true}},
	})
	if err != nil {
		t.Fatal(err)
	}
	results, err := state.Apply(1, 1, entry)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range results {
		if r.Refused() {
			t.Fatal(r.Message)
		}
	}
	v, now, sets := state.View(), time.Second.Nanoseconds(), &controller.ReplicaSets{}
	sets.Reset(v)
	admissions := func() (works []controller.Work) {
		for _, w := range sets.Step(v, now, 10) {
			if _, ok := w.Commands[0].(*fsm.AdmitPods); ok {
				works = append(works, w)
			}
		}
		return works
	}
	works := admissions()
	if len(works) != 1 {
		t.Fatalf("of a pod that is missing: %v", works)
	}
	sets.Settle(v, controller.Outcome{Work: works[0], Results: []fsm.Result{{Revision: v.Revision()}}}, now)
	if again := admissions(); len(again) > 0 {
		t.Errorf("what has changed nothing is wanted again at once: %v", again)
	}
	next, ok := sets.NextUnixNano()
	if !ok || next != now+time.Second.Nanoseconds() {
		t.Fatalf("it looks again at %d, %v", next, ok)
	}
	now = next
	if again := admissions(); len(again) != 1 {
		t.Errorf("a second later: %v", again)
	}
}
