package cri

import (
	"context"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-dev/berth/worker/runtime"
)

// amnesiac is a stub that has lost its containers, and cannot say of one of them what has become of it.
type amnesiac struct{ stub }

func (*amnesiac) ContainerStatus(_ context.Context, req *criv1.ContainerStatusRequest) (*criv1.ContainerStatusResponse, error) {
	if req.ContainerId == "damaged" {
		return nil, status.Error(codes.Unknown, "its metadata cannot be read")
	}
	return nil, status.Error(codes.NotFound, "no such container")
}

// told is who was told of.
type told struct {
	mu   sync.Mutex
	pods []types.UID
}

func (t *told) notify(ev runtime.Event) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.pods = append(t.pods, ev.Pod)
}

func (t *told) of() []types.UID {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.pods)
}

// What cannot be looked at hides neither the ends of others nor that their sandboxes are gone.
func TestOneThatCannotBeLookedAt(t *testing.T) {
	s := &amnesiac{}
	r, _ := openFor(t, s, s, nil)
	r.cancel() // nobody else looks
	r.loops.Wait()
	var told told
	r.notify = told.notify
	for _, id := range []string{"a", "b", "c", "damaged", "e", "f", "g"} {
		r.running[runtime.ID{Pod: types.UID(id), Container: "c"}] = running{ref: id}
	}
	r.sandboxes["box"] = sandbox{id: "box"}
	if err := r.compare(t.Context()); err == nil {
		t.Error("nothing is told of the one that is damaged")
	}
	for _, want := range []types.UID{"a", "b", "c", "e", "f", "g", "box"} {
		if got := told.of(); !slices.Contains(got, want) {
			t.Errorf("%s is not told; told is %v", want, got)
		}
	}
}

// slow is a program behind the interface that takes its time for each container, and does not come back from some.
type slow struct {
	criv1.RuntimeServiceClient
	hangs func(ref string) bool
	lists []*criv1.Container
}

func (*slow) ListPodSandbox(context.Context, *criv1.ListPodSandboxRequest, ...grpc.CallOption) (*criv1.ListPodSandboxResponse, error) {
	return &criv1.ListPodSandboxResponse{}, nil
}

func (s *slow) ListContainers(context.Context, *criv1.ListContainersRequest, ...grpc.CallOption) (*criv1.ListContainersResponse, error) {
	return &criv1.ListContainersResponse{Containers: s.lists}, nil
}

func (*slow) GetContainerEvents(context.Context, *criv1.GetEventsRequest, ...grpc.CallOption) (grpc.ServerStreamingClient[criv1.ContainerEventResponse], error) {
	return nil, status.Error(codes.Unimplemented, "there are none")
}

func (*slow) Version(context.Context, *criv1.VersionRequest, ...grpc.CallOption) (*criv1.VersionResponse, error) {
	return &criv1.VersionResponse{}, nil
}

func (*slow) Status(context.Context, *criv1.StatusRequest, ...grpc.CallOption) (*criv1.StatusResponse, error) {
	return &criv1.StatusResponse{}, nil
}

func (*slow) RuntimeConfig(context.Context, *criv1.RuntimeConfigRequest, ...grpc.CallOption) (*criv1.RuntimeConfigResponse, error) {
	return nil, status.Error(codes.Unimplemented, "there is none")
}

func (s *slow) take(ctx context.Context, ref string) error {
	var done <-chan time.Time
	if !s.hangs(ref) {
		done = time.After(time.Second)
	}
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return status.FromContextError(ctx.Err()).Err()
	}
}

func (s *slow) ContainerStatus(ctx context.Context, req *criv1.ContainerStatusRequest, _ ...grpc.CallOption) (*criv1.ContainerStatusResponse, error) {
	if err := s.take(ctx, req.ContainerId); err != nil {
		return nil, err
	}
	return nil, status.Error(codes.NotFound, "no such container")
}

func (s *slow) ReopenContainerLog(ctx context.Context, req *criv1.ReopenContainerLogRequest, _ ...grpc.CallOption) (*criv1.ReopenContainerLogResponse, error) {
	return &criv1.ReopenContainerLogResponse{}, s.take(ctx, req.ContainerId)
}

// over is a runtime over it in a bubble's time, with so many containers.
func (s *slow) over(t *testing.T, containers int, notify func(runtime.Event)) *Runtime {
	r, err := New(Options{Endpoint: "unix:///nowhere", Root: t.TempDir(), Node: "n", LogBytes: 1})
	if err != nil {
		t.Fatal(err)
	}
	if err := r.conn.Close(); err != nil {
		t.Fatal(err)
	}
	r.runtime, r.notify = s, notify
	for i := range containers {
		ref := fmt.Sprintf("c%03d", i)
		r.running[runtime.ID{Pod: types.UID(ref), Container: "c"}] = running{ref: ref}
	}
	return r
}

