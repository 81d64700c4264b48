package devices

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

const gpu = "example.com/gpu"

// stub is a device plugin.
type stub struct {
	pluginapi.UnimplementedDevicePluginServer
	options pluginapi.DevicePluginOptions
	name    string // of its devices; empty: gpu
	lists   chan []*pluginapi.Device
	server  *grpc.Server
	// allocates and prepares are told when it is asked that, and does not answer; nil: it does.
	allocates, prepares chan struct{}

	mu       sync.Mutex
	given    [][]string
	prepared [][]string
	prefers  []string
	refuses  bool
}

func (s *stub) GetDevicePluginOptions(context.Context, *pluginapi.Empty) (*pluginapi.DevicePluginOptions, error) {
	return &pluginapi.DevicePluginOptions{PreStartRequired: s.options.PreStartRequired, GetPreferredAllocationAvailable: s.options.GetPreferredAllocationAvailable}, nil
}

func (s *stub) ListAndWatch(_ *pluginapi.Empty, to grpc.ServerStreamingServer[pluginapi.ListAndWatchResponse]) error {
	for {
		select {
		case list := <-s.lists:
			if err := to.Send(&pluginapi.ListAndWatchResponse{Devices: list}); err != nil {
				return err
			}
		case <-to.Context().Done():
			return nil
		}
	}
}

func (s *stub) Allocate(ctx context.Context, q *pluginapi.AllocateRequest) (*pluginapi.AllocateResponse, error) {
	s.hang(ctx, s.allocates)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.refuses {
		return nil, errors.New("not today")
	}
	ids := q.ContainerRequests[0].DevicesIds
	s.given = append(s.given, ids)
	return &pluginapi.AllocateResponse{ContainerResponses: []*pluginapi.ContainerAllocateResponse{{
		Envs:       map[string]string{"GPUS": strings.Join(ids, ",")},
		Mounts:     []*pluginapi.Mount{{HostPath: "/lib/gpu", ContainerPath: "/gpu", ReadOnly: true}},
		Devices:    []*pluginapi.DeviceSpec{{HostPath: "/dev/null", ContainerPath: "/dev/gpu0", Permissions: "rw"}},
		CdiDevices: []*pluginapi.CDIDevice{{Name: "example.com/gpu=0"}},
	}}}, nil
}

func (s *stub) GetPreferredAllocation(_ context.Context, _ *pluginapi.PreferredAllocationRequest) (*pluginapi.PreferredAllocationResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return &pluginapi.PreferredAllocationResponse{ContainerResponses: []*pluginapi.ContainerPreferredAllocationResponse{{DeviceIDs: s.prefers}}}, nil
}

func (s *stub) PreStartContainer(ctx context.Context, q *pluginapi.PreStartContainerRequest) (*pluginapi.PreStartContainerResponse, error) {
	s.hang(ctx, s.prepares)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.prepared = append(s.prepared, q.DevicesIds)
	return new(pluginapi.PreStartContainerResponse), nil
}

// hang tells that it was asked, and does not answer, if it is such a one.
func (s *stub) hang(ctx context.Context, asked chan struct{}) {
	if asked == nil {
		return
	}
	asked <- struct{}{}
	<-ctx.Done()
}

// bench is a registry with its folder.
type bench struct {
	*Registry
	t    *testing.T
	dir  string
	hold map[types.UID]bool
	end  func()
}

func newBench(t *testing.T) *bench {
	dir, err := os.MkdirTemp("", "dp") // the path of a socket is short
	if err != nil {
		t.Fatal(err)
	}
	b := &bench{t: t, dir: dir, hold: map[types.UID]bool{}}
	t.Cleanup(func() {
		b.end()
		_ = os.RemoveAll(dir)
	})
	b.start()
	return b
}

// start is the worker's start.
func (b *bench) start() {
	b.t.Helper()
	r, err := Open(Options{Dir: b.dir, State: filepath.Join(b.dir, "state.json"), Changed: func() {}, Logger: hclog.NewNullLogger()})
	if err != nil {
		b.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	b.Registry = r
	b.end = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			b.t.Error(err)
		}
	})
	b.eventually("the socket", func() error {
		conn, err := net.Dial("unix", filepath.Join(b.dir, socketName))
		if err == nil {
			err = conn.Close()
		}
		return err
	})
}

func (b *bench) eventually(what string, ask func() error) {
	b.t.Helper()
	for deadline := time.Now().Add(20 * time.Second); ; <-time.After(5 * time.Millisecond) {
		err := ask()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			b.t.Fatalf("%s: %v", what, err)
		}
	}
}

