package worker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/worker/runtime"
	"github.com/berth-dev/berth/worker/runtime/fake"
)

// boxes gives the fake runtime sandboxes, and images where registry is not nil.
type boxes struct {
	*fake.Runtime
	made     map[types.UID]string // the pod's address
	count    int
	broken   bool              // no sandbox can be made
	slow     bool              // none is stopped yet
	registry map[string]bool   // what can be fetched
	here     map[string]bool   // what was
	shown    map[string]string // what volumes of images show, by pod and name
}

var (
	_ runtime.Sandboxer    = (*boxes)(nil)
	_ runtime.ImageVolumer = (*boxes)(nil)
)

func (b *boxes) Open(notify func(runtime.Event)) ([]runtime.Pod, error) {
	pods, err := b.Runtime.Open(notify)
	for i := range pods {
		if ip, ok := b.made[pods[i].Pod.UID]; ok {
			pods[i].Sandbox = &runtime.Sandbox{IPs: []string{ip}}
			continue
		}
		for j := range pods[i].Containers {
			pods[i].Containers[j].Earlier = true
		}
	}
	return pods, err
}

func (b *boxes) RunSandbox(_ context.Context, pod *corev1.Pod) (runtime.Sandbox, error) {
	if b.broken {
		return runtime.Sandbox{}, errors.New("no network")
	}
	b.count++
	b.made[pod.UID] = fmt.Sprintf("10.1.0.%d", b.count)
	return runtime.Sandbox{IPs: []string{b.made[pod.UID]}}, nil
}

func (b *boxes) StopSandbox(_ context.Context, uid types.UID) error {
	delete(b.made, uid)
	if b.broken {
		return errors.New("no network")
	}
	return nil
}

// network up|down|slow: while it is slow no sandbox is stopped
func (b *bench) network(is string) {
	b.boxes.broken, b.boxes.slow = is == "down", is == "slow"
	if late := b.late; !b.boxes.slow {
		b.late = nil
		for _, a := range late {
			b.core.Done(b.caller.do(context.Background(), a), b.clock.Now())
		}
	}
}

func (b *boxes) FindImage(_ context.Context, name string) (string, error) {
	switch {
	case strings.ToLower(name) != name:
		return "", &runtime.ImageNameError{Name: name, Err: errors.New("repository name must be lowercase")}
	case b.here[name]:
		return "id of " + name, nil
	}
	return "", nil
}

func (b *boxes) ImageKeys(string, []*corev1.Secret) ([]runtime.ImageKey, error) { return nil, nil }

func (b *boxes) PullImage(_ context.Context, name string, _ []*corev1.Secret, begin func() error) (runtime.Pulled, error) {
	if err := begin(); err != nil {
		return runtime.Pulled{}, err
	}
	if !b.registry[name] {
		return runtime.Pulled{}, errors.New("not found")
	}
	b.here[name] = true
	return runtime.Pulled{Ref: "id of " + name, SizeBytes: 7, Took: 3 * time.Second, Waited: time.Second}, nil
}

func (b *boxes) VolumeImage(_ context.Context, pod types.UID, volume string) (string, error) {
	return b.shown[string(pod)+"/"+volume], nil
}

// Start settles what the volumes show that the container mounts.
func (b *boxes) Start(ctx context.Context, spec runtime.Spec) error {
	for _, v := range spec.Pod.Spec.Volumes {
		for _, m := range spec.Container.VolumeMounts {
			if key := string(spec.Pod.UID) + "/" + v.Name; v.Image != nil && m.Name == v.Name && b.shown[key] == "" {
				b.shown[key] = "id of " + v.Image.Reference
			}
		}
	}
	return b.Runtime.Start(ctx, spec)
}

// TestAnEndIsToldWithoutItsSandbox: who is told that a deleted pod has ended takes its room for free, so what its sandbox holds is
// given back before that; that the runtime does not manage it holds nothing up.
func TestAnEndIsToldWithoutItsSandbox(t *testing.T) {
	for _, failed := range []error{nil, runtime.ErrUnavailable} {
		c := NewCore(CoreOptions{Node: testNode(t), RuntimeName: "fake", Sandboxes: true})
		pod := testPod("web")
		pod.DeletionTimestamp = &metav1.Time{Time: epoch}
		c.Adopt([]runtime.Pod{{Pod: testPod("web"), Sandbox: &runtime.Sandbox{IPs: []string{"10.1.0.1"}}, Containers: []runtime.Container{{
			ID: runtime.ID{Pod: "web", Container: "main"}, StartedAt: epoch, Exit: &runtime.Exit{Code: 3, FinishedAt: epoch}}}}}, epoch)
		c.Assign(Assignment{Full: true, Pods: []*corev1.Pod{pod}}, epoch)
		actions := c.TakeActions()
		if len(actions) != 1 || actions[0].Kind != ActionSandboxStop {
			t.Fatalf("got %v", actions)
		}
		if told := c.TakeReports(1, epoch); len(told) > 0 {
			t.Errorf("%+v is told while the sandbox is there", told)
		}
		c.Done(Outcome{Action: actions[0], Err: failed}, epoch)
		if told := c.TakeReports(1, epoch); len(told) != 1 || told[0].Status.ContainerStatuses[0].State.Terminated.ExitCode != 3 {
			t.Errorf("told is %+v", told)
		}
	}
}