// Every container is looked at, however many there are, however slow the runtime is, and though it hangs on some of them.
func TestAllAreLookedAt(t *testing.T) {
	const containers, hanging = 300, 20
	synctest.Test(t, func(t *testing.T) {
		var told told
		s := &slow{hangs: func(ref string) bool { return ref < fmt.Sprintf("c%03d", hanging) }}
		r := s.over(t, containers, told.notify)
		defer r.cancel()
		if err := r.compare(t.Context()); err == nil {
			t.Error("nothing is told of those that hang")
		}
		r.loops.Wait()
		if got := told.of(); len(got) != containers-hanging {
			t.Errorf("%d ends were told", len(got))
		}
	})
}

// However many containers the runtime hangs on, what runs is listed again and again, and no end is lost.
func TestHangingHoldsUpNoListing(t *testing.T) {
	const hanging = 300
	synctest.Test(t, func(t *testing.T) {
		var told told
		var answers atomic.Bool
		s := &slow{hangs: func(ref string) bool { return !answers.Load() && ref != "fine" }}
		r := s.over(t, hanging, told.notify)
		defer r.cancel()
		for range 250 { // until all have hung once
			if err := r.compare(t.Context()); err == nil {
				t.Error("nothing is told of those that hang")
			}
			if err := r.Check(t.Context()); err != nil {
				t.Fatal(err)
			}
			r.mu.Lock()
			under := len(r.looks)
			r.mu.Unlock()
			if under > hanging {
				t.Fatalf("%d looks are under way", under)
			}
		}
		// One that has ended meanwhile is told of as if the others were not.
		r.mu.Lock()
		r.running[runtime.ID{Pod: "fine", Container: "c"}] = running{ref: "fine"}
		r.mu.Unlock()
		if err := r.compare(t.Context()); err == nil || !slices.Equal(told.of(), []types.UID{"fine"}) {
			t.Errorf("told of %v, %v", told.of(), err)
		}
		answers.Store(true)
		for len(told.of()) <= hanging {
			if err := r.compare(t.Context()); err == nil {
				r.loops.Wait()
				if got := told.of(); len(got) != hanging+1 {
					t.Fatalf("%d ends were told", len(got))
				}
			}
		}
	})
}

// How a pod's containers have ended is told before that its sandbox is gone, also where they could not be looked at at first; and that it is gone is
// told though nobody can say how they have. Of what is gone nothing is remembered.
func TestEndsComeBeforeTheSandbox(t *testing.T) {
	for hung, want := range map[int][]string{ // listings in which the runtime hangs on the container
		0: {"c000/c", "c000/"},
		1: {"c000/c", "c000/"},
		2: {"c000/", "c000/c", "c000/"},
	} {
		synctest.Test(t, func(t *testing.T) {
			var hangs atomic.Bool
			s := &slow{hangs: func(string) bool { return hangs.Load() }}
			var mu sync.Mutex
			var order []string
			r := s.over(t, 1, func(ev runtime.Event) {
				mu.Lock()
				defer mu.Unlock()
				order = append(order, string(ev.Pod)+"/"+ev.Container)
			})
			defer r.cancel()
			r.sandboxes["c000"] = sandbox{id: "box"}
			for i := range hung + 1 {
				hangs.Store(i < hung)
				if err := r.compare(t.Context()); (err != nil) != (i < hung) {
					t.Error(err)
				}
				r.loops.Wait()
			}
			if !slices.Equal(order, want) {
				t.Errorf("told after %d is %q", hung, order)
			}
			hangs.Store(true)
			r.running[runtime.ID{Pod: "p", Container: "c"}] = running{ref: "another"}
			if err := r.compare(t.Context()); err == nil {
				t.Error("nothing is told of the one that hangs")
			}
			r.loops.Wait()
			clear(r.running)
			delete(r.sandboxes, "c000")
			if err := r.compare(t.Context()); err != nil || len(r.failed) > 0 {
				t.Errorf("what cannot be looked at is %v, %v", r.failed, err)
			}
		})
	}
}

// deafened is a stub whose answer to that a sandbox was made is lost.
type deafened struct{ stub }

