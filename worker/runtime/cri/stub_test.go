package cri

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-dev/berth/worker/runtime"
)

// stub is a program behind the interface that does as the test says.
type stub struct {
	criv1.UnimplementedRuntimeServiceServer
	criv1.UnimplementedImageServiceServer

	name   string     // what it calls itself; empty: stub
	events chan error // what a stream of events does next: nil is an event, an error ends it
	deaf   bool       // it has no events
	broken bool       // it removes no sandbox that was not stopped
	driver criv1.CgroupDriver

	mu       sync.Mutex
	streams  int
	listings int
	boxes    []*criv1.RunPodSandboxRequest
	ended    []string // calls about sandboxes
	pulling  int
	most     int
	release  chan struct{}
}

func (s *stub) Version(context.Context, *criv1.VersionRequest) (*criv1.VersionResponse, error) {
	return &criv1.VersionResponse{RuntimeName: cmp.Or(s.name, "stub"), RuntimeVersion: "1.0", RuntimeApiVersion: "v1"}, nil
}

func (s *stub) Status(context.Context, *criv1.StatusRequest) (*criv1.StatusResponse, error) {
	return &criv1.StatusResponse{Status: &criv1.RuntimeStatus{}}, nil
}

func (s *stub) RuntimeConfig(context.Context, *criv1.RuntimeConfigRequest) (*criv1.RuntimeConfigResponse, error) {
	return &criv1.RuntimeConfigResponse{Linux: &criv1.LinuxRuntimeConfiguration{CgroupDriver: s.driver}}, nil
}

func (s *stub) ListPodSandbox(context.Context, *criv1.ListPodSandboxRequest) (*criv1.ListPodSandboxResponse, error) {
	return &criv1.ListPodSandboxResponse{}, nil
}

func (s *stub) StopPodSandbox(context.Context, *criv1.StopPodSandboxRequest) (*criv1.StopPodSandboxResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = append(s.ended, "stop")
	return &criv1.StopPodSandboxResponse{}, nil
}

func (s *stub) RemovePodSandbox(context.Context, *criv1.RemovePodSandboxRequest) (*criv1.RemovePodSandboxResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := slices.Contains(s.ended, "stop")
	s.ended = append(s.ended, "remove")
	if s.broken && !before {
		return nil, status.Error(codes.Unknown, "its network namespace is not closed")
	}
	return &criv1.RemovePodSandboxResponse{}, nil
}

func (s *stub) ListContainers(context.Context, *criv1.ListContainersRequest) (*criv1.ListContainersResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.listings++
	return &criv1.ListContainersResponse{}, nil
}

func (s *stub) GetContainerEvents(_ *criv1.GetEventsRequest, out criv1.RuntimeService_GetContainerEventsServer) error {
	s.mu.Lock()
	s.streams++
	s.mu.Unlock()
	if s.deaf {
		return status.Error(codes.Unimplemented, "there are none")
	}
	for {
		select {
		case <-out.Context().Done():
			return out.Context().Err()
		case err := <-s.events:
			if err != nil {
				return err
			}
			if err := out.Send(&criv1.ContainerEventResponse{ContainerId: "c"}); err != nil {
				return err
			}
		}
	}
}

func (s *stub) RunPodSandbox(_ context.Context, req *criv1.RunPodSandboxRequest) (*criv1.RunPodSandboxResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.boxes = append(s.boxes, req)
	return &criv1.RunPodSandboxResponse{PodSandboxId: "box"}, nil
}

func (s *stub) PodSandboxStatus(context.Context, *criv1.PodSandboxStatusRequest) (*criv1.PodSandboxStatusResponse, error) {
	return &criv1.PodSandboxStatusResponse{Status: &criv1.PodSandboxStatus{Network: &criv1.PodSandboxNetworkStatus{Ip: "10.1.2.3"}}}, nil
}