// plug starts a plugin with devices, and registers it.
func (b *bench) plug(s *stub, endpoint string, ids ...string) {
	b.t.Helper()
	_ = os.Remove(filepath.Join(b.dir, endpoint))
	l, err := net.Listen("unix", filepath.Join(b.dir, endpoint))
	if err != nil {
		b.t.Fatal(err)
	}
	s.server, s.lists = grpc.NewServer(), make(chan []*pluginapi.Device, 4)
	pluginapi.RegisterDevicePluginServer(s.server, s)
	go func() { _ = s.server.Serve(l) }()
	b.t.Cleanup(s.server.Stop)
	s.lists <- devices(ids...)
	if err := b.register(&pluginapi.RegisterRequest{Version: pluginapi.Version, Endpoint: endpoint, ResourceName: cmp.Or(s.name, gpu)}); err != nil {
		b.t.Fatal(err)
	}
}

// devices are healthy, but those with a "!".
func devices(ids ...string) (out []*pluginapi.Device) {
	for _, id := range ids {
		name, sick := strings.CutSuffix(id, "!")
		d := &pluginapi.Device{ID: name, Health: pluginapi.Healthy}
		if sick {
			d.Health = pluginapi.Unhealthy
		}
		out = append(out, d)
	}
	return out
}

func (b *bench) register(q *pluginapi.RegisterRequest) error {
	conn, err := grpc.NewClient("unix:"+filepath.Join(b.dir, socketName), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		b.t.Fatal(err)
	}
	defer conn.Close()
	_, err = pluginapi.NewRegistrationClient(conn).Register(b.t.Context(), q)
	return err
}

func (b *bench) amounts() string {
	capacity, allocatable := b.Amounts()
	c, known := capacity[gpu]
	a := allocatable[gpu]
	if !known {
		return "none"
	}
	return fmt.Sprintf("%d of %d", a.Value(), c.Value())
}

func (b *bench) has(want string) {
	b.t.Helper()
	b.eventually("the amounts", func() error {
		if got := b.amounts(); got != want {
			return fmt.Errorf("%s, want %s", got, want)
		}
		return nil
	})
}

func gpuPod(name string, n int64, more ...func(*corev1.Pod)) *corev1.Pod {
	c := corev1.Container{Name: "main"}
	c.Resources.Limits = corev1.ResourceList{gpu: *resource.NewQuantity(n, resource.DecimalSI)}
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}, Spec: corev1.PodSpec{Containers: []corev1.Container{c}}}
	for _, f := range more {
		f(p)
	}
	return p
}

// give gives a container its devices, and says which.
func (b *bench) give(p *corev1.Pod, c *corev1.Container) string {
	b.t.Helper()
	b.hold[p.UID] = true
	d, err := b.Give(b.t.Context(), p, c, func(uid types.UID) bool { return b.hold[uid] })
	if err != nil {
		return err.Error()
	}
	if len(d.Mounts) != 1 || len(d.Nodes) != 1 || d.Nodes[0].Path != "/dev/gpu0" || !slices.Equal(d.CDI, []string{"example.com/gpu=0"}) {
		b.t.Errorf("%+v", d)
	}
	return strings.Join(d.Env, " ")
}

func (b *bench) gives(p *corev1.Pod, c *corev1.Container, want string) {
	b.t.Helper()
	if got := b.give(p, c); !strings.Contains(got, want) {
		b.t.Errorf("%s/%s: %q, want %q", p.Name, c.Name, got, want)
	}
}

func TestDevices(t *testing.T) {
	b := newBench(t)
	s := &stub{}
	b.plug(s, "gpu.sock", "a", "b", "c!")
	b.has("2 of 3")
	one, two, three := gpuPod("one", 1), gpuPod("two", 1), gpuPod("three", 1)
	main := func(p *corev1.Pod) *corev1.Container { return &p.Spec.Containers[0] }
	b.gives(one, main(one), "GPUS=a")
	b.gives(one, main(one), "GPUS=a") // started again
	b.gives(two, main(two), "GPUS=b")
	b.gives(three, main(three), "1 are asked for, and 0 are healthy and free")
	if s.mu.Lock(); len(s.given) != 2 {
		t.Errorf("the plugin was asked for %q", s.given)
	}
	s.mu.Unlock()

	b.hold["two"] = false
	b.gives(three, main(three), "GPUS=b")
	s.lists <- devices("a!", "b", "c", "d")
	b.has("3 of 4")
	b.gives(one, main(one), "a, which the container has, is not healthy")

	s.server.Stop()
	b.has("0 of 4")
	b.gives(three, main(three), "GPUS=b") // it has it, whatever became of the plugin
	b.gives(two, main(two), "their plugin is gone")
	if b.expire(time.Now()) || !b.expire(time.Now().Add(forgetAfter+time.Second)) || b.amounts() != "0 of 0" {
		t.Errorf("of a plugin that is gone for long there are %s", b.amounts())
	}
}