func (s *deafened) RunPodSandbox(ctx context.Context, req *criv1.RunPodSandboxRequest) (*criv1.RunPodSandboxResponse, error) {
	if _, err := s.stub.RunPodSandbox(ctx, req); err != nil {
		return nil, err
	}
	return nil, status.Error(codes.Unavailable, "the connection is gone")
}

func (s *deafened) ListPodSandbox(context.Context, *criv1.ListPodSandboxRequest) (*criv1.ListPodSandboxResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := &criv1.ListPodSandboxResponse{}
	for _, b := range s.boxes {
		out.Items = append(out.Items, &criv1.PodSandbox{Id: "box", Metadata: b.Config.Metadata, Labels: b.Config.Labels, State: criv1.PodSandboxState_SANDBOX_READY})
	}
	return out, nil
}

// A sandbox that was made and not heard of is taken over whole, by this agent and by the next one: with the pod's /etc/hosts.
func TestSandboxThatWasNotHeardOf(t *testing.T) {
	s := &deafened{}
	s.deaf = true
	root := t.TempDir()
	within := func(o *Options) {
		stubParent(o)
		o.Root = root
	}
	r, _ := openFor(t, s, s, within)
	p := pod("p", corev1.Container{Name: "c"})
	t.Cleanup(func() {
		if err := r.removeCgroup(p.UID); err != nil {
			t.Error(err)
		}
	})
	if _, err := r.RunSandbox(t.Context(), p); err == nil {
		t.Fatal("it was heard of")
	}
	next, found := openFor(t, s, s, within)
	if len(found) != 1 || found[0].Sandbox != nil {
		t.Errorf("found %+v", found)
	}
	for _, r := range []*Runtime{r, next} {
		hosts := r.podDir(p.UID) + "/" + hostsFile
		if err := os.Remove(hosts); err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
		if made, err := r.RunSandbox(t.Context(), p); err != nil || !slices.Equal(made.IPs, []string{"10.1.2.3"}) {
			t.Errorf("%+v, %v", made, err)
		}
		if b, err := os.ReadFile(hosts); err != nil || !strings.Contains(string(b), "10.1.2.3\t") {
			t.Errorf("its hosts are %q, %v", b, err)
		}
	}
	if _, found := openFor(t, s, s, within); len(found) != 1 || found[0].Sandbox == nil {
		t.Errorf("found %+v", found)
	}
}

// However many containers the runtime hangs on, all pods are taken over: what has become of theirs is found out later.
func TestHangingHoldsUpNoOpening(t *testing.T) {
	const containers, hanging = 300, 250
	synctest.Test(t, func(t *testing.T) {
		s := &slow{hangs: func(ref string) bool { return ref < fmt.Sprintf("c%03d", hanging) }}
		for i := range containers {
			ref := fmt.Sprintf("c%03d", i)
			s.lists = append(s.lists, &criv1.Container{Id: ref, State: criv1.ContainerState_CONTAINER_RUNNING,
				Metadata: &criv1.ContainerMetadata{Name: "c"}, Labels: map[string]string{labelPodUID: "uid-" + ref}})
		}
		r := s.over(t, 0, nil)
		defer r.Close()
		pods, err := r.Open(func(runtime.Event) {})
		if err != nil || len(pods) != containers {
			t.Fatalf("%d pods, %v", len(pods), err)
		}
		for i, p := range pods {
			if p.Pod.UID != types.UID(fmt.Sprintf("uid-c%03d", i)) || (len(p.Containers) == 1) != (i < hanging) {
				t.Errorf("pod %d is %s, with %v", i, p.Pod.UID, p.Containers)
			}
		}
	})
}

// However much was left from before of one pod is taken over, one after the other.
func TestAllAreTakenOver(t *testing.T) {
	const containers = 300
	synctest.Test(t, func(t *testing.T) {
		s := &slow{hangs: func(string) bool { return false }}
		for i := range containers {
			s.lists = append(s.lists, &criv1.Container{Id: fmt.Sprintf("c%03d", i), State: criv1.ContainerState_CONTAINER_RUNNING,
				Metadata: &criv1.ContainerMetadata{Name: "c", Attempt: uint32(i)}, Labels: map[string]string{labelPodUID: "p"}})
		}
		r := s.over(t, 0, nil)
		defer r.Close()
		if pods, err := r.Open(func(runtime.Event) {}); err != nil || len(pods) != 1 {
			t.Errorf("%d pods, %v", len(pods), err)
		}
	})
}

