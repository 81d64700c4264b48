package devices

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

const (
	// socketName is where plugins register, lockName keeps a second worker out.
	socketName, lockName = "kubelet.sock", ".berth.lock"
	// forgetAfter is how long a resource is told of whose plugin is gone: as long as by Kubernetes' node agent.
	forgetAfter = 5 * time.Minute
	// awaitFor is how long after the worker's start a plugin that was there before may take to come again.
	awaitFor = time.Minute
	// maxResources bounds the kinds of devices, maxDevices those of a kind.
	maxResources, maxDevices = 64, 4096
	// dirMode: who can write there can register.
	dirMode = 0o750
)

// Options are what a Registry is made of.
type Options struct {
	// Dir is the folder of sockets, State the file that says who has which device.
	Dir, State string
	// Changed is called when amounts have changed. It must not block.
	Changed func()
	Logger  hclog.Logger
}

// Registry knows the node's devices.
type Registry struct {
	opts Options
	log  hclog.Logger
	lock *os.File

	mu        sync.Mutex
	resources map[string]*kind
	grants    []grant
}

// kind is one resource and its devices.
type kind struct {
	devices map[string]*pluginapi.Device
	plugin  *plugin   // nil: none is connected
	goneAt  time.Time // since when; of one that is awaited, when the worker began
	awaited bool      // it was there before the worker began, and has not come again
	over    bool      // it has been gone for so long that nothing is left of it
	// giving holds a token while somebody is given devices of the kind.
	giving chan struct{}
}

func newKind(goneAt time.Time) *kind {
	return &kind{devices: map[string]*pluginapi.Device{}, goneAt: goneAt, giving: make(chan struct{}, 1)}
}

// Open reads who has which device, and keeps other workers out of the folder. Sockets of before are removed: plugins see the
// new one, and register again.
func Open(o Options) (*Registry, error) {
	r := &Registry{opts: o, log: o.Logger, resources: map[string]*kind{}}
	if err := os.MkdirAll(o.Dir, dirMode); err != nil {
		return nil, fmt.Errorf("the folder of device plugins: %w", err)
	}
	var err error
	if r.lock, err = os.OpenFile(filepath.Join(o.Dir, lockName), os.O_CREATE|os.O_RDWR, 0o600); err != nil {
		return nil, fmt.Errorf("the folder of device plugins: %w", err)
	}
	if err := unix.Flock(int(r.lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, errors.Join(fmt.Errorf("the folder of device plugins %s is another worker's: %w", o.Dir, err), r.lock.Close())
	}
	if err := r.load(time.Now()); err != nil {
		return nil, errors.Join(err, r.lock.Close())
	}
	return r, nil
}

// Run lets plugins register until ctx ends.
func (r *Registry) Run(ctx context.Context) error {
	defer func() { _ = r.lock.Close() }() // and the lock with it
	entries, err := os.ReadDir(r.opts.Dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.Type()&fs.ModeSocket != 0 {
			if err := os.Remove(filepath.Join(r.opts.Dir, e.Name())); err != nil {
				return err
			}
		}
	}
	listener, err := net.Listen("unix", filepath.Join(r.opts.Dir, socketName))
	if err != nil {
		return err
	}
	server := grpc.NewServer(grpc.MaxRecvMsgSize(64 << 10))
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var watching sync.WaitGroup
	defer watching.Wait()
	pluginapi.RegisterRegistrationServer(server, &registration{registry: r, ctx: ctx, watching: &watching})
	watching.Go(func() { r.forget(ctx) })
	stop := context.AfterFunc(ctx, server.Stop)
	defer stop()
	if err := server.Serve(listener); err != nil && ctx.Err() == nil {
		return err
	}
	return nil
}

// forget lets resources go whose plugins are gone for long.
func (r *Registry) forget(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(10 * time.Second):
		}
		if r.expire(time.Now()) {
			r.opts.Changed()
		}
	}
}

func (r *Registry) expire(now time.Time) (changed bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, k := range r.resources {
		if k.plugin == nil && k.awaited && now.Sub(k.goneAt) > awaitFor {
			k.awaited, changed = false, true
		}
		if k.plugin == nil && !k.over && now.Sub(k.goneAt) > forgetAfter {
			k.over, changed = true, true
		}
	}
	return changed
}

// Amounts are how many devices of each kind there are, and how many of them are healthy. A kind that is awaited is not told
// of: what was said of it before holds.
func (r *Registry) Amounts() (capacity, allocatable corev1.ResourceList) {
	r.mu.Lock()
	defer r.mu.Unlock()
	capacity, allocatable = corev1.ResourceList{}, corev1.ResourceList{}
	for name, k := range r.resources {
		if k.awaited {
			continue
		}
		all, healthy := int64(len(k.devices)), int64(0)
		for id := range k.devices {
			if k.healthy(id) {
				healthy++
			}
		}
		if k.over {
			all = 0
		}
		capacity[corev1.ResourceName(name)] = *resource.NewQuantity(all, resource.DecimalSI)
		allocatable[corev1.ResourceName(name)] = *resource.NewQuantity(healthy, resource.DecimalSI)
	}
	return capacity, allocatable
}

func (k *kind) healthy(id string) bool {
	d := k.devices[id]
	return k.plugin != nil && d != nil && d.Health == pluginapi.Healthy
}

// registration answers plugins.
type registration struct {
	pluginapi.UnimplementedRegistrationServer
	registry *Registry
	ctx      context.Context
	watching *sync.WaitGroup
}

// Register implements the protocol's only call to the node.
func (s *registration) Register(ctx context.Context, q *pluginapi.RegisterRequest) (*pluginapi.Empty, error) {
	if err := checkRegistration(q); err != nil {
		s.registry.log.Warn("a device plugin is not taken", "resource", q.ResourceName, "endpoint", q.Endpoint, "error", err)
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	if err := s.registry.connect(ctx, s.ctx, s.watching, q); err != nil {
		s.registry.log.Warn("a device plugin is not taken", "resource", q.ResourceName, "endpoint", q.Endpoint, "error", err)
		return nil, status.Error(codes.FailedPrecondition, err.Error())
	}
	return new(pluginapi.Empty), nil
}

func checkRegistration(q *pluginapi.RegisterRequest) error {
	if !slices.Contains(pluginapi.SupportedVersions[:], q.Version) {
		return fmt.Errorf("it speaks version %q, and %q is known", q.Version, pluginapi.SupportedVersions)
	}
	domain, _, ok := strings.Cut(q.ResourceName, "/")
	if problems := validation.IsQualifiedName(q.ResourceName); len(problems) > 0 || !ok {
		return fmt.Errorf("%q is no name of an extended resource, like example.com/gpu", q.ResourceName)
	}
	if domain == "kubernetes.io" || strings.HasSuffix(domain, ".kubernetes.io") || strings.HasPrefix(domain, "requests.") {
		return fmt.Errorf("%q: the domain is Kubernetes' own", q.ResourceName)
	}
	if q.Endpoint == "" || q.Endpoint == socketName || filepath.Base(q.Endpoint) != q.Endpoint || q.Endpoint == ".." || q.Endpoint == "." {
		return fmt.Errorf("%q is no socket in the folder of device plugins", q.Endpoint)
	}
	return nil
}
