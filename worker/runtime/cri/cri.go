// Package cri is the container runtime of nodes that have containerd, CRI-O or another program behind the container
// runtime interface, version 1. A pod is a sandbox with an address of its own, a container is made of an image.
//
// The runtime does what the agent tells it and reports what happened. It must never start, restart or end anything of its
// own accord, and never touch what another agent has in the same containerd: what is its own has its node's label.
package cri

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-dev/berth/worker/runtime"
	"github.com/berth-dev/berth/worker/runtime/cgroup"
	"github.com/berth-dev/berth/worker/runtime/hugepages"
	"github.com/berth-dev/berth/worker/runtime/naming"
)

// DefaultEndpoint is where containerd listens.
const DefaultEndpoint = "unix:///run/containerd/containerd.sock"

const (
	// askTimeout bounds each call that takes no work of the runtime's, and countTimeout those for which it counts what all containers use.
	askTimeout, countTimeout = 10 * time.Second, 30 * time.Second
	// checkTimeout is how long the runtime may take to say how it is.
	checkTimeout = 5 * time.Second
	// maxMessageBytes bounds an answer: a node with a few hundred containers and images is listed in less than one MiB.
	maxMessageBytes = 16 << 20
)

// Options configure a Runtime. The zero value of a field means its default.
type Options struct {
	// Endpoint is a unix socket, "unix:///PATH".
	Endpoint string
	// Root keeps one directory a pod, named by its UID. It must outlive the agent.
	Root string
	// Node tells the agent's sandboxes and containers from those of others in the same runtime. Required.
	Node string
	// CgroupParent is the cgroup below which pods get theirs; default "/kubepods".
	CgroupParent string
	// PIDs bounds the processes of one pod; 0: not.
	PIDs int64
	// MemoryBytes is what the node has: it is what a container's badness is reckoned by when memory is short.
	MemoryBytes int64
	// PullsAtOnce bounds how many images are fetched at a time; default 3.
	PullsAtOnce int
	// ImagesHigh is the percentage of their disk above which images that nobody uses are removed, until ImagesLow percent
	// are in use; defaults 85 and 80. With 100 none are.
	ImagesHigh, ImagesLow int
	// LogBytes and LogFiles bound a container's log: size of a file (10 MiB), number of files (5).
	LogBytes int64
	LogFiles int
	// HostAliases are in the hosts file of every pod with addresses of its own, before the pod's.
	HostAliases []corev1.HostAlias
	// ClusterDNS is where names of the cluster are answered, for pods whose policy asks there; nil, or
	// one that gives nil: nowhere.
	ClusterDNS func(ctx context.Context) (*naming.ClusterDNS, error)
	// Domain is the cluster's, for pods whose hosts are called by their whole names; empty: it is not known.
	Domain string
	// Handler finds what a RuntimeClass names; nil: no pod may name one.
	Handler func(ctx context.Context, class string) (string, error)
	// Logger defaults to none.
	Logger hclog.Logger
}

// Runtime runs pods by the container runtime interface.
type Runtime struct {
	opts    Options
	log     hclog.Logger
	conn    *grpc.ClientConn
	runtime criv1.RuntimeServiceClient
	images  criv1.ImageServiceClient
	cgroups *cgroup.Tree // nil: none can be made
	pages   []hugepages.Pool
	pulls   chan struct{}
	notify  func(runtime.Event)

	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	loops  sync.WaitGroup
	// opening is held by Open, which may go on when nobody waits for it any more.
	opening sync.Mutex
	looking chan struct{} // holds a token for everything that is looked at just now
	// lookingAgain is looking of what could not be looked at before.
	lookingAgain chan struct{}
	kick         chan struct{} // something happened that a listing would show

	mu        sync.Mutex
	about     about
	sandboxes map[types.UID]sandbox
	emptied   map[string]types.UID // sandboxes, by the runtime's name, that hold nothing any more, and whose they are
	running   map[runtime.ID]running
	looks     map[string]*look // what is being looked at, by the runtime's name of it
	failed    map[string]bool  // what could not be looked at when it was last
	unwanted  map[string]bool  // containers, by the runtime's name, that are to go, unless they have come to run
	users     map[string]imageUser
	listedAt  time.Time // the newest listing that succeeded
	verified  time.Time // when what was listed was last looked at closely
	events    bool      // the runtime tells of what happens
	lastUsed  map[string]time.Time
	burstable map[types.UID]int64 // requests of the pods of that class, in thousandths of a processor

	execPatience time.Duration

	imageVolumes sync.Mutex // held by who makes or removes volumes of images
	rests        *rests
}

// sandbox is one that containers can be started in.
type sandbox struct {
	id      string
	attempt uint32
	ips     []string
	unknown bool // the ips: it has not answered
}

