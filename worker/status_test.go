package worker

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

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

// What a pod that ends says of its containers that never ran, as Kubernetes' status manager has it: init containers up to the last one that ever
// ran have failed, the first one in any case; the others have, once the init containers are behind the pod.
func TestNeverBegan(t *testing.T) {
	done, failed := &runtime.Exit{Reason: runtime.ReasonCompleted}, &runtime.Exit{Code: 1, Reason: runtime.ReasonError}
	for name, c := range map[string]struct {
		inits []*runtime.Exit // nil: it never ran
		ends  func(p *podState)
		want  string
	}{
		"nothing is asked of it":            {nil, func(*podState) {}, "waits"},
		"no init containers":                {nil, isDeleted, "lost"},
		"its object is no more":             {nil, func(p *podState) { p.gone = true }, "lost"},
		"its node ends it":                  {nil, func(p *podState) { p.verdict = &verdict{"Evicted", "why"} }, "lost"},
		"the servers have ended it":         {nil, func(p *podState) { p.pod.Status.Phase = corev1.PodFailed }, "lost"},
		"it was never admitted":             {nil, func(p *podState) { p.admission, p.verdict = rejected, &verdict{"OutOfcpu", "why"} }, ""},
		"no init container ran":             {[]*runtime.Exit{nil, nil}, isDeleted, "lost waits waits"},
		"the first one has failed":          {[]*runtime.Exit{failed, nil}, isDeleted, "1 waits waits"},
		"the first one is done":             {[]*runtime.Exit{done, nil}, isDeleted, "0 waits waits"},
		"both are done":                     {[]*runtime.Exit{done, done}, isDeleted, "0 0 lost"},
		"the first one was not told of":     {[]*runtime.Exit{nil, failed}, isDeleted, "lost 1 waits"},
		"nothing is asked of what has some": {[]*runtime.Exit{nil, nil}, func(*podState) {}, "waits waits waits"},
	} {
		pod := testPod("p")
		for i := range c.inits {
			pod.Spec.InitContainers = append(pod.Spec.InitContainers, corev1.Container{Name: string(rune('a' + i))})
		}
		var classes model.Classes
		p := newPodState(pod, classes.Of(pod), &podEnv{}, epoch)
		p.admission = admitted
		for i, x := range c.inits {
			if x != nil {
				p.ctrs[i].state, p.ctrs[i].attempt, p.ctrs[i].exit = ctrEnded, 0, x
			}
		}
		if c.ends(p); p.gone || p.verdict != nil || p.pod.DeletionTimestamp != nil || model.Terminal(p.pod) {
			p.stopAt = epoch
		}
		s := p.status(epoch)
		var got []string
		for _, one := range append(s.InitContainerStatuses, s.ContainerStatuses...) {
			switch x := one.State.Terminated; {
			case x == nil:
				got = append(got, "waits")
			case x.ExitCode == 137 && x.Reason == "ContainerStatusUnknown" && x.Message == "The container could not be located when the pod was terminated":
				got = append(got, "lost")
			default:
				got = append(got, fmt.Sprint(x.ExitCode))
			}
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%s: %v, want %s", name, got, c.want)
		}
	}
}

func isDeleted(p *podState) { p.pod.DeletionTimestamp = &metav1.Time{Time: epoch} }
