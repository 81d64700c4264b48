package workloads

import (
	"strings"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/informers/worldtest"
)

// TestJobsAtRest: a Job waits for its turn with a new leader only while its pods do what it asks for, and nothing else is due.
func TestJobsAtRest(t *testing.T) {
	two, yes := int32(2), true
	seconds := int64(9)
	for what, c := range map[string]struct {
		change func(j *batchv1.Job)
		rests  bool
	}{
		"its pods run":     {func(*batchv1.Job) {}, true},
		"it is done":       {func(j *batchv1.Job) { j.Status = batchv1.JobStatus{CompletionTime: &metav1.Time{}} }, true},
		"one is not ready": {func(j *batchv1.Job) { j.Status.Ready = new(int32) }, false},
		"one ended uncounted": {func(j *batchv1.Job) {
			j.Status.UncountedTerminatedPods = &batchv1.UncountedTerminatedPods{Failed: []types.UID{"u"}}
		}, false},
		"it is suspended now":    {func(j *batchv1.Job) { j.Spec.Suspend = &yes }, false},
		"it has a deadline":      {func(j *batchv1.Job) { j.Spec.ActiveDeadlineSeconds = &seconds }, false},
		"it goes when it ends":   {func(j *batchv1.Job) { j.Spec.TTLSecondsAfterFinished = &two }, false},
		"it is about to go":      {func(j *batchv1.Job) { j.DeletionTimestamp = &metav1.Time{} }, false},
		"it is to be of one pod": {func(j *batchv1.Job) { j.Spec.Parallelism = nil }, false},
	} {
		j := &batchv1.Job{Spec: batchv1.JobSpec{Parallelism: &two}, Status: batchv1.JobStatus{Active: 2, Ready: &two}}
		if c.change(j); rests(nil, j) != c.rests {
			t.Errorf("%s: rests is %t", what, !c.rests)
		}
	}
}

// TestServicesAtRest: a new leader's controllers are told first of services that send traffic to where it is not wanted any more.
func TestServicesAtRest(t *testing.T) {
	w := worldtest.New(t)
	add := func(name string, conditions ...corev1.PodCondition) *corev1.Pod {
		p := &corev1.Pod{ObjectMeta: worldtest.Meta("a", name, 0), Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "i"}}}}
		if p.Spec.NodeName = "n"; !w.Do(t, &fsm.AdmitPod{Pod: fsm.PodWire{Object: p}}) {
			t.Fatalf("no pod %s", name)
		}
		w.Do(t, &fsm.ReportPods{Node: "n", Reports: []fsm.PodReport{{Key: fsm.PodKey("a", name), UID: string(p.UID),
			Status: fsm.PodStatusWire{Object: &corev1.PodStatus{Phase: corev1.PodRunning, Conditions: conditions}}}}})
		return p
	}
	ready, not := add("ready", corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionTrue}), add("not")
	of := func(pod *corev1.Pod, serving bool) discoveryv1.Endpoint {
		return discoveryv1.Endpoint{Conditions: discoveryv1.EndpointConditions{Serving: &serving}, TargetRef: &corev1.ObjectReference{Kind: "Pod", Name: pod.Name, UID: pod.UID}}
	}
	gone, again, ends := *ready, *ready, of(ready, true)
	gone.Name, again.UID, ends.Conditions.Terminating = "gone", "another", new(true)
	for what, c := range map[string]struct {
		endpoints []discoveryv1.Endpoint
		rests     bool
	}{
		"nothing":               {nil, true},
		"as it says":            {[]discoveryv1.Endpoint{of(ready, true), of(not, false)}, true},
		"no pod":                {[]discoveryv1.Endpoint{{}}, true},
		"gone":                  {[]discoveryv1.Endpoint{of(ready, true), of(&gone, true)}, false},
		"another of its name":   {[]discoveryv1.Endpoint{of(&again, true)}, false},
		"is ready, it says":     {[]discoveryv1.Endpoint{of(not, true)}, false},
		"is not ready, says it": {[]discoveryv1.Endpoint{of(ready, false)}, false},
		"ends, it says":         {[]discoveryv1.Endpoint{ends}, false},
	} {
		name := strings.ReplaceAll(strings.ReplaceAll(what, " ", "-"), ",", "")
		for _, of := range []string{name, name + "-other"} {
			s := &discoveryv1.EndpointSlice{ObjectMeta: worldtest.Meta("a", name+"-x", 0), Endpoints: c.endpoints, AddressType: discoveryv1.AddressTypeIPv4}
			if s.Labels = map[string]string{discoveryv1.LabelServiceName: of}; of != name {
				s.Name, s.Endpoints = of+"-x", []discoveryv1.Endpoint{{TargetRef: &corev1.ObjectReference{Kind: "Pod", Name: "gone"}}}
				s.UID += "-other"
			}
			raw, err := s.Marshal()
			if err != nil || !w.Do(t, &fsm.PutObject{Resource: "endpointslices", Raw: raw, Create: true}) {
				t.Fatalf("%s: no slice: %v", what, err)
			}
		}
		if rests(w.View(), &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: name}}) != c.rests {
			t.Errorf("%s: the service rests: %t", what, !c.rests)
		}
	}
}
