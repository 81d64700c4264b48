package fsm

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apiresource "k8s.io/apimachinery/pkg/api/resource"
)

// What a RuntimeClass says of nodes is added to what the pod says; what pods
// share is not touched by it.
func TestRuntimeClassScheduling(t *testing.T) {
	s := newTranscript(t)
	for _, line := range []string{
		"object runtimeclasses vm selector=vm:yes,zone:a tolerate=vm:NoSchedule,spot:NoExecute",
		"pod before selector=zone:a tolerate=spot:NoExecute",
		"pod web runtime=vm selector=zone:a tolerate=spot:NoExecute",
		"pod other runtime=vm selector=zone:a tolerate=spot:NoExecute",
	} {
		s.quiet = true
		if out := s.line(line); out != "ok" {
			t.Fatalf("%s: %s", line, out)
		}
	}
	tolerates := func(key string, effect corev1.TaintEffect) corev1.Toleration {
		return corev1.Toleration{Key: key, Operator: corev1.TolerationOpExists, Effect: effect}
	}
	for name, want := range map[string]corev1.PodSpec{
		"before": {NodeSelector: map[string]string{"zone": "a"}, Tolerations: []corev1.Toleration{tolerates("spot", "NoExecute")}},
		"web": {
			NodeSelector: map[string]string{"zone": "a", "vm": "yes"},
			Tolerations:  []corev1.Toleration{tolerates("spot", "NoExecute"), tolerates("vm", "NoSchedule")},
		},
	} {
		pod, _ := s.view().Pods.Get("default/" + name)
		if !equality.Semantic.DeepEqual(pod.Spec.NodeSelector, want.NodeSelector) || !equality.Semantic.DeepEqual(pod.Spec.Tolerations, want.Tolerations) {
			t.Errorf("%s: node selector %v, tolerations %v", name, pod.Spec.NodeSelector, pod.Spec.Tolerations)
		}
	}
	web, _ := s.view().Pods.Get("default/web")
	other, _ := s.view().Pods.Get("default/other")
	if &web.Spec.Containers[0] != &other.Spec.Containers[0] {
		t.Error("pods of the same class and template do not share their spec")
	}
}

func TestFollowCapacity(t *testing.T) {
	amounts := func(of map[corev1.ResourceName]string) corev1.ResourceList {
		out := corev1.ResourceList{}
		for name, v := range of {
			out[name] = apiresource.MustParse(v)
		}
		return out
	}
	type list = map[corev1.ResourceName]string
	for name, c := range map[string]struct{ hadCapacity, had, capacity, allocatable, want list }{
		"new":              {list{"cpu": "4"}, list{"cpu": "3"}, list{"cpu": "4", "x.dev/a": "5"}, list{"cpu": "3"}, list{"cpu": "3", "x.dev/a": "5"}},
		"changed":          {list{"x.dev/a": "5"}, list{"x.dev/a": "5"}, list{"x.dev/a": "7"}, list{"x.dev/a": "5"}, list{"x.dev/a": "7"}},
		"both changed":     {list{"x.dev/a": "5"}, list{"x.dev/a": "5"}, list{"x.dev/a": "7"}, list{"x.dev/a": "6"}, list{"x.dev/a": "6"}},
		"gone":             {list{"x.dev/a": "5"}, list{"x.dev/a": "5"}, list{}, list{"x.dev/a": "5"}, list{}},
		"only allocatable": {list{"x.dev/a": "5"}, list{"x.dev/a": "5"}, list{"x.dev/a": "5"}, list{"x.dev/a": "1"}, list{"x.dev/a": "1"}},
		"a worker's":       {list{"cpu": "4"}, list{"cpu": "3"}, list{"cpu": "8"}, list{"cpu": "3"}, list{"cpu": "3"}},
	} {
		old := &corev1.Node{Status: corev1.NodeStatus{Capacity: amounts(c.hadCapacity), Allocatable: amounts(c.had)}}
		node := &corev1.Node{Status: corev1.NodeStatus{Capacity: amounts(c.capacity), Allocatable: amounts(c.allocatable)}}
		followCapacity(old, node)
		if !equality.Semantic.DeepEqual(node.Status.Allocatable, amounts(c.want)) {
			t.Errorf("%s: %v", name, node.Status.Allocatable)
		}
	}
}
