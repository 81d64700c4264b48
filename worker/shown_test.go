package worker

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/worker/runtime"
)

// What a node shows of its pods is what it knows of them: also of its own, and of what is to go; what runs of one whose object is no more
// is shown only as that.
func TestPodsShown(t *testing.T) {
	c := NewCore(CoreOptions{Node: testNode(t), Sandboxes: true})
	now := newStepClock().Now()
	lost := testPod("lost")
	c.Adopt([]runtime.Pod{{Pod: lost, Lost: true, Sandbox: &runtime.Sandbox{}}}, now)
	web, ends, none, own := testPod("web"), testPod("ends"), testPod("gone"), testPod("own")
	gate := corev1.PodCondition{Type: "example.com/gate", Status: corev1.ConditionTrue}
	web.Kind, web.Spec.Containers[0].Image = "Pod", "web:1"
	web.Status = corev1.PodStatus{Phase: corev1.PodPending, Conditions: []corev1.PodCondition{gate, {Type: corev1.PodReady}}}
	own.UID = "0123456789abcdef0123456789abcdef"
	c.SetStatic(Manifests{Pods: []*corev1.Pod{own}}, now)
	c.Assign(Assignment{Full: true, Pods: []*corev1.Pod{web, ends, none}}, now)
	for _, pod := range []*corev1.Pod{web, ends, none, own} {
		p := c.pods[pod.UID]
		p.sandbox = sandboxReady
		p.ctrs[0].next = p.made(&p.ctrs[0])
		p.ctrs[0].began(now)
	}
	c.pods[ends.UID].ctrs[0].ended(&runtime.Exit{Code: 3})
	c.Assign(Assignment{Pods: []*corev1.Pod{deleted(ends, 30)}, Gone: []types.UID{none.UID}}, now)
	shown := c.shown(now)
	said := func(pods []*corev1.Pod) string {
		var out []string
		for _, pod := range pods {
			out = append(out, summary(pod.Name, &pod.Status, false))
		}
		return strings.Join(out, ", ")
	}
	if got, want := said(shown), "ends Failed main=(3), own Running ready main=running, web Running ready main=running"; got != want {
		t.Errorf("the node shows %s; want %s", got, want)
	}
	if shown[0].DeletionTimestamp == nil || shown[2].Kind != "" || web.Kind == "" || web.Status.Phase != corev1.PodPending {
		t.Errorf("the objects are %+v", shown)
	}
	is := shown[2].Status.Conditions
	if !slices.Contains(is, gate) || len(slices.DeleteFunc(is, func(c corev1.PodCondition) bool { return c.Type != corev1.PodReady })) != 1 {
		t.Errorf("its conditions are %+v", is)
	}
	var run []string
	for _, pod := range c.running() {
		run = append(run, fmt.Sprintf("%s/%s/%s", pod.Namespace, pod.Name, pod.UID))
		for _, x := range pod.Spec.Containers {
			run = append(run, x.Name+" "+x.Image)
		}
	}
	want := []string{"default/ends/ends", "default/gone/gone", "main ", "default/own/" + string(own.UID), "main ", "default/web/web", "main web:1"}
	if !slices.Equal(run, want) {
		t.Errorf("what runs is %q; want %q", run, want)
	}
}