// A log that cannot be begun anew keeps nobody from looking.
func TestLogThatIsNotReopened(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &slow{hangs: func(string) bool { return true }}
		r := s.over(t, 3, nil)
		defer r.cancel()
		for id := range r.running {
			if err := os.MkdirAll(r.logDir(id.Pod)+"/c", 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(r.logFile(id), []byte("much"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		r.rotateLogs(t.Context()) // returns
	})
}

// remembering is a stub that gives a container's annotations back, and tells who its container began as.
type remembering struct {
	stub
	annotations map[string]string
	user        *criv1.ContainerUser
}

func (s *remembering) ContainerStatus(_ context.Context, req *criv1.ContainerStatusRequest) (*criv1.ContainerStatusResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return &criv1.ContainerStatusResponse{Status: &criv1.ContainerStatus{Id: req.ContainerId, State: criv1.ContainerState_CONTAINER_RUNNING, Annotations: s.annotations, User: s.user}}, nil
}

func (*remembering) CreateContainer(context.Context, *criv1.CreateContainerRequest) (*criv1.CreateContainerResponse, error) {
	return &criv1.CreateContainerResponse{ContainerId: "c"}, nil
}

func (*remembering) StartContainer(context.Context, *criv1.StartContainerRequest) (*criv1.StartContainerResponse, error) {
	return &criv1.StartContainerResponse{}, nil
}

// Who a container began as is told of one that is started, and of one that is found, by a runtime that knows it.
func TestUserOfAContainer(t *testing.T) {
	for what, c := range map[string]struct {
		says *criv1.ContainerUser
		want *corev1.ContainerUser
	}{
		"it does not tell":    {nil, nil},
		"it is of none known": {&criv1.ContainerUser{}, &corev1.ContainerUser{}},
		"it tells": {&criv1.ContainerUser{Linux: &criv1.LinuxContainerUser{Uid: 1000, Gid: 7, SupplementalGroups: []int64{7, 50000}}},
			&corev1.ContainerUser{Linux: &corev1.LinuxContainerUser{UID: 1000, GID: 7, SupplementalGroups: []int64{7, 50000}}}},
	} {
		s := &remembering{user: c.says}
		r, _ := openFor(t, s, s, stubParent)
		r.cancel() // nobody else looks
		r.loops.Wait()
		var began runtime.Event
		r.notify = func(ev runtime.Event) { began = ev }
		p := pod("p", corev1.Container{Image: "web:1"})
		r.users["i"] = imageUser{uid: new(int64)}
		r.sandboxes[p.UID] = sandbox{id: "box"}
		id := runtime.ID{Pod: p.UID, Container: "main"}
		err := r.Start(t.Context(), runtime.Spec{ID: id, Pod: p, Container: &p.Spec.Containers[0], Image: "i"})
		if err != nil || began.Ref != "c" || !reflect.DeepEqual(began.User, c.want) {
			t.Errorf("%s: a container that is started: %+v, %v; want user %v", what, began, err, c.want)
		}
		found, err := r.adoptContainer(t.Context(), &criv1.Container{Id: "c", State: criv1.ContainerState_CONTAINER_RUNNING,
			Metadata: &criv1.ContainerMetadata{Name: "main"}, Labels: map[string]string{labelPodUID: "p"}}, p)
		if err != nil || !reflect.DeepEqual(found.User, c.want) {
			t.Errorf("%s: one that is found: %+v, %v; want user %v", what, found, err, c.want)
		}
	}
}

// Of which image a container was made is written down with it, and no device changes that.
func TestImageOfAFoundContainer(t *testing.T) {
	s := &remembering{}
	r, _ := openFor(t, s, s, nil)
	p := pod("p", corev1.Container{Name: "c", Image: "web:1"})
	r.users["i"] = imageUser{uid: new(int64)}
	config, err := r.containerConfig(t.Context(), &runtime.Spec{ID: runtime.ID{Pod: p.UID}, Pod: p, Container: &p.Spec.Containers[0], Image: "i",
		Devices: runtime.Devices{Annotations: map[string]string{imageAnnotation: "none", "device": "d"}}})
	if err != nil || config.Annotations["device"] != "d" {
		t.Fatalf("%v, %v", config.GetAnnotations(), err)
	}
	s.mu.Lock()
	s.annotations = config.Annotations
	s.mu.Unlock()
	p.Spec.Containers[0].Image = "web:2"
	c, err := r.adoptContainer(t.Context(), &criv1.Container{Id: "c", State: criv1.ContainerState_CONTAINER_RUNNING,
		Metadata: &criv1.ContainerMetadata{Name: "c"}, Labels: map[string]string{labelPodUID: "p"}}, p)
	if err != nil || c.Image != "web:1" {
		t.Errorf("%+v, %v", c, err)
	}
}
