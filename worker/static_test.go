package worker

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/worker/eviction"
)

// A pod of the node's own never goes for its node's sake, whatever its priority is.
func TestStaticPodsStay(t *testing.T) {
	c := NewCore(CoreOptions{Node: testNode(t)})
	own, other := testPod("own"), testPod("other")
	own.UID, own.Spec.Priority = "0123456789abcdef0123456789abcdef", new(int32)
	now := newStepClock().Now()
	c.SetStatic(Manifests{Pods: []*corev1.Pod{own}}, now)
	c.Assign(Assignment{Full: true, Pods: []*corev1.Pod{other}}, now)
	c.SetPressure(Pressure{Disk: true})
	for _, pod := range []*corev1.Pod{own, other} {
		c.pods[pod.UID].ctrs[0].began(now)
		c.Evict(pod.UID, "too little is left", &eviction.Config{}, &eviction.Threshold{Signal: eviction.MemoryAvailable}, now)
	}
	if c.pods[own.UID].verdict != nil || c.pods[other.UID].verdict == nil {
		t.Errorf("own: %v, other: %v", c.pods[own.UID].verdict, c.pods[other.UID].verdict)
	}
	late := testPod("late")
	late.UID = "fedcba9876543210fedcba9876543210"
	c.SetStatic(Manifests{Pods: []*corev1.Pod{own, late}}, now)
	if p := c.pods[late.UID]; p == nil || p.admission != admitted {
		t.Errorf("one that comes when the disk is full: %+v", p)
	}
}
