package cri

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-dev/berth/worker/runtime"
)

// oneStub is a stub of one container.
type oneStub struct {
	stub
	there   bool
	state   criv1.ContainerState
	refuses error // what a start is answered with
	unasked error // what it is answered who asks for the container
	unboxed error // and for its sandbox
	removed int
	away    atomic.Bool
}

func (s *oneStub) Version(ctx context.Context, q *criv1.VersionRequest) (*criv1.VersionResponse, error) {
	if s.away.Load() {
		return nil, status.Error(codes.Unavailable, "it is away")
	}
	return s.stub.Version(ctx, q)
}

func (s *oneStub) ListPodSandbox(context.Context, *criv1.ListPodSandboxRequest) (*criv1.ListPodSandboxResponse, error) {
	return &criv1.ListPodSandboxResponse{Items: []*criv1.PodSandbox{{Id: "box", State: criv1.PodSandboxState_SANDBOX_READY,
		Labels: map[string]string{labelPodUID: "uid-p"}, Metadata: &criv1.PodSandboxMetadata{Uid: "uid-p"}}}}, nil
}

func (s *oneStub) PodSandboxStatus(ctx context.Context, q *criv1.PodSandboxStatusRequest) (*criv1.PodSandboxStatusResponse, error) {
	s.mu.Lock()
	unboxed := s.unboxed
	s.mu.Unlock()
	if unboxed != nil {
		return nil, unboxed
	}
	return s.stub.PodSandboxStatus(ctx, q)
}

func (s *oneStub) ListContainers(context.Context, *criv1.ListContainersRequest) (*criv1.ListContainersResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.there {
		return &criv1.ListContainersResponse{}, nil
	}
	// A list is older than what is asked after it.
	return &criv1.ListContainersResponse{Containers: []*criv1.Container{{Id: "c", PodSandboxId: "box", State: criv1.ContainerState_CONTAINER_CREATED,
		Image: &criv1.ImageSpec{Image: "i"}, Labels: map[string]string{labelPodUID: "uid-p", labelContainer: "main"},
		Metadata: &criv1.ContainerMetadata{Name: "main"}}}}, nil
}

func (s *oneStub) ContainerStatus(context.Context, *criv1.ContainerStatusRequest) (*criv1.ContainerStatusResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case !s.there:
		return nil, status.Error(codes.NotFound, "no such container")
	case s.unasked != nil:
		return nil, s.unasked
	}
	return &criv1.ContainerStatusResponse{Status: &criv1.ContainerStatus{Id: "c", State: s.state}}, nil
}

func (s *oneStub) CreateContainer(context.Context, *criv1.CreateContainerRequest) (*criv1.CreateContainerResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.there, s.state = true, criv1.ContainerState_CONTAINER_CREATED
	return &criv1.CreateContainerResponse{ContainerId: "c"}, nil
}

func (s *oneStub) StartContainer(context.Context, *criv1.StartContainerRequest) (*criv1.StartContainerResponse, error) {
	return &criv1.StartContainerResponse{}, s.refuses
}

func (s *oneStub) RemoveContainer(context.Context, *criv1.RemoveContainerRequest) (*criv1.RemoveContainerResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.removed++
	return nil, status.Error(codes.Unknown, "it is starting, and cannot be removed")
}

func (s *oneStub) is(state criv1.ContainerState) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.state = state
}

func (s *oneStub) removals() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.removed
}

