package worker

import (
	"errors"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/worker/runtime"
)

// TERM that the runtime did not take is sent again a second later, and KILL comes when the grace of the first one is over:
// nobody is killed who was never asked to end.
func TestTermThatDidNotArriveIsSentAgain(t *testing.T) {
	core := NewCore(CoreOptions{Node: &corev1.Node{Status: corev1.NodeStatus{Allocatable: corev1.ResourceList{"pods": resource.MustParse("10")}}}})
	grace := int64(5)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web", UID: "u"}, Spec: corev1.PodSpec{
		TerminationGracePeriodSeconds: &grace, Containers: []corev1.Container{{Name: "main"}}}}
	core.Assign(Assignment{Full: true, Pods: []*corev1.Pod{pod}}, epoch)
	id := runtime.ID{Pod: "u", Container: "main"}
	core.Observe(runtime.Event{ID: id, StartedAt: epoch}, epoch)
	core.TakeActions()
	pod = pod.DeepCopy()
	pod.DeletionTimestamp, pod.DeletionGracePeriodSeconds = &metav1.Time{Time: epoch.Add(5 * time.Second)}, &grace
	core.Assign(Assignment{Pods: []*corev1.Pod{pod}}, epoch)
	var sent []string
	for now := epoch; now.Before(epoch.Add(7 * time.Second)); now = now.Add(500 * time.Millisecond) {
		core.Tick(now)
		for _, a := range core.TakeActions() {
			if a.Kind != ActionSignal {
				continue
			}
			sent = append(sent, now.Sub(epoch).String()+" "+a.Signal.String())
			o := Outcome{Action: a}
			if len(sent) < 3 {
				o.Err = errors.New("the runtime does not answer")
			}
			core.Done(o, now)
		}
	}
	want := []string{"0s TERM", "1s TERM", "2s TERM", "5s KILL"}
	if !slices.Equal(sent, want) {
		t.Errorf("signals %v, want %v", sent, want)
	}
}

// A container that has not ended a minute after KILL is taken to be stuck, and not before.
func TestStuckAfterKill(t *testing.T) {
	core := NewCore(CoreOptions{Node: &corev1.Node{Status: corev1.NodeStatus{Allocatable: corev1.ResourceList{"pods": resource.MustParse("10")}}}})
	grace := int64(5)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web", UID: "u"}, Spec: corev1.PodSpec{
		TerminationGracePeriodSeconds: &grace, Containers: []corev1.Container{{Name: "main"}}}}
	core.Assign(Assignment{Full: true, Pods: []*corev1.Pod{pod}}, epoch)
	core.Observe(runtime.Event{ID: runtime.ID{Pod: "u", Container: "main"}, StartedAt: epoch}, epoch)
	core.TakeActions()
	core.Assign(Assignment{Pods: []*corev1.Pod{deleted(pod, 5)}}, epoch)
	kills, stuckAt := 0, time.Duration(0)
	for after := time.Duration(0); after < 80*time.Second; after += 500 * time.Millisecond {
		core.Tick(epoch.Add(after))
		for _, a := range core.TakeActions() {
			if a.Kind == ActionSignal && a.Signal == runtime.Kill {
				kills++
				if a.Stuck && stuckAt == 0 {
					stuckAt = after
				}
			}
			core.Done(Outcome{Action: a}, epoch.Add(after))
		}
	}
	if kills != 15 || stuckAt != 65*time.Second {
		t.Errorf("killed %d times, taken to be stuck after %s", kills, stuckAt)
	}
}
