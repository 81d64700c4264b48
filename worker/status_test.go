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

// The status says who each container began as, as its runtime tells: of the newest run, also when that has ended. Where the runtime does not tell it
// of one that is found, it is what the servers know.
func TestUserInTheStatus(t *testing.T) {
	user := func(uid int64) *corev1.ContainerUser {
		return &corev1.ContainerUser{Linux: &corev1.LinuxContainerUser{UID: uid}}
	}
	pod := testPod("p")
	id := runtime.ID{Pod: pod.UID, Container: "main"}
	var classes model.Classes
	p := newPodState(pod, classes.Of(pod), &podEnv{runtimeName: "fake"}, epoch)
	want := func(when string, p *podState, want *corev1.ContainerUser) {
		t.Helper()
		if got := p.status(epoch).ContainerStatuses[0].User; !equality.Semantic.DeepEqual(got, want) {
			t.Errorf("%s: %+v", when, got)
		}
	}
	c := &p.ctrs[0]
	want("before it runs", p, nil)
	c.state = ctrStarting
	p.observe(runtime.Event{ID: id, Ref: "ref-0", StartedAt: epoch, User: user(7)}, epoch)
	want("it runs", p, user(7))
	p.observe(runtime.Event{ID: id, Ref: "ref-0", StartedAt: epoch, Exit: &runtime.Exit{Code: 1}}, epoch)
	want("it has ended", p, user(7))
	held := pod.DeepCopy()
	held.Status = p.status(epoch)
	id.Attempt, c.state = 1, ctrStarting
	p.observe(runtime.Event{ID: id, Ref: "ref-1", StartedAt: epoch}, epoch)
	want("it runs again, and nobody knows as whom", p, nil)
	for what, found := range map[string]struct {
		run  runtime.Container
		want *corev1.ContainerUser
	}{
		"the runtime tells it":         {runtime.Container{ID: runtime.ID{Pod: pod.UID, Container: "main"}, Ref: "ref-0", User: user(8)}, user(8)},
		"it does not, and the API has": {runtime.Container{ID: runtime.ID{Pod: pod.UID, Container: "main"}, Ref: "ref-0"}, user(7)},
		"the API knows of another run": {runtime.Container{ID: id, Ref: "ref-1"}, nil},
	} {
		p := newPodState(held, classes.Of(held), &podEnv{runtimeName: "fake"}, epoch)
		p.adopt([]runtime.Container{found.run})
		p.recall()
		want(what, p, found.want)
	}
}