// A start that is answered too late is a start: what comes to run after it is neither removed nor started once more.
func TestStartAnsweredLate(t *testing.T) {
	for _, c := range []struct {
		name    string
		answer  error
		removes int
	}{
		{"not at all", status.Error(codes.DeadlineExceeded, "it does not answer"), 0},
		{"with a refusal that is none", status.Error(codes.Unknown, "something went wrong"), 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := &oneStub{refuses: c.answer}
			r, _ := openFor(t, s, s, stubParent)
			r.cancel() // nobody else looks
			r.loops.Wait()
			ctx, p := t.Context(), pod("p", corev1.Container{Image: "web:1"})
			r.users["i"] = imageUser{uid: new(int64)}
			r.sandboxes[p.UID] = sandbox{id: "box"}
			id := runtime.ID{Pod: p.UID, Container: "main"}
			spec := runtime.Spec{ID: id, Pod: p, Container: &p.Spec.Containers[0], Image: "i"}
			if err := r.Start(ctx, spec); err == nil {
				t.Fatal("it counts as started")
			}
			if n := s.removals(); n != c.removes {
				t.Errorf("it was removed %d times", n)
			}
			s.is(criv1.ContainerState_CONTAINER_RUNNING)
			if err := r.compare(ctx); err != nil {
				t.Error(err)
			}
			if err := r.Start(ctx, spec); err != nil {
				t.Fatal(err)
			}
			if _, err := r.find(id); err != nil {
				t.Error(err)
			}
			if err := r.compare(ctx); err != nil {
				t.Error(err)
			}
			if n := s.removals(); n != c.removes || len(r.unwanted) > 0 {
				t.Errorf("it was removed %d times, and %v are to go", n, r.unwanted)
			}
		})
	}
}

// What was made and not started is left to whoever starts or removes its pod; what has begun meanwhile runs. Nothing that is refused of one
// container keeps the others from being taken over.
func TestTakenOverAsItIs(t *testing.T) {
	for _, c := range []struct {
		name string
		stub *oneStub
		runs bool
	}{
		{"made", &oneStub{state: criv1.ContainerState_CONTAINER_CREATED}, false},
		{"made, and begun", &oneStub{state: criv1.ContainerState_CONTAINER_RUNNING}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := c.stub
			s.there = true
			r, found := openFor(t, s, s, stubParent)
			if len(found) != 1 || found[0].Sandbox == nil || (len(found[0].Containers) == 1) != c.runs {
				t.Fatalf("found is %+v", found)
			}
			_, err := r.find(runtime.ID{Pod: "uid-p", Container: "main"})
			if (err == nil) != c.runs || s.removals() > 0 {
				t.Errorf("it runs: %v; it was removed %d times", err, s.removals())
			}
		})
	}
}

// A container that cannot be asked for counts as one that runs, until it is known what it is.
func TestTakenOverUnasked(t *testing.T) {
	s := &oneStub{there: true, state: criv1.ContainerState_CONTAINER_RUNNING, unasked: status.Error(codes.Unknown, "its metadata cannot be read")}
	r, _ := openFor(t, s, s, stubParent)
	one := &criv1.Container{Id: "c", State: criv1.ContainerState_CONTAINER_RUNNING, Metadata: &criv1.ContainerMetadata{Name: "main"},
		Labels: map[string]string{labelPodUID: "uid-p"}}
	if c, err := r.adoptContainer(t.Context(), one, nil); err != nil || c == nil || c.Exit != nil {
		t.Errorf("%+v, %v", c, err)
	}
	s.mu.Lock()
	s.unasked = status.Error(codes.Unavailable, "it is away")
	s.mu.Unlock()
	if _, err := r.adoptContainer(t.Context(), one, nil); err == nil {
		t.Error("one that is away has refused")
	}
}

// reopening is a program behind the interface that has a container's log begun anew, or not.
type reopening struct {
	slow
	refuses bool
	begins  string // the file that is begun although it refuses; empty: none
	asked   []string
}

func (s *reopening) ReopenContainerLog(_ context.Context, q *criv1.ReopenContainerLogRequest, _ ...grpc.CallOption) (*criv1.ReopenContainerLogResponse, error) {
	s.asked = append(s.asked, q.ContainerId)
	if s.begins != "" {
		if err := os.WriteFile(s.begins, []byte("new"), 0o600); err != nil {
			return nil, err
		}
	}
	if s.refuses {
		return nil, status.Error(codes.Unknown, "its logger is gone")
	}
	return &criv1.ReopenContainerLogResponse{}, nil
}