// TestAnEndIsToldWithoutItsVolumes: so is what its volumes hold; that they cannot be given back holds nothing up, and is tried again.
func TestAnEndIsToldWithoutItsVolumes(t *testing.T) {
	for _, failed := range []error{nil, runtime.ErrUnavailable} {
		c := NewCore(CoreOptions{Node: testNode(t), RuntimeName: "fake", Files: true})
		pod := testPod("web")
		pod.Spec.Volumes = []corev1.Volume{{Name: "v"}}
		pod.DeletionTimestamp = &metav1.Time{Time: epoch}
		c.Adopt([]runtime.Pod{{Pod: testPod("web"), Containers: []runtime.Container{{
			ID: runtime.ID{Pod: "web", Container: "main"}, StartedAt: epoch, Exit: &runtime.Exit{Code: 3, FinishedAt: epoch}}}}}, epoch)
		c.Assign(Assignment{Full: true, Pods: []*corev1.Pod{pod}}, epoch)
		actions := c.TakeActions()
		if len(actions) != 1 || actions[0].Kind != ActionUnmount {
			t.Fatalf("got %v", actions)
		}
		if told := c.TakeReports(1, epoch); len(told) > 0 {
			t.Errorf("%+v is told while the volumes are there", told)
		}
		c.Done(Outcome{Action: actions[0], Err: failed}, epoch)
		if told := c.TakeReports(1, epoch); len(told) != 1 || told[0].Status.ContainerStatuses[0].State.Terminated.ExitCode != 3 {
			t.Errorf("told is %+v", told)
		}
		again := epoch.Add(retryInterval)
		c.Tick(again)
		if actions := c.TakeActions(); (len(actions) == 1 && actions[0].Kind == ActionUnmount) != (failed != nil) {
			t.Errorf("after %v: %v", failed, actions)
		}
	}
}

// TestVolumesOfAPodThatStays: those of one that has ended for good are given back, too, and its end is told meanwhile.
func TestVolumesOfAPodThatStays(t *testing.T) {
	c := NewCore(CoreOptions{Node: testNode(t), RuntimeName: "fake", Files: true})
	pod := testPod("job")
	pod.Spec.RestartPolicy = corev1.RestartPolicyNever
	pod.Spec.Volumes = []corev1.Volume{{Name: "v"}}
	c.Adopt([]runtime.Pod{{Pod: pod, Containers: []runtime.Container{{
		ID: runtime.ID{Pod: "job", Container: "main"}, StartedAt: epoch, Exit: &runtime.Exit{Code: 3, FinishedAt: epoch}}}}}, epoch)
	c.Assign(Assignment{Full: true, Pods: []*corev1.Pod{pod}}, epoch)
	actions := c.TakeActions()
	if len(actions) != 1 || actions[0].Kind != ActionUnmount {
		t.Fatalf("got %v", actions)
	}
	if told := c.TakeReports(1, epoch); len(told) != 1 || told[0].Status.Phase != corev1.PodFailed {
		t.Errorf("told is %+v", told)
	}
	c.Done(Outcome{Action: actions[0], Err: runtime.ErrUnavailable}, epoch)
	c.Tick(epoch.Add(retryInterval))
	if actions := c.TakeActions(); len(actions) != 1 || actions[0].Kind != ActionUnmount {
		t.Errorf("after a failure: %v", actions)
	}
}

// TestASandboxThatFailedOnceIsGivenBackFirst: that it could not be made at first does not let its pod's end be told early.
func TestASandboxThatFailedOnceIsGivenBackFirst(t *testing.T) {
	p := &podState{env: &podEnv{}, pod: testPod("web"), gone: true, stopAt: epoch}
	p.sandboxMade(Outcome{Err: runtime.ErrUnavailable}, epoch)
	p.sandboxMade(Outcome{}, epoch)
	p.sandbox = sandboxStopping
	if !p.givingBack() {
		t.Error("its end is told while its sandbox is there")
	}
}

