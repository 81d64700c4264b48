package worker

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/berth-dev/berth/model"
	"github.com/berth-dev/berth/worker/runtime"
)

// The status says of every kind of container how it has its volumes, and of what is read-only whether that goes for what is mounted below.
func TestVolumeMountsInTheStatus(t *testing.T) {
	possible, disabled, enabled := corev1.RecursiveReadOnlyIfPossible, corev1.RecursiveReadOnlyDisabled, corev1.RecursiveReadOnlyEnabled
	pod := testPod("p")
	mounted := corev1.Container{Name: "init", VolumeMounts: []corev1.VolumeMount{
		{Name: "data", MountPath: "/data"},
		{Name: "conf", MountPath: "/conf", ReadOnly: true, RecursiveReadOnly: &possible},
		{Name: "more", MountPath: "/more", ReadOnly: true},
	}}
	pod.Spec.InitContainers = []corev1.Container{mounted}
	var debugger corev1.EphemeralContainer
	debugger.Name, debugger.VolumeMounts = "debugger", mounted.VolumeMounts
	pod.Spec.EphemeralContainers = []corev1.EphemeralContainer{debugger}
	var classes model.Classes
	for below, want := range map[bool]*corev1.RecursiveReadOnlyMode{true: &enabled, false: &disabled} {
		p := newPodState(pod, classes.Of(pod), &podEnv{readOnlyBelow: func() bool { return below }}, epoch)
		s := p.status(epoch)
		statuses := []corev1.VolumeMountStatus{
			{Name: "data", MountPath: "/data"},
			{Name: "conf", MountPath: "/conf", ReadOnly: true, RecursiveReadOnly: want},
			{Name: "more", MountPath: "/more", ReadOnly: true, RecursiveReadOnly: &disabled},
		}
		for name, got := range map[string][]corev1.VolumeMountStatus{
			"init": s.InitContainerStatuses[0].VolumeMounts, "debugger": s.EphemeralContainerStatuses[0].VolumeMounts,
		} {
			if !equality.Semantic.DeepEqual(got, statuses) {
				t.Errorf("%s, read-only below %v: %+v", name, below, got)
			}
		}
		if got := s.ContainerStatuses[0].VolumeMounts; got != nil {
			t.Errorf("a container without volumes has %+v", got)
		}
	}
}

// An init container that has done its work is ready until it is to do it again: one that waits for its turn in a pod that begins anew is not.
func TestInitContainerThatWaitsAnew(t *testing.T) {
	pod := testPod("p")
	pod.Spec.InitContainers = []corev1.Container{{Name: "init"}}
	var classes model.Classes
	for turn, ready := range map[bool]bool{false: true, true: false} {
		p := newPodState(pod, classes.Of(pod), &podEnv{}, epoch)
		c := &p.ctrs[0]
		c.state, c.attempt, c.exit, c.fresh, c.turn = ctrEnded, 0, &runtime.Exit{Reason: runtime.ReasonCompleted}, turn, turn
		s := p.status(epoch).InitContainerStatuses[0]
		if s.Ready != ready || (s.State.Terminated != nil) != ready {
			t.Errorf("with its turn to come %v it is %+v", turn, s)
		}
	}
}
