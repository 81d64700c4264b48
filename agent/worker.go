package agent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/berth-dev/berth/atomicfile"
	"github.com/berth-dev/berth/pki"
	"github.com/berth-dev/berth/rpc"
	"github.com/berth-dev/berth/worker"
	"github.com/berth-dev/berth/worker/eviction"
	"github.com/berth-dev/berth/worker/runtime"
	"github.com/berth-dev/berth/worker/runtime/fake"
	"github.com/berth-dev/berth/worker/runtime/hugepages"
	"github.com/berth-dev/berth/worker/runtime/process"
)

// WorkerConfig says what a node is made of.
type WorkerConfig struct {
	// Node is how the node presents itself; Name must be set.
	Node worker.NodeConfig
	// DataDir holds the worker's identity, the pods' volumes and logs. Empty
	// is allowed for the fake runtime only, whose worker is another one after
	// every start.
	DataDir string
	// Runtime is "cri", "process", "fake", or "auto" for the first two.
	Runtime  string
	CRI      CRIPart
	Services ServicesPart
	// Containers is the runtime itself, if it is there already and outlives the
	// worker. It never blocks, and is closed by whoever made it.
	Containers runtime.Runtime
	// Timeline drives fake containers, and may be shared by many workers; nil
	// makes one of its own.
	Timeline *fake.Timeline
	// Images are those that the fake runtime pretends to have.
	Images []runtime.Image
	// Servers are the servers' RPC addresses known now.
	Servers func() []string
	TLS     *pki.Source
	// Dial reaches the servers; nil: TCP.
	Dial rpc.Dial
	// StaticPods is a folder of pods that the node runs of its own; empty: there are none.
	StaticPods string
	// DevicePlugins is the folder in which device plugins register; empty: none does.
	DevicePlugins string
	// ShutdownGrace is how long the machine's end waits for the pods; 0: it does not.
	ShutdownGrace time.Duration
	// MaxRestartBackoff is how long the restart of a container waits at most; 0 means the default.
	MaxRestartBackoff time.Duration
	// LogBytes and LogFiles bound a container's log; 0 means the defaults.
	LogBytes int64
	LogFiles int
	// PodPIDs bounds the processes of a pod; 0: not.
	PodPIDs int64
	// Streams bound how long somebody stays in a pod.
	Streams worker.StreamBounds
	// SampleInterval is how often it is measured what the pods use; 0 means the default.
	SampleInterval time.Duration
	// Eviction says when the node runs short of something.
	Eviction eviction.Config
	Logger   hclog.Logger
}

// Worker is a running node.
type Worker struct {
	name   string
	cancel context.CancelFunc
	loops  sync.WaitGroup
	close  func()
	fatal  chan error // capacity 1
	agent  *worker.Agent
}

// sweepWorker removes what writes have left that were cut off, but for those of pods' records, which go with the pods.
func sweepWorker(dataDir string) error {
	if dataDir == "" {
		return nil
	}
	return errors.Join(atomicfile.Sweep(dataDir), atomicfile.Sweep(shimDir(dataDir)))
}

// StartWorker starts a node. It returns at once; the node registers as soon as
// a server is found.
func StartWorker(c WorkerConfig) (*Worker, error) {
	if c.Logger == nil {
		c.Logger = hclog.NewNullLogger()
	}
	c.Logger = c.Logger.Named("worker").With("node", c.Node.Name)
	p, err := openParts(&c)
	if err != nil {
		return nil, fmt.Errorf("start worker %s: %w", c.Node.Name, err)
	}
	return p.run(), nil
}

// Fatal tells why the worker can not go on: its runtime could not be opened.
func (w *Worker) Fatal() <-chan error { return w.fatal }

// Stop ends the worker's process-side work. Its pods go on running: a worker
// that is started again finds them.
func (w *Worker) Stop() {
	w.cancel()
	w.loops.Wait()
	w.close()
}

func openRuntime(c *WorkerConfig, link *uplink, forward *forwarder) (runtime.Runtime, func(), error) {
	if c.Containers != nil {
		return c.Containers, func() {}, nil
	}
	switch c.Runtime {
	case "fake":
		if c.Timeline != nil {
			return fake.New(c.Timeline, c.Images...), func() {}, nil
		}
		timeline := fake.NewTimeline(nil)
		ctx, cancel := context.WithCancel(context.Background())
		var loop sync.WaitGroup
		loop.Go(func() { timeline.Run(ctx) })
		return fake.New(timeline, c.Images...), func() { cancel(); loop.Wait() }, nil
	case "process":
		if c.DataDir == "" {
			return nil, nil, errors.New("the process runtime needs a data directory")
		}
		rt, err := process.New(processOptions(c, link))
		if err != nil {
			return nil, nil, err
		}
		return rt, rt.Close, nil
	case "cri":
		return openCRI(c, link, forward)
	}
	return nil, nil, fmt.Errorf("there is no runtime %q: it is cri, process, fake or auto", c.Runtime)
}