// running is a container that runs as far as is known.
type running struct {
	ref       string // the runtime's name of it
	startedAt time.Time
	imageID   string
}

var (
	_ runtime.Runtime    = (*Runtime)(nil)
	_ runtime.Sandboxer  = (*Runtime)(nil)
	_ runtime.ImageStore = (*Runtime)(nil)
	_ runtime.Refuser    = (*Runtime)(nil)
	_ runtime.Checkup    = (*Runtime)(nil)
	_ runtime.Pinner     = (*Runtime)(nil)
	_ runtime.DiskUser   = (*Runtime)(nil)
	_ runtime.Hugepager  = (*Runtime)(nil)

	_ runtime.ImageVolumer = (*Runtime)(nil)
)

// Probe says whether a runtime answers at an endpoint, and what it calls itself.
func Probe(ctx context.Context, endpoint string) (name, version string, err error) {
	conn, err := dial(endpoint)
	if err != nil {
		return "", "", err
	}
	defer func() { _ = conn.Close() }() // nothing is under way
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	v, err := criv1.NewRuntimeServiceClient(conn).Version(ctx, &criv1.VersionRequest{})
	if err != nil {
		return "", "", fmt.Errorf("asking the container runtime at %s: %w", endpoint, unwrapped(err))
	}
	return v.RuntimeName, v.RuntimeVersion, nil
}

// SocketPath is the file of an endpoint.
func SocketPath(endpoint string) (string, error) {
	u, err := url.Parse(endpoint)
	if err != nil || u.Scheme != "unix" || u.Host != "" || !filepath.IsAbs(u.Path) {
		return "", fmt.Errorf("%q is no endpoint of a container runtime; write unix:///PATH", endpoint)
	}
	return u.Path, nil
}

func dial(endpoint string) (*grpc.ClientConn, error) {
	path, err := SocketPath(endpoint)
	if err != nil {
		return nil, err
	}
	if fi, err := os.Stat(path); err == nil && fi.Mode()&os.ModeSocket == 0 {
		return nil, fmt.Errorf("the endpoint of the container runtime, %s, is not a socket", path)
	}
	// A runtime that was away is found again within a second.
	again := backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second}
	return grpc.NewClient("unix://"+path, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: again, MinConnectTimeout: checkTimeout}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessageBytes)))
}

// New returns a runtime over the directory opts.Root, which it makes. It does not need the runtime to answer yet.
func New(opts Options) (*Runtime, error) {
	if opts.Endpoint == "" {
		opts.Endpoint = DefaultEndpoint
	}
	if opts.CgroupParent == "" {
		opts.CgroupParent = "/kubepods"
	}
	if opts.PullsAtOnce <= 0 {
		opts.PullsAtOnce = 3
	}
	if opts.ImagesHigh == 0 {
		opts.ImagesHigh, opts.ImagesLow = 85, 80
	}
	if opts.LogBytes == 0 {
		opts.LogBytes = 10 << 20
	}
	if opts.LogFiles == 0 {
		opts.LogFiles = 5
	}
	if opts.Logger == nil {
		opts.Logger = hclog.NewNullLogger()
	}
	if opts.Node == "" {
		return nil, errors.New("the cri runtime needs a name for its node")
	}
	root, err := filepath.Abs(opts.Root)
	if err == nil {
		err = os.MkdirAll(root, 0o700)
	}
	if err != nil {
		return nil, fmt.Errorf("data directory of the cri runtime: %w", err)
	}
	opts.Root = root
	conn, err := dial(opts.Endpoint)
	if err != nil {
		return nil, err
	}
	r := &Runtime{rests: newRests(), opts: opts, log: opts.Logger, conn: conn, runtime: criv1.NewRuntimeServiceClient(conn),
		images: criv1.NewImageServiceClient(conn), pulls: make(chan struct{}, opts.PullsAtOnce), kick: make(chan struct{}, 1),
		sandboxes: map[types.UID]sandbox{}, emptied: map[string]types.UID{}, running: map[runtime.ID]running{},
		looks: map[string]*look{}, failed: map[string]bool{}, looking: make(chan struct{}, looksAtOnce), lookingAgain: make(chan struct{}, looksAgain),
		unwanted: map[string]bool{}, users: map[string]imageUser{}, lastUsed: map[string]time.Time{}, burstable: map[types.UID]int64{},
		execPatience: execPatience}
	if r.cgroups, err = cgroup.Open(opts.CgroupParent); err != nil {
		r.log.Warn("pods have no cgroups of their own, their containers have", "reason", err)
		r.cgroups = nil
	} else if r.cgroups.Hugepages = cgroup.HasHugepages(); r.cgroups.Hugepages {
		if r.pages, err = hugepages.Read(hugepages.Dir); err != nil {
			return nil, errors.Join(err, conn.Close())
		}
	}
	r.ctx, r.cancel = context.WithCancel(context.Background())
	return r, nil
}

