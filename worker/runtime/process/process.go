// Package process is the container runtime that needs no images: a container's command is a process of the host, in a
// cgroup and a session of its own, watched over by a shim (package shim) that outlives the agent.
//
// What a container gets of its surroundings: the host's file system, in a mount namespace and a root of its own where the
// host lets it (see Options.Mounts), the host's network and processes, its volumes, an environment that is not the
// agent's, a scratch directory to work in, and its output in log files. What a pod asks for beyond that is honoured,
// refused before anything of it runs (Refuse), or told (Told), and never passed over.
// Images are ignored, and the first container of a pod that names one is told so through Options.Event. It must never
// touch a process that is not a container's, which is why shims and not process numbers are signalled.
package process

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	goruntime "runtime"
	"strconv"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/worker/runtime"
	"github.com/berth-dev/berth/worker/runtime/mounts"
	"github.com/berth-dev/berth/worker/runtime/process/shim"
)

// IsShim says whether the process's arguments are those of a shim; the program must then exit with ShimMain.
func IsShim(args []string) bool { return shim.Is(args) }

// ShimMain is a shim's life; it returns the exit status.
func ShimMain(args []string) int { return shim.Main(args) }

// MountMode says how a container finds its volumes.
type MountMode string

const (
	// MountAuto: MountBind where the host lets this process have mount namespaces, else MountEnv.
	MountAuto MountMode = ""
	// MountBind gives each container a root of its own (shim.Root), which shows the host's, with its volumes where it
	// expects them. Nothing of it shows on the host. It needs Linux 5.12.
	MountBind MountMode = "bind"
	// MountEnv leaves the host's file system as it is: volumes are directories whose paths are in the environment.
	MountEnv MountMode = "env"
)

// VolumeEnv is the environment variable that holds the path of a volume, in every mode: BERTH_VOLUME_ and the volume's
// name in upper case with _ for -.
const VolumeEnv = "BERTH_VOLUME_"

// TerminationEnv is the environment variable that holds the path of the termination message.
const TerminationEnv = "BERTH_TERMINATION_LOG"

// Options configure a Runtime. The zero value of a field means its default.
type Options struct {
	// Root keeps one directory a pod, named by its UID. It must outlive the agent.
	Root string
	// Mounts says how containers find their volumes.
	Mounts MountMode
	// Hide are directories of the host that no container sees, beside Root: where the agent keeps what is the pods'.
	Hide []string
	// CgroupParent is the cgroup below which containers get theirs; default "/berth". "none": no cgroups.
	CgroupParent string
	// PIDs bounds the processes of one pod; 0: not.
	PIDs int64
	// LogBytes and LogFiles bound a container's log: size of a file (10 MiB), number of files (5).
	LogBytes int64
	LogFiles int
	// Domain is the cluster's, for pods whose hosts are called by their whole names; empty: it is not known.
	Domain string
	// ShimDir is where the small program goes that this binary has of the shim (make build); empty, or where none can be started from:
	// this binary is the shim.
	ShimDir string
	// Event takes warnings about a pod; may be nil.
	Event func(pod *corev1.Pod, eventType, reason, message string)
	// Logger defaults to none.
	Logger hclog.Logger
}

// Runtime runs containers as processes of the host.
type Runtime struct {
	opts    Options
	log     hclog.Logger
	cgroups *cgroupTree
	shim    string // the program that becomes a shim when given a shim's arguments
	bind    bool
	notify  func(runtime.Event)
	life    context.Context // until Close
	end     context.CancelFunc

	mu       sync.Mutex
	running  map[runtime.ID]*watched
	closed   bool
	sweeping bool // somebody deletes what was put aside
	again    bool // and looks again, since more came
	// deleting are names below Root that somebody deletes; each is closed when that is over.
	deleting map[string]chan struct{}
	// adopting are pods of which somebody takes over a container later than Open; each is closed when that is over.
	adopting map[types.UID]chan struct{}
	unseen   map[types.UID]bool // pods from before of which it is not known yet what runs
	watch    sync.WaitGroup
}

var (
	_ runtime.Runtime  = (*Runtime)(nil)
	_ runtime.Refuser  = (*Runtime)(nil)
	_ runtime.DiskUser = (*Runtime)(nil)
)

// New returns a runtime over the directory opts.Root, which it makes.
func New(opts Options) (*Runtime, error) {
	if opts.LogBytes == 0 {
		opts.LogBytes = 10 << 20
	}
	if opts.LogFiles == 0 {
		opts.LogFiles = 5
	}
	if opts.CgroupParent == "" {
		opts.CgroupParent = "/berth"
	}
	if opts.Logger == nil {
		opts.Logger = hclog.NewNullLogger()
	}
	// No user of a container has any business here: what is a container's is mounted into its own root.
	hide := append([]string{opts.Root}, opts.Hide...)
	for i := range hide {
		var err error
		if hide[i], err = hidden(hide[i]); err != nil {
			return nil, fmt.Errorf("data directory of the process runtime: %w", err)
		}
	}
	opts.Root, opts.Hide = hide[0], hide
	r := &Runtime{opts: opts, log: opts.Logger, running: map[runtime.ID]*watched{}, deleting: map[string]chan struct{}{},
		adopting: map[types.UID]chan struct{}{}, unseen: map[types.UID]bool{}}
	r.life, r.end = context.WithCancel(context.Background())
	r.shim = "/proc/self/exe" // this very binary, even when its file has been replaced
	if opts.ShimDir != "" {
		if small, err := ownShim(opts.ShimDir); err == nil {
			r.shim = small
		} else {
			r.log.Info("this whole binary is the shim of each container", "reason", err)
		}
	}
	if opts.CgroupParent != "none" {
		var err error
		if r.cgroups, err = openCgroups(opts.CgroupParent, opts.PIDs); err != nil {
			r.log.Warn("containers run without cgroups: no limits are enforced", "reason", err)
			r.cgroups = nil
		}
	}
	if opts.Mounts != MountEnv {
		err := mayUnshare()
		r.bind = err == nil
		if err != nil && opts.Mounts == MountBind {
			return nil, fmt.Errorf("mount namespaces for containers: %w", err)
		}
		if err != nil {
			r.log.Warn("volumes are not mounted at their paths: containers find them by "+VolumeEnv+"<NAME>", "reason", err)
		}
	}
	return r, nil
}

