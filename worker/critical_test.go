package worker

import (
	"fmt"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"github.com/berth-dev/berth/model"
)

// PR21: whatever comes, goes and is restarted, the node is never overcommitted, nobody of the same or a higher rank has to
// go for a critical pod, nobody goes for nothing, and in the end nobody is left between being admitted and refused.
func TestRoomForCriticalPods(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		b := &bench{t: t}
		b.newNode(&datadriven.TestData{CmdArgs: []datadriven.CmdArg{{Key: "cpu", Vals: []string{"4"}}, {Key: "memory", Vals: []string{"1Gi"}}}})
		n, most := 0, int32(0)
		admit := func(rt *rapid.T) {
			n++
			name := fmt.Sprintf("p%d", n)
			priority := rapid.SampledFrom([]int32{0, 0, 5, model.SystemCriticalPriority, model.SystemNodeCriticalPriority}).Draw(rt, "priority")
			request := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(rapid.SampledFrom([]string{"0", "1", "2", "3"}).Draw(rt, "cpu"))}
			p := &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name),
					Annotations: map[string]string{"fake.berth.dev/term-seconds": rapid.SampledFrom([]string{"0", "3", "100"}).Draw(rt, "end")}},
				Spec: corev1.PodSpec{NodeName: "n1", Priority: &priority, Containers: []corev1.Container{{Name: "a",
					Resources: corev1.ResourceRequirements{Requests: request}}}},
				Status: corev1.PodStatus{Phase: corev1.PodPending},
			}
			if rapid.Bool().Draw(rt, "guaranteed") {
				request[corev1.ResourceMemory] = resource.MustParse("1Mi")
				p.Spec.Containers[0].Resources.Limits = request
			}
			b.assignPods(p)
			b.settle()
			if c := b.core.pods[p.UID]; c != nil && c.admission != rejected {
				most = max(most, priority)
			}
		}
		rt.Repeat(map[string]func(*rapid.T){
			"admit": admit, "admit again": admit,
			"delete": func(rt *rapid.T) {
				name := fmt.Sprintf("p%d", rapid.IntRange(1, 9).Draw(rt, "pod"))
				if b.pods[name] != nil {
					p, now, grace := b.pods[name].DeepCopy(), metav1.NewTime(b.clock.Now()), int64(5)
					p.DeletionTimestamp, p.DeletionGracePeriodSeconds = &now, &grace
					b.assignPods(p)
					b.settle()
				}
			},
			"advance": func(rt *rapid.T) {
				b.advance(time.Duration(rapid.SampledFrom([]int{1, 4, 40}).Draw(rt, "seconds")) * time.Second)
			},
			"restart": func(*rapid.T) {
				b.restart(false)
				var full []*corev1.Pod
				for i := range n {
					if p := b.pods[fmt.Sprintf("p%d", i+1)]; p != nil {
						full = append(full, p)
					}
				}
				b.core.Assign(Assignment{Full: true, Pods: full, Node: b.node}, b.clock.Now())
				b.settle()
			},
			"": func(rt *rapid.T) { checkRoom(rt, b, most) },
		})
		b.advance(1000 * time.Second)
		checkRoom(rt, b, most)
		for _, uid := range b.core.uids() {
			if p := b.core.pods[uid]; p.admission == admissionOpen && p.pod.DeletionTimestamp == nil && !model.Terminal(p.pod) {
				rt.Fatalf("%s waits for ever", uid)
			}
		}
	})
}

// checkRoom: most is the highest priority of a pod that was not refused so far.
func checkRoom(t *rapid.T, b *bench, most int32) {
	var used model.Usage
	for _, uid := range b.core.uids() {
		p := b.core.pods[uid]
		if p.counted {
			used = used.With(p.class)
		} else if p.alive() {
			t.Fatalf("%s runs and is not counted", uid)
		}
		if p.verdict == nil || p.verdict.reason != preempting {
			continue
		}
		if p.admission != admitted || most < model.SystemCriticalPriority || p.critical() && p.class.Priority >= most {
			t.Fatalf("%s of priority %d had to go, and %d is the highest there was", uid, p.class.Priority, most)
		}
	}
	if !used.Requested.Equal(b.core.usage.Requested) || used.Requested.MilliCPU > 4000 || used.Requested.Pods > 10 {
		t.Fatalf("the pods use %+v, counted are %+v", used.Requested, b.core.usage.Requested)
	}
}