// A log that is not begun anew has its names back, and none of what was kept is lost; one that is missing is begun.
func TestRotationThatFails(t *testing.T) {
	s := &reopening{refuses: true}
	r := s.over(t, 1, nil)
	defer r.cancel()
	r.runtime = s
	var path string
	for id := range r.running {
		path = r.logFile(id)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	is := func(want ...string) {
		t.Helper()
		var got []string
		for _, name := range []string{path, path + ".1", path + ".2"} {
			b, err := os.ReadFile(name)
			if err != nil {
				b = []byte("none")
			}
			got = append(got, string(b))
		}
		if !slices.Equal(got, want) {
			t.Errorf("the logs are %q, want %q", got, want)
		}
	}
	for name, text := range map[string]string{path: "much", path + ".1": "older"} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for range 3 {
		r.rotateLogs(t.Context())
		is("much", "older", "none")
	}
	s.begins = path
	r.rotateLogs(t.Context()) // it was begun, whatever was said
	is("new", "much", "older")
	s.refuses, s.begins = false, ""
	r.rotateLogs(t.Context())
	is("none", "new", "much")
	before := len(s.asked)
	r.rotateLogs(t.Context())
	is("none", "new", "much")
	if len(s.asked) != before+1 {
		t.Error("a log that is missing is not begun")
	}
}

// The files of the agent's that containers can write count.
func TestDiskUseOfMountedFiles(t *testing.T) {
	s := &oneStub{}
	r, _ := openFor(t, s, s, stubParent)
	id := runtime.ID{Pod: "p", Container: "main"}
	for path, bytes := range map[string]int{filepath.Join(r.podDir("p"), hostsFile): 1 << 20, filepath.Join(r.dir(id), terminationFile): 2 << 20, r.logFile(id): 4 << 20} {
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, make([]byte, bytes), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	use, err := r.DiskUse(t.Context(), "p")
	if err == nil {
		t.Error("the runtime counts nothing")
	}
	if use.Shared < 1<<20 || use.Shared > 2<<20 || use.Bytes["main"] < 6<<20 || use.Inodes < 3 {
		t.Errorf("%+v", use)
	}
}

// A pod whose sandbox cannot be asked for its addresses is taken over with those unknown, and not with the node's; they are told when they can be asked
// for. One whose runtime is away is not taken over at all.
func TestNoAddressIsNotTheNodes(t *testing.T) {
	s := &oneStub{state: criv1.ContainerState_CONTAINER_RUNNING}
	s.there = true
	r, _ := openFor(t, s, s, stubParent)
	r.cancel() // nobody else looks
	r.loops.Wait()
	r.ctx = t.Context()
	boxes, _ := s.ListPodSandbox(t.Context(), nil)
	containers, _ := s.ListContainers(t.Context(), nil)
	adopt := func() (*runtime.Pod, error) {
		return r.adopt(t.Context(), "uid-p", &left{boxes: boxes.Items, containers: containers.Containers})
	}
	unbox := func(err error) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.unboxed = err
	}
	for _, err := range []error{status.Error(codes.Unknown, "its metadata cannot be read"), status.Error(codes.DeadlineExceeded, "it hangs")} {
		unbox(err)
		if p, err := adopt(); err != nil || p.Sandbox == nil || !p.Sandbox.Unknown || len(p.Sandbox.IPs) > 0 || len(p.Containers) != 1 {
			t.Errorf("%+v, %v", p, err)
		}
	}
	var events []runtime.Event
	r.notify = func(ev runtime.Event) { events = append(events, ev) }
	r.running = map[runtime.ID]running{}
	if err := r.compare(t.Context()); err == nil || len(events) > 0 {
		t.Errorf("told are %+v, %v", events, err)
	}
	unbox(nil)
	for range 2 {
		if err := r.compare(t.Context()); err != nil {
			t.Error(err)
		}
	}
	if len(events) != 1 || events[0].Pod != "uid-p" || events[0].Container != "" || events[0].Sandbox == nil || !slices.Equal(events[0].Sandbox.IPs, []string{"10.1.2.3"}) {
		t.Errorf("told are %+v", events)
	}
	if !r.HasAddress("10.1.2.3") {
		t.Error("its address is nobody's")
	}
	unbox(status.Error(codes.Unavailable, "it is away"))
	s.away.Store(true)
	if _, err := adopt(); !errors.Is(err, runtime.ErrUnavailable) {
		t.Errorf("of a runtime that is away it is taken over: %v", err)
	}
}