// Neither the worker's end nor the plugin's takes a device from who has it.
func TestDevicesAreKept(t *testing.T) {
	b := newBench(t)
	b.plug(&stub{}, "gpu.sock", "a", "b")
	b.has("2 of 2")
	one, two := gpuPod("one", 1), gpuPod("two", 1)
	b.gives(one, &one.Spec.Containers[0], "GPUS=a")
	if _, err := Open(Options{Dir: b.dir, State: filepath.Join(b.dir, "other.json"), Logger: hclog.NewNullLogger()}); err == nil {
		t.Error("another worker has the same folder")
	}
	b.end()
	b.start()
	b.has("none") // what was said before holds for a while
	b.gives(one, &one.Spec.Containers[0], "GPUS=a")
	if !b.expire(time.Now().Add(awaitFor + time.Second)) {
		t.Error("the plugin is awaited for ever")
	}
	b.has("0 of 2")
	if _, err := os.Stat(filepath.Join(b.dir, "gpu.sock")); !os.IsNotExist(err) {
		t.Errorf("the plugin's socket is still there: %v", err)
	}
	b.plug(&stub{}, "gpu2.sock", "a", "b")
	b.has("2 of 2")
	b.gives(two, &two.Spec.Containers[0], "GPUS=b")
	b.plug(&stub{}, "gpu3.sock", "a", "b", "c") // another one in its place
	b.has("3 of 3")
	b.end()
	if err := os.WriteFile(filepath.Join(b.dir, "state.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(Options{Dir: b.dir, State: filepath.Join(b.dir, "state.json"), Logger: hclog.NewNullLogger()}); err == nil {
		t.Error("who has which devices is forgotten")
	}
}

// The plugin is asked what it prefers, and before each start; the devices of init containers are the pod's.
func TestDevicesThatAreChosen(t *testing.T) {
	b := newBench(t)
	s := &stub{prefers: []string{"c", "b"}}
	s.options.PreStartRequired, s.options.GetPreferredAllocationAvailable = true, true
	b.plug(s, "gpu.sock", "a", "b", "c", "d")
	b.has("4 of 4")
	p := gpuPod("p", 2, func(p *corev1.Pod) {
		init := *p.Spec.Containers[0].DeepCopy()
		init.Name = "init"
		p.Spec.InitContainers = []corev1.Container{init}
	})
	b.gives(p, &p.Spec.InitContainers[0], "GPUS=b,c")
	b.gives(p, &p.Spec.Containers[0], "GPUS=b,c")
	b.gives(p, &p.Spec.Containers[0], "GPUS=b,c")
	s.mu.Lock()
	if len(s.prepared) != 3 {
		t.Errorf("it was told of starts with %q", s.prepared)
	}
	s.prefers = []string{"a", "a"}
	s.mu.Unlock()
	other := gpuPod("other", 2)
	b.gives(other, &other.Spec.Containers[0], "GPUS=a,d") // it prefers what makes no sense
	b.hold["other"] = false
	s.mu.Lock()
	s.refuses = true
	s.mu.Unlock()
	last := gpuPod("last", 1)
	b.gives(last, &last.Spec.Containers[0], "not today")
}

func TestRegistrationsThatAreRefused(t *testing.T) {
	b := newBench(t)
	for what, q := range map[string]*pluginapi.RegisterRequest{
		"another version":    {Version: "v1alpha", Endpoint: "x.sock", ResourceName: gpu},
		"no domain":          {Version: pluginapi.Version, Endpoint: "x.sock", ResourceName: "gpu"},
		"Kubernetes' domain": {Version: pluginapi.Version, Endpoint: "x.sock", ResourceName: "kubernetes.io/gpu"},
		"a socket elsewhere": {Version: pluginapi.Version, Endpoint: "../x.sock", ResourceName: gpu},
		"our own socket":     {Version: pluginapi.Version, Endpoint: socketName, ResourceName: gpu},
		"no socket":          {Version: pluginapi.Version, ResourceName: gpu},
	} {
		if err := b.register(q); err == nil {
			t.Errorf("%s is taken", what)
		}
	}
	if b.amounts() != "none" {
		t.Errorf("there are %s", b.amounts())
	}
}