// TestAddressesThatAreNotKnownYet: they are what they were, or nobody's: the node's are neither shown nor probed in their place, and no container is
// started without any.
func TestAddressesThatAreNotKnownYet(t *testing.T) {
	for _, known := range [][]corev1.PodIP{nil, {{IP: "10.1.0.1"}}} {
		c := NewCore(CoreOptions{Node: testNode(t), RuntimeName: "fake", Sandboxes: true, HostIPs: []string{"192.0.2.1"}})
		pod := testPod("web")
		pod.Spec.Containers[0].ReadinessProbe = &corev1.Probe{ProbeHandler: corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{}}}
		pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{Name: "other"})
		pod.Status.PodIPs = known
		c.Adopt([]runtime.Pod{{Pod: pod, Sandbox: &runtime.Sandbox{Unknown: true}, Containers: []runtime.Container{{
			ID: runtime.ID{Pod: "web", Container: "main"}, StartedAt: epoch}}}}, epoch)
		c.Assign(Assignment{Full: true, Pods: []*corev1.Pod{pod}}, epoch)
		shows := func(actions int, want ...string) {
			t.Helper()
			p := c.pods["web"]
			var got []string
			for _, ip := range p.status(epoch).PodIPs {
				got = append(got, ip.IP)
			}
			if taken := c.TakeActions(); !slices.Equal(got, want) || len(taken) != actions {
				t.Errorf("known was %v: it shows %v, and asks for %v", known, got, taken)
			}
		}
		if known == nil {
			shows(0)
		} else {
			shows(2, "10.1.0.1")
		}
		c.Observe(runtime.Event{ID: runtime.ID{Pod: "web"}, Sandbox: &runtime.Sandbox{IPs: []string{"10.1.0.2"}}}, epoch)
		if known == nil {
			shows(2, "10.1.0.2")
		} else {
			shows(0, "10.1.0.2")
		}
		c.Observe(runtime.Event{ID: runtime.ID{Pod: "web"}, Sandbox: &runtime.Sandbox{IPs: []string{"10.1.0.3"}}}, epoch)
		shows(0, "10.1.0.2")
	}
}

// TestWhatALostSandboxHolds: a pod that has ended gives back the address of a sandbox that is of no use any more: one that the agent before had begun to
// stop, that was lost, or of whose making nobody heard. It is told until it is done, and no volume is given back before.
func TestWhatALostSandboxHolds(t *testing.T) {
	for name, begin := range map[string]func(c *Core, pod *corev1.Pod){
		"found": func(c *Core, pod *corev1.Pod) {
			c.Adopt([]runtime.Pod{{Pod: pod, Owing: true, Containers: endedRun()}}, epoch)
			c.Assign(Assignment{Full: true, Pods: []*corev1.Pod{pod}}, epoch)
		},
		"lost": func(c *Core, pod *corev1.Pod) {
			c.Adopt([]runtime.Pod{{Pod: pod, Sandbox: &runtime.Sandbox{}, Containers: endedRun()}}, epoch)
			c.Observe(runtime.Event{ID: runtime.ID{Pod: "job"}}, epoch)
			c.Assign(Assignment{Full: true, Pods: []*corev1.Pod{pod}}, epoch)
		},
		"unheard of": func(c *Core, pod *corev1.Pod) {
			c.Adopt(nil, epoch)
			c.Assign(Assignment{Full: true, Pods: []*corev1.Pod{pod}}, epoch)
			made := c.TakeActions()
			if len(made) != 1 || made[0].Kind != ActionSandbox {
				t.Fatalf("got %v", made)
			}
			ended := pod.DeepCopy()
			ended.Status.Phase = corev1.PodFailed
			c.Assign(Assignment{Pods: []*corev1.Pod{ended}}, epoch)
			c.Done(Outcome{Action: made[0], Err: runtime.ErrUnavailable}, epoch.Add(-retryInterval))
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := NewCore(CoreOptions{Node: testNode(t), RuntimeName: "fake", Sandboxes: true, Files: true})
			pod := testPod("job")
			pod.Spec.RestartPolicy = corev1.RestartPolicyNever
			pod.Spec.Volumes = []corev1.Volume{{Name: "v"}}
			begin(c, pod)
			now := epoch
			for _, err := range []error{runtime.ErrUnavailable, nil} {
				c.Tick(now)
				actions := c.TakeActions()
				if len(actions) != 1 || actions[0].Kind != ActionSandboxStop {
					t.Fatalf("got %v", actions)
				}
				c.Done(Outcome{Action: actions[0], Err: err}, now)
				now = now.Add(retryInterval)
			}
			c.Tick(now)
			if actions := c.TakeActions(); len(actions) != 1 || actions[0].Kind != ActionUnmount {
				t.Errorf("after that: %v", actions)
			}
		})
	}
}

func endedRun() []runtime.Container {
	return []runtime.Container{{ID: runtime.ID{Pod: "job", Container: "main"}, StartedAt: epoch, Exit: &runtime.Exit{Code: 3, FinishedAt: epoch}}}
}