func (s *stub) PullImage(ctx context.Context, req *criv1.PullImageRequest) (*criv1.PullImageResponse, error) {
	s.mu.Lock()
	s.pulling++
	s.most = max(s.most, s.pulling)
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.pulling--
	}()
	select {
	case <-s.release:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	return &criv1.PullImageResponse{ImageRef: req.Image.Image}, nil
}

func (s *stub) ImageStatus(context.Context, *criv1.ImageStatusRequest) (*criv1.ImageStatusResponse, error) {
	return &criv1.ImageStatusResponse{}, nil
}

func (s *stub) ListImages(context.Context, *criv1.ListImagesRequest) (*criv1.ListImagesResponse, error) {
	return &criv1.ListImagesResponse{}, nil
}

// openOver serves the stub and opens a runtime over it.
func openOver(t *testing.T, s *stub, change func(*Options)) *Runtime {
	t.Helper()
	r, _ := openFor(t, s, s, change)
	return r
}

// openFor is openOver for what is more than a stub; it returns the pods that were found, too.
func openFor(t *testing.T, s criv1.RuntimeServiceServer, images criv1.ImageServiceServer, change func(*Options)) (*Runtime, []runtime.Pod) {
	t.Helper()
	dir := t.TempDir()
	socket := filepath.Join(dir, "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	criv1.RegisterRuntimeServiceServer(server, s)
	criv1.RegisterImageServiceServer(server, images)
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	t.Cleanup(func() {
		server.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	o := Options{Endpoint: "unix://" + socket, Root: filepath.Join(dir, "cri"), Node: "n", ImagesHigh: 100}
	if change != nil {
		change(&o)
	}
	r, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	found, err := r.Open(func(runtime.Event) {})
	if err != nil {
		t.Fatal(err)
	}
	return r, found
}

func eventually(t *testing.T, what string, ask func() bool) {
	t.Helper()
	deadline := time.After(time.Minute)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !ask() {
		select {
		case <-deadline:
			t.Fatalf("waited too long for %s", what)
		case <-tick.C:
		}
	}
}

func (s *stub) counts() (streams, listings int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.streams, s.listings
}

// Each event has what runs listed; a stream that breaks off is opened again, and meanwhile the runtime counts as one without.
func TestStreamOfEvents(t *testing.T) {
	s := &stub{events: make(chan error)}
	r := openOver(t, s, nil)
	for range 3 {
		_, before := s.counts()
		s.events <- nil
		eventually(t, "an event to be seen", r.eventful)
		eventually(t, "a listing after it", func() bool { _, now := s.counts(); return now > before })
	}
	s.events <- status.Error(codes.Unavailable, "it is started again")
	eventually(t, "the stream to be opened again", func() bool { n, _ := s.counts(); return n == 2 })
	if r.eventful() {
		t.Error("a stream without an event counts as one that tells of them")
	}
	s.events <- nil
	eventually(t, "an event of the second stream to be seen", r.eventful)
}

// A runtime that has no events is asked for them once, and what runs is listed.
func TestNoStreamOfEvents(t *testing.T) {
	s := &stub{deaf: true}
	r := openOver(t, s, nil)
	_, before := s.counts()
	eventually(t, "some listings", func() bool { _, now := s.counts(); return now >= before+3 })
	if n, _ := s.counts(); n != 1 || r.eventful() {
		t.Errorf("it was asked for events %d times; they count as there: %v", n, r.eventful())
	}
}

// No more images are fetched at a time than the operator says.
func TestPullsAtOnce(t *testing.T) {
	s := &stub{deaf: true, release: make(chan struct{})}
	r := openOver(t, s, func(o *Options) { o.PullsAtOnce = 2 })
	const images = 5
	var pulls sync.WaitGroup
	errs := make(chan error, images)
	for i := range images {
		pulls.Go(func() {
			_, err := r.PullImage(t.Context(), fmt.Sprintf("example.com/image:%d", i), nil, atOnce)
			errs <- err
		})
	}
	at := func(n int) func() bool {
		return func() bool { s.mu.Lock(); defer s.mu.Unlock(); return s.pulling == n }
	}
	for left := images; left > 0; left-- {
		eventually(t, "as many to be fetched as may be", at(min(left, 2)))
		s.release <- struct{}{}
	}
	pulls.Wait()
	close(errs)
	for err := range errs {
		if err != nil {
			t.Error(err)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.most != 2 {
		t.Errorf("%d were fetched at a time", s.most)
	}
}

// The handler that a pod's class names reaches the runtime, and so do the host's namespaces.
func TestHandlerAndNamespaces(t *testing.T) {
	s := &stub{deaf: true}
	r := openOver(t, s, func(o *Options) {
		o.CgroupParent = fmt.Sprintf("/berth-stub-%d", os.Getpid())
		o.Handler = func(_ context.Context, class string) (string, error) {
			if class != "sandboxed" {
				return "", fmt.Errorf("there is no class %s", class)
			}
			return "kata", nil
		}
	})
	class, none := "sandboxed", "none"
	p := pod("own", corev1.Container{Name: "a"})
	p.Spec.RuntimeClassName = &class
	host := pod("host", corev1.Container{Name: "a"})
	host.Spec.HostPID, host.Spec.HostIPC, host.Spec.HostNetwork = true, true, true
	for _, p := range []*corev1.Pod{p, host} {
		t.Cleanup(func() {
			if err := r.removeCgroup(p.UID); err != nil {
				t.Error(err)
			}
		})
		if _, err := r.RunSandbox(t.Context(), p); err != nil {
			t.Fatal(err)
		}
	}
	lost := pod("lost", corev1.Container{Name: "a"})
	lost.Spec.RuntimeClassName = &none
	if _, err := r.RunSandbox(t.Context(), lost); err == nil {
		t.Error("a class that is not there was passed over")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var got []string
	for _, b := range s.boxes {
		n := b.Config.Linux.SecurityContext.NamespaceOptions
		got = append(got, fmt.Sprintf("%q %s %s %s", b.RuntimeHandler, n.Pid, n.Ipc, n.Network))
	}
	if want := []string{`"kata" CONTAINER POD POD`, `"" NODE NODE NODE`}; !slices.Equal(got, want) {
		t.Errorf("the runtime was asked for %q, want %q", got, want)
	}
}

// There are hugepages for pods where it is known that the agent makes their cgroups.
func TestWhoHasHugepages(t *testing.T) {
	for driver, want := range map[criv1.CgroupDriver]bool{criv1.CgroupDriver_CGROUPFS: true, criv1.CgroupDriver_SYSTEMD: false} {
		r := openOver(t, &stub{deaf: true, driver: driver}, stubParent)
		if r.cgroups == nil {
			t.Skip("cgroups are not writable here")
		}
		r.cgroups.Hugepages = true
		if got := r.Hugepages(); got != want {
			t.Errorf("with cgroups by %s: %v", driver, got)
		}
	}
	r := away(t)
	if r.cgroups != nil {
		r.cgroups.Hugepages = true
	}
	if r.Hugepages() {
		t.Error("of one that has not answered")
	}
}

// A network is given back once, where the runtime does so by itself, and nowhere not at all.
func TestRemovedSandboxes(t *testing.T) {
	for _, c := range []struct {
		name   string
		broken bool
		want   []string
	}{
		{containerd, false, []string{"remove"}},
		{containerd, true, []string{"remove", "stop", "remove"}},
		{crio, false, []string{"stop", "remove"}},
	} {
		s := &stub{deaf: true, name: c.name, broken: c.broken}
		r := openOver(t, s, nil)
		if err := r.endSandbox(t.Context(), "box", true); err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		if !slices.Equal(s.ended, c.want) {
			t.Errorf("%s, broken %v: %q, want %q", c.name, c.broken, s.ended, c.want)
		}
	}
}