// Name implements runtime.Runtime: what the program behind the interface calls itself, "cri" before it has answered.
func (r *Runtime) Name() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.about.name == "" {
		return "cri"
	}
	return r.about.name
}

// Version is the program's; empty before it has answered.
func (r *Runtime) Version() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.about.version
}

// Close stops watching. Pods go on running.
func (r *Runtime) Close() {
	r.finishRests()
	r.cancel()
	r.opening.Lock() // it begins loops
	defer r.opening.Unlock()
	r.loops.Wait()
	if r.cgroups != nil {
		_ = r.cgroups.Remove("") // where pods are in it, it stays
	}
	_ = r.conn.Close() // nothing is under way
}

// Directories: Root/<pod uid>/pod.record, rest (a pod that is gone, rest.go), hosts, emptied (sandboxes that hold nothing any more), containers/<name>/<attempt>/ with termination.log and what sub paths are
// mounted at, logs/<name>/<attempt>.log, and images/<volume>/ (imagevolume.go).

func (r *Runtime) podDir(pod types.UID) string { return filepath.Join(r.opts.Root, string(pod)) }

// containersDir holds a directory a container, in that of its pod.
const containersDir = "containers"

func (r *Runtime) dir(id runtime.ID) string {
	return filepath.Join(r.podDir(id.Pod), containersDir, id.Container, strconv.Itoa(int(id.Attempt)))
}

func (r *Runtime) logDir(pod types.UID) string { return filepath.Join(r.podDir(pod), "logs") }

// logPath is a container's log within logDir.
func logPath(id runtime.ID) string {
	return filepath.Join(id.Container, strconv.Itoa(int(id.Attempt))+".log")
}

func (r *Runtime) logFile(id runtime.ID) string { return filepath.Join(r.logDir(id.Pod), logPath(id)) }

// Labels of sandboxes and containers: Kubernetes' own, by which tools find them, and the agent's.
const (
	labelPodName      = "io.kubernetes.pod.name"
	labelPodNamespace = "io.kubernetes.pod.namespace"
	labelPodUID       = "io.kubernetes.pod.uid"
	labelContainer    = "io.kubernetes.container.name"
	labelNode         = "dev.berth.node"

	// imageAnnotation of a container is what its spec called its image when it was made.
	imageAnnotation = "dev.berth.image"
)

func (r *Runtime) labels(pod *corev1.Pod) map[string]string {
	return map[string]string{labelPodName: pod.Name, labelPodNamespace: pod.Namespace, labelPodUID: string(pod.UID), labelNode: r.opts.Node}
}

// asking bounds one call that takes no work of the runtime's.
func asking(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, askTimeout)
}

// asked says what became of a call: not found, not answered, or refused. What was asked is the caller's to say.
func asked(err error) error {
	if err == nil {
		return nil
	}
	switch status.Code(err) {
	case codes.NotFound:
		return fmt.Errorf("%w: %w", runtime.ErrNotFound, unwrapped(err))
	case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled:
		return fmt.Errorf("%w: %w", runtime.ErrUnavailable, unwrapped(err))
	}
	return unwrapped(err)
}

// settled is asked for a call from whose failure something follows: one that is starting refuses in words of its own what
// it will do in a moment. Only one that answers at all has refused.
func (r *Runtime) settled(err error) error {
	if err == nil || status.Code(err) != codes.Unknown {
		return asked(err)
	}
	if r.answers() != nil {
		return fmt.Errorf("%w: %w", runtime.ErrUnavailable, unwrapped(err))
	}
	return unwrapped(err)
}

// answers asks the runtime for nothing in particular; it gives nil or runtime.ErrUnavailable.
func (r *Runtime) answers() error {
	ctx, cancel := context.WithTimeout(r.ctx, checkTimeout)
	defer cancel()
	if _, err := r.runtime.Version(ctx, &criv1.VersionRequest{}); err != nil {
		return runtime.ErrUnavailable
	}
	return nil
}

// unwrapped is an error of gRPC without the words that are gRPC's.
func unwrapped(err error) error {
	if s, ok := status.FromError(err); ok && s.Message() != "" {
		return errors.New(s.Message())
	}
	return err
}

func notFound(err error) bool { return status.Code(err) == codes.NotFound }

func tooLarge(err error) bool { return status.Code(err) == codes.ResourceExhausted }

func deadline(err error) bool { return status.Code(err) == codes.DeadlineExceeded }

func unimplemented(err error) bool { return status.Code(err) == codes.Unimplemented }
