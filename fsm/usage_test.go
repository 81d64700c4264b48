package fsm

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/model"
)

// TestNodeCountsOnlySoManyPods: also of those that name it, and pass no scheduler.
func TestNodeCountsOnlySoManyPods(t *testing.T) {
	m := newMemory(t)
	m.apply(&PutNode{Create: true, Node: NodeWire{Object: benchNodeObject(0)}})
	named := func(count int64) Command {
		pod := benchPod(0)
		pod.Name, pod.GenerateName, pod.Spec.NodeName = "", "crowd-", benchNode(0)
		return &AdmitPods{Template: PodWire{Object: pod}, Count: int32(count)}
	}
	for range model.MaxPodsPerNode / maxAdmitPods {
		m.apply(named(maxAdmitPods))
	}
	m.apply(named(model.MaxPodsPerNode%maxAdmitPods - 1))
	w := &worstWorld{t: t, state: m.state, index: m.index}
	if r := w.may(named(2))[0]; r.Code != 403 {
		t.Errorf("two more than there may be: %+v", r)
	}
	w.must(named(1))
	if n := w.state.View().Usage(benchNode(0)).Requested.Pods; n != model.MaxPodsPerNode {
		t.Errorf("%d pods count", n)
	}
}

// TestUsageByLevel: what the pods and nominations of at least a priority take, at
// once and one by one.
func TestUsageByLevel(t *testing.T) {
	w := worstPlan{Nodes: 6, Zones: 1, Placed: 60, Kinds: 60, Waiting: 30, Shapes: 30, Namespaces: 1, Levels: 7, Nominated: 10}.build(t)
	v := w.state.View()
	for _, node := range []string{w.nodeName(0), w.nodeName(1), w.nodeName(5)} {
		sums := v.usage.Sums(node, briefest)
		for priority := int32(-1); priority < 9; priority++ {
			var pods model.Usage
			v.PodsOnNode(node, func(pod *corev1.Pod) bool {
				if model.Priority(pod) >= priority {
					pods = pods.With(v.usage.ClassOf(pod))
				}
				return true
			})
			if got := v.usage.From(node, priority); !got.Requested.Equal(pods.Requested) {
				t.Errorf("node %s, priority %d: %+v, a walk finds %+v", node, priority, got.Requested, pods.Requested)
			}
			want := v.usage.TakenFrom(node, priority, briefest, "")
			if got := sums.From(priority); !got.Requested.Equal(want.Requested) {
				t.Errorf("node %s, priority %d: %+v, one by one %+v", node, priority, got.Requested, want.Requested)
			}
		}
	}
	if v.Nominations.Len() == 0 {
		t.Error("nobody is nominated")
	}
}