// processOptions configure the runtime process. What is any pod's on this machine the containers see only as mounted.
func processOptions(c *WorkerConfig, link *uplink) process.Options {
	return process.Options{
		Root: processDir(c.DataDir), ShimDir: shimDir(c.DataDir), Hide: volumeDirs(c.DataDir), LogBytes: c.LogBytes, LogFiles: c.LogFiles, PIDs: c.PodPIDs,
		Domain: c.Services.Domain, Event: link.Event, Logger: c.Logger,
	}
}

func newNode(c *WorkerConfig, rt runtime.Runtime) (*corev1.Node, error) {
	var unready string
	if checkup, ok := rt.(runtime.Checkup); ok {
		if err := checkup.Check(context.Background()); err != nil {
			unready = err.Error()
		}
	}
	node, err := describeNode(c, rt)
	if err != nil {
		return nil, err
	}
	if unready != "" {
		node.Status.Conditions = worker.NodeConditions(worker.Pressure{Unready: unready}, nil, time.Now())
		return node, nil // the images are listed when it can be asked
	}
	if node.Status.Images, err = worker.NodeImages(rt); err != nil {
		return nil, fmt.Errorf("list the images: %w", err)
	}
	return node, nil
}

// describeNode is the node by what its machine and its runtime say of themselves now.
func describeNode(c *WorkerConfig, rt runtime.Runtime) (*corev1.Node, error) {
	// Two workers of one machine are two nodes: what tells a worker from
	// another of its name is the identity in its data directory.
	id, err := workerID(c.DataDir)
	if err != nil {
		return nil, err
	}
	machine, err := readMachine(c.DataDir)
	if err != nil {
		return nil, err
	}
	machine.Info.SystemUUID = id
	cfg, version, answers := c.Node, c.Node.Version, true
	if checkup, ok := rt.(runtime.Checkup); ok {
		version = checkup.Version()
		answers = version != ""
	}
	if h, ok := rt.(runtime.Hugepager); ok && h.Hugepages() {
		pools, err := hugepages.Read(hugepages.Dir)
		if err != nil {
			return nil, err
		}
		maps.Copy(machine.Capacity, hugepages.Capacity(pools))
	} else if ok && !answers {
		// It is not known yet whether there are any, and so nothing of them is kept back.
		cfg.Reserved = maps.Clone(cfg.Reserved)
		maps.DeleteFunc(cfg.Reserved, func(name corev1.ResourceName, _ resource.Quantity) bool { return hugepages.Is(name) })
	}
	cfg.Runtime = rt.Name() + "://" + version
	return worker.NewNode(cfg, machine, time.Now())
}

func readMachine(dataDir string) (worker.Machine, error) {
	return worker.ReadMachine(dataDirOr(dataDir))
}

// dataDirOr is the directory whose disk is the node's: without a data directory, that of what is temporary.
func dataDirOr(dataDir string) string {
	if dataDir == "" {
		return os.TempDir()
	}
	return dataDir
}

// podsDir is where the pods' volumes are, and keptDir where those are that outlive pods.
func podsDir(dataDir string) string { return filepath.Join(dataDir, "pods") }
func keptDir(dataDir string) string { return filepath.Join(dataDir, "volumes") }

// volumeDirs are all directories in which there are volumes of whichever pods.
func volumeDirs(dataDir string) []string { return []string{podsDir(dataDir), keptDir(dataDir)} }

func workerOptions(c *WorkerConfig, node *corev1.Node, link *uplink, rt runtime.Runtime, forward *forwarder) worker.Options {
	o := worker.Options{Node: node, Uplink: link, Runtime: rt, Getter: link, Mirrors: link, Recorder: link, Logger: c.Logger,
		MaxRestartBackoff: c.MaxRestartBackoff, Streams: c.Streams}
	if c.Runtime == "fake" || c.Containers != nil {
		o.CallsAtOnce = worker.CallsInline
		o.Getter = nil
		if c.Containers == nil {
			o.Keeper = volumeKeeper{link, node.Name} // its volumes have no directories, and are to go all the same
		}
		return o
	}
	if _, ok := rt.(runtime.Hugepager); ok {
		o.Amounts = func() (capacity, allocatable corev1.ResourceList, err error) {
			is, err := describeNode(c, rt)
			if err != nil {
				return nil, nil, err
			}
			return is.Status.Capacity, is.Status.Allocatable, nil
		}
	}
	o.Volumes = &worker.Volumes{Root: podsDir(c.DataDir), Kept: keptDir(c.DataDir)}
	o.Keeper = volumeKeeper{link, node.Name}
	if forward != nil {
		_, ownNetwork := rt.(runtime.Sandboxer)
		o.API = func(pod *corev1.Pod) (host, port string) { return forward.addressFor(pod, ownNetwork) }
	}
	dir := c.DataDir
	o.Eviction = c.Eviction
	o.Observe = func(ctx context.Context) (eviction.Observations, error) {
		images, err := imageDir(ctx, rt) // whether it answers or not, all else is observed
		seen, rerr := worker.ReadObservations(dir, images)
		return seen, errors.Join(err, rerr)
	}
	return o
}

// imageDir is a directory of the images' file system; empty: there are no images, or they are where all else is.
func imageDir(ctx context.Context, rt runtime.Runtime) (string, error) {
	if d, ok := rt.(runtime.ImageDisk); ok {
		return d.ImageDir(ctx)
	}
	return "", nil
}