// hidden makes a directory that containers do not see, and returns its path without symbolic links.
func hidden(dir string) (string, error) {
	dir, err := filepath.Abs(dir)
	if err == nil {
		err = os.MkdirAll(dir, 0o700)
	}
	if err == nil {
		err = os.Chmod(dir, 0o700) // #nosec G302 -- a folder has to be entered by its owner
	}
	if err != nil {
		return "", err
	}
	return filepath.EvalSymlinks(dir)
}

// mayUnshare tries to get namespaces, on a thread that ends with it, and what makes a root in them.
func mayUnshare() error {
	done := make(chan error)
	go func() {
		goruntime.LockOSThread() // and never unlocked: the thread is not used again
		err := unix.Unshare(unix.CLONE_NEWNS | unix.CLONE_NEWUTS)
		if err == nil {
			err = shim.MayMount()
		}
		done <- err
	}()
	return <-done
}

// Name implements runtime.Runtime.
func (r *Runtime) Name() string { return "process" }

// Close stops watching. Containers go on running.
func (r *Runtime) Close() {
	r.mu.Lock()
	r.closed = true
	for _, w := range r.running {
		w.end.Close()
	}
	r.mu.Unlock()
	r.end()
	r.watch.Wait()
	r.cgroups.close()
}

// Directories: Root/<pod uid>/pod.record, and containers/<name>/<attempt>/ with what package shim keeps there; Root/.removed-<pod uid>.<number>;
// Root/.cgroup-<pod uid>_<name>_<attempt>, an empty directory for each cgroup that is to go.

func (r *Runtime) podDir(pod types.UID) string { return filepath.Join(r.opts.Root, string(pod)) }

// containersDir holds a directory a container, in that of its pod.
const containersDir = "containers"

func (r *Runtime) dir(id runtime.ID) string {
	return filepath.Join(r.podDir(id.Pod), containersDir, id.Container, strconv.Itoa(int(id.Attempt)))
}

func (r *Runtime) find(id runtime.ID) (*watched, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if w := r.running[id]; w != nil {
		return w, nil
	}
	return nil, fmt.Errorf("container %s: %w", id, runtime.ErrNotFound)
}

// Signal implements runtime.Runtime.
func (r *Runtime) Signal(ctx context.Context, id runtime.ID, signal runtime.Signal) error {
	w, err := r.find(id)
	if err != nil {
		return err
	}
	op := shim.OpStop
	if signal == runtime.Kill {
		op = shim.OpKill
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	ans, err := ask(ctx, r.dir(id), shim.Request{Op: op})
	if err == nil && ans.NotFound && signal == runtime.Kill {
		// The shim is gone. Until nothing is left of the container it has not ended.
		if left, err := r.cgroups.kill(id); left > 0 || err != nil {
			return err
		}
	}
	if err == nil && ans.Error != "" {
		err = errors.New(ans.Error)
		if ans.NotFound {
			return nil // its end is on its way, with what it ended by
		}
	}
	if err != nil && signal == runtime.Kill {
		// The shim does not answer. With it goes the command (Pdeathsig), and what is left is found by its cgroup.
		r.log.Warn("a container's shim does not answer; killing both", "container", id.String(), "error", err)
		return w.destroy(r, id)
	}
	if err != nil {
		return fmt.Errorf("sending %s to container %s: %w", signal, id, err)
	}
	return nil
}

// Exec implements runtime.Runtime.
func (r *Runtime) Exec(ctx context.Context, id runtime.ID, command []string) (runtime.ExecResult, error) {
	if _, err := r.find(id); err != nil {
		return runtime.ExecResult{}, err
	}
	ans, err := ask(ctx, r.dir(id), shim.Request{Op: shim.OpExec, Command: command})
	switch {
	case err != nil:
		return runtime.ExecResult{}, fmt.Errorf("running a command in container %s: %w", id, err)
	case ans.NotFound:
		return runtime.ExecResult{}, fmt.Errorf("container %s: %w", id, runtime.ErrNotFound)
	case ans.Error != "":
		return runtime.ExecResult{}, errors.New(ans.Error)
	}
	return runtime.ExecResult{Code: ans.Code, Output: ans.Output}, nil
}

// DiskUse implements runtime.DiskUser: the scratch directories and the logs. What a container writes into the host's own
// directories is the host's.
func (r *Runtime) DiskUse(ctx context.Context, pod types.UID) (runtime.DiskUse, error) {
	base := filepath.Join(r.podDir(pod), containersDir)
	entries, err := os.ReadDir(base)
	if err != nil && !os.IsNotExist(err) {
		return runtime.DiskUse{}, err
	}
	out := runtime.DiskUse{Bytes: map[string]int64{}}
	err = nil
	for _, e := range entries {
		used, uerr := mounts.Usage(ctx, filepath.Join(base, e.Name()))
		if uerr != nil {
			err = errors.Join(err, fmt.Errorf("measuring what container %s holds: %w", e.Name(), uerr))
		}
		out.Bytes[e.Name()] = used.Bytes
		out.Inodes += used.Inodes
	}
	return out, err
}
