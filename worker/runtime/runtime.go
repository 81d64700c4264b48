// Package runtime is the small interface between the node agent and whatever runs containers. The agent decides when a
// container starts, is signalled and is removed; a runtime does exactly that and reports what happened. A runtime must
// never decide on its own to restart, stop or forget a container.
//
// Implementations live below this package: process (host processes), fake (in memory, for tests and scale). What only
// some runtimes can do (an interactive exec, attach, port forwarding) belongs into further interfaces that the agent
// asks for with a type assertion, so that this one stays small.
package runtime

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Runtime runs containers. All methods may be called concurrently, but the agent never has two calls under way for one
// container except Signal and Logs.
type Runtime interface {
	// Name is the scheme of container ids in the API ("process://…").
	Name() string
	// Open is called once, before anything else. It returns every pod that an earlier instance left behind, running or
	// not, and from then on reports what happens to containers through notify: one Event when a container runs, one
	// when it has ended. Containers that Open returns as ended get no further event. notify must not block. A Checkup that
	// is away fails with ErrUnavailable, and is opened again later.
	Open(notify func(Event)) ([]Pod, error)
	// Start creates a container and runs it. Nil means that the runtime has taken it on and events follow; an error
	// means that nothing runs and none follow. A *StartError says that the command itself cannot be run and the
	// attempt counts; any other error may go away and the same attempt is made again.
	Start(ctx context.Context, spec Spec) error
	// Signal asks a container to end (Terminate) or ends it with everything that it started (Kill). It does not wait.
	// ErrNotFound means that no such container runs.
	Signal(ctx context.Context, id ID, signal Signal) error
	// Exec runs a command inside a running container and waits for its end, which has no other bound than ctx. Cancelling
	// that kills the command.
	Exec(ctx context.Context, id ID, command []string) (ExecResult, error)
	// Remove forgets the pod: its ended containers, their logs and records. It fails when one still runs.
	Remove(ctx context.Context, pod types.UID) error
	// Logs reads what a container wrote. With Follow it ends when the container has ended and all is read, or when ctx
	// is cancelled. ErrNotFound means that nothing is known of the container.
	Logs(ctx context.Context, id ID, opts LogOptions) (io.ReadCloser, error)
}

// ImageLister is for runtimes that keep images.
type ImageLister interface {
	// Images are those that containers can be started from without fetching anything, in any order.
	Images() ([]Image, error)
}

// Image is a container image on this machine.
type Image struct {
	Ref       string   // as ImageStore.FindImage returns it; empty where there is none
	Names     []string // repository:tag and repository@digest
	SizeBytes int64
}

// Prober is a runtime that answers probes itself, because its containers have
// neither a network nor commands. kind is startup, readiness or liveness; nil
// is a success, and a *ProbeError neither that nor a failure.
type Prober interface {
	Probe(ctx context.Context, id ID, kind string) error
}

// ProbeError says that a probe could not be made, so that nothing follows from it.
type ProbeError struct{ Err error }

func (e *ProbeError) Error() string { return e.Err.Error() }
func (e *ProbeError) Unwrap() error { return e.Err }

// Sandboxer is a runtime whose pods have a sandbox: what the containers of a pod share, their network first of all. It is
// made before the first container is started, and again, when it was lost, after all of them have ended.
type Sandboxer interface {
	// RunSandbox makes the pod's sandbox, after it has removed what is left of an earlier one. Where a good one is there
	// already it returns that.
	RunSandbox(ctx context.Context, pod *corev1.Pod) (Sandbox, error)
	// StopSandbox gives back what the sandbox holds, its addresses among it. What is left of containers stays, with their
	// logs. A pod without a sandbox is none's mistake.
	StopSandbox(ctx context.Context, pod types.UID) error
}

// Pinner is a runtime that keeps parts of a pod's volumes mounted beside its containers.
type Pinner interface {
	// Unpin gives back what is kept of the volumes of a pod in which nothing runs. That nothing is kept is none's mistake.
	Unpin(pod types.UID) error
}

// Sandbox is what a pod's containers share.
type Sandbox struct {
	// IPs are the pod's addresses, the first one first; none: those of the host.
	IPs []string
	// Unknown: which addresses it has cannot be found out now. An Event tells them.
	Unknown bool
}

// ImageStore is a runtime whose containers are made of images.
type ImageStore interface {
	ImageLister
	// FindImage returns what a container is to be started from, where the image of that name is here; empty: it is not. An
	// *ImageNameError says that the name is none.
	FindImage(ctx context.Context, name string) (ref string, err error)
	// ImageKeys are the credentials of the secrets (of the types dockerconfigjson and dockercfg) that are for an image's registry.
	ImageKeys(name string, secrets []*corev1.Secret) ([]ImageKey, error)
	// PullImage fetches an image, with those credentials one after the other, and then without any. It waits for its turn where only so many
	// are fetched at a time; then it calls begin, whose error is its own. With ErrUnavailable, or when ctx ends, it may be fetched yet.
	PullImage(ctx context.Context, name string, secrets []*corev1.Secret, begin func() error) (Pulled, error)
}

// ImageKey is a secret's credentials for an image, without a word of what they are.
type ImageKey struct {
	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`
	UID       types.UID `json:"uid"`
	// Hash is of what they are: the same for the same ones.
	Hash string `json:"hash"`
}

// ImageVolumer is a runtime whose containers can have images as volumes (Mount.Image).
type ImageVolumer interface {
	ImageStore
	// VolumeImage is what a volume of a pod shows since a container with it was first started, as FindImage calls it; empty:
	// none was yet, or somebody has taken it away. For as long as the pod is there it shows nothing else.
	VolumeImage(ctx context.Context, pod types.UID, volume string) (ref string, err error)
}

// Pulled is how an image was fetched; Ref is as FindImage returns it. Waited is the part of Took before its turn had come.
type Pulled struct {
	Ref string
	// Key is the credentials that the registry took; nil: none of the secrets'.
	Key          *ImageKey
	SizeBytes    int64
	Took, Waited time.Duration
}

// ImageNameError says that no image can be called that.
type ImageNameError struct {
	Name string
	Err  error
}

func (e *ImageNameError) Error() string {
	return fmt.Sprintf("couldn't parse image name %q: %v", e.Name, e.Err)
}
func (e *ImageNameError) Unwrap() error { return e.Err }

// Streamer is a runtime whose pods can be entered while they run. What its methods return answers one HTTP request by
// Kubernetes' protocols for streams, SPDY and WebSocket; ErrNotFound means that the container does not run.
type Streamer interface {
	// ExecStream runs a command in a container. Where the client goes away, so does what the command reads from.
	ExecStream(ctx context.Context, id ID, o StreamOptions) (http.Handler, error)
	// AttachStream joins what a container writes, and reads.
	AttachStream(ctx context.Context, id ID, o StreamOptions) (http.Handler, error)
	// ForwardStream connects with what listens on a pod's loopback. The ports are those that the request names by itself;
	// most clients name them later.
	ForwardStream(ctx context.Context, pod types.UID, ports []int32) (http.Handler, error)
}

// StreamOptions are which streams a client wants. Command is ExecStream's.
type StreamOptions struct {
	Command                    []string
	Stdin, Stdout, Stderr, TTY bool
}

// Limits of a stream.
const (
	// StreamIdle ends a stream on which there is no sign of life. The agent ends one on which nothing is said, and any one, before that.
	StreamIdle = 25 * time.Hour
	// StreamSetup is how long a client may take to say what it wants.
	StreamSetup = 30 * time.Second
)

// Checkup is a runtime that may be away, or not be able to start anything, while its containers go on.
type Checkup interface {
	// Check says why nothing can be started now; nil: it can. It answers within seconds.
	Check(ctx context.Context) error
	// Version is the runtime's own; it and Name are known for sure after Open.
	Version() string
}

// ErrUnavailable says that the runtime did not answer: nothing is known of what was asked.
var ErrUnavailable = errors.New("the container runtime does not answer")

// DiskUser is a runtime that knows what containers hold of the node's disk.
type DiskUser interface {
	// DiskUse is what the runs of a pod's containers that are kept have written outside of volumes, and their logs. With an error it is what they hold
	// in any case.
	DiskUse(ctx context.Context, pod types.UID) (DiskUse, error)
}

// DiskUse is what the containers of a pod hold of the node's disk.
type DiskUse struct {
	Bytes  map[string]int64 // by container
	Shared int64            // bytes of what all of them can write
	Inodes int64            // of all of it
}

// Refuser is a runtime that cannot do all that a pod may ask for.
type Refuser interface {
	// Refuse says why the runtime cannot run the pod as it is meant; nil: it can. It is asked before anything of the pod
	// runs. It must not block.
	Refuse(pod *corev1.Pod) *Refusal
	// Told lists what the pod asks for and does not get, although it runs: what it loses is a convenience, and never a
	// bound on what it may do, but for the labels of SELinux where the host has none. Each is a sentence that names the field.
	Told(pod *corev1.Pod) []string
}

// Mounter is a runtime that says how it mounts.
type Mounter interface {
	// ReadOnlyBelow says whether a mount can be read-only with what is mounted below it. It must not block.
	ReadOnlyBelow() bool
}

// Hugepager is a runtime whose containers can have hugepages. Of others a node has none.
type Hugepager interface {
	// Hugepages says whether they can: what a container takes of them is bounded here. A Checkup that has not answered yet says no.
	Hugepages() bool
}

// Resizer is a runtime whose containers can be given other resources while they run.
type Resizer interface {
	// Resize gives containers the resources that they have in the pod's object, and keeps that object. First the pod as a
	// whole may take what Most says, then the containers are changed, and at last the pod may take what its object says. It
	// fails before it has changed anything where a limit of memory would be below what is in use. After an error it is
	// called again.
	Resize(ctx context.Context, r Resize) error
}

// Resize is a change of what the containers of a pod have.
type Resize struct {
	Pod *corev1.Pod
	// Most is the pod with the most of what its containers have and are to have.
	Most *corev1.Pod
	// Had is what the pod as a whole had; nil: that is not known.
	Had *corev1.ResourceRequirements
	// Containers are those that are to be changed as they run.
	Containers []ContainerResize
	// Last: after it no container has more than the pod's object says.
	Last bool
}

// ContainerResize names a run of a container, and what it had; nil: that is not known.
type ContainerResize struct {
	ID   ID
	From *corev1.ResourceRequirements
}

// LowersMemory says whether a container is to have less memory than it had, and how many bytes.
func (r *Resize) LowersMemory(c *ContainerResize) (limit int64, lower bool) {
	limit = r.ResourcesOf(c.ID.Container).Limits.Memory().Value()
	return limit, limit > 0 && c.From != nil && (c.From.Limits.Memory().IsZero() || c.From.Limits.Memory().Value() > limit)
}

// LowersMemoryOfAll says whether the pod as a whole is to have less memory than it had, or had without a limit, and how many bytes. Less than
// a limit that it had it is given with the last call: containers that are started again for it may give some back before that.
func (r *Resize) LowersMemoryOfAll() (limit int64, lower bool) {
	if r.Pod.Spec.Resources == nil {
		return 0, false
	}
	limit = r.Pod.Spec.Resources.Limits.Memory().Value()
	had := int64(0)
	if r.Had != nil {
		had = r.Had.Limits.Memory().Value()
	}
	return limit, limit > 0 && (had == 0 || limit < had && r.Last)
}

// ResourcesOf is what a container is to have.
func (r *Resize) ResourcesOf(container string) (of *corev1.ResourceRequirements) {
	of = &corev1.ResourceRequirements{}
	EachContainer(r.Pod, func(spec *corev1.Container, _ string) {
		if spec.Name == container {
			of = &spec.Resources
		}
	})
	return of
}

// BelowUse is the error of a limit of memory that is below what a container uses.
func BelowUse(container string, limit, used int64) error {
	return fmt.Errorf("cannot decrease memory limits: attempting to set container %q memory limit (%d) below current usage (%d)", container, limit, used)
}

// AllBelowUse is BelowUse for a limit of the pod as a whole.
func AllBelowUse(limit, used int64) error {
	return fmt.Errorf("cannot decrease memory limits: attempting to set pod memory limit (%d) below current usage (%d)", limit, used)
}

// ErrNotFound says that the runtime does not know the container or that it does not run.
var ErrNotFound = errors.New("no such container")

// ConfigError says that a container cannot be started as it is configured. The same attempt is made again.
type ConfigError struct{ Err error }

func (e *ConfigError) Error() string { return e.Err.Error() }
func (e *ConfigError) Unwrap() error { return e.Err }

// StartError says that a container's command could not be run: not there, not executable, none given.
type StartError struct{ Err error }

func (e *StartError) Error() string { return e.Err.Error() }
func (e *StartError) Unwrap() error { return e.Err }

// ID names one run of one container. Attempt counts from 0; a restarted container is a new attempt.
type ID struct {
	Pod       types.UID
	Container string
	Attempt   int32
}

// String is unique, and part of the container id in the API.
func (id ID) String() string {
	return string(id.Pod) + "_" + id.Container + "_" + strconv.Itoa(int(id.Attempt))
}

// Spec is everything that a container's start needs, with nothing left to resolve.
type Spec struct {
	ID
	// Pod is kept with the container and returned by Open. It is shared and immutable.
	Pod *corev1.Pod
	// Container is the container's part of Pod.
	Container *corev1.Container
	// Command and Args are those of the container with variables expanded. They may be empty: the image decides then, where
	// there is one.
	Command, Args []string
	// Image is what the ImageStore said that the container's image is; empty for runtimes without images.
	Image string
	// IPs are the pod's addresses, the first one first.
	IPs []string
	// Env is KEY=VALUE in order of declaration; a later entry wins.
	Env []string
	// Mounts are the volumes of the container as directories or files of the host.
	Mounts []Mount
	// Devices are those that the container was given; their environment is in Env already.
	Devices Devices
	// Target is the run of a container of the pod whose processes this one is to see; none where it has no name.
	Target ID
}

// Mount is a volume of a container.
type Mount struct {
	Volume string // name of the volume in the pod
	Source string // file or directory of the host; empty for one of an image
	// Image is what the ImageStore said that the image is which the volume shows; empty: it shows none.
	Image string
	// SubPath is what of Source the container sees; empty: all of it. A runtime makes a directory of it where there is
	// nothing, and never lets it lead out of Source, not even over a symbolic link that is made meanwhile.
	SubPath  string
	Target   string // where the container expects it
	ReadOnly bool
	// Recursive: what is mounted below Source is read-only, too.
	Recursive bool
	// Follow: what the host mounts below Source later is seen by the container. Share: and the other way round, too.
	Follow, Share bool
}

// Signal is what the agent may ask of a running container.
type Signal int

const (
	// Terminate sends the container's main process TERM, or the stop signal of its spec.
	Terminate Signal = iota
	// Kill ends every process of the container at once.
	Kill
)

func (s Signal) String() string {
	if s == Kill {
		return "KILL"
	}
	return "TERM"
}

// Reasons of an Exit, as the API shows them.
const (
	ReasonCompleted     = "Completed"
	ReasonError         = "Error"
	ReasonOOMKilled     = "OOMKilled"
	ReasonStartError    = "StartError"
	ReasonStatusUnknown = "ContainerStatusUnknown"
)

// Exit says how a container ended.
type Exit struct {
	Code       int32 // 128 + signal when a signal ended it
	Signal     int32
	Reason     string
	Message    string // the termination message, at most 4096 bytes
	StartedAt  time.Time
	FinishedAt time.Time
}

// Container is one run of one container. Exit is nil while it runs.
type Container struct {
	ID
	StartedAt time.Time
	Exit      *Exit
	// Ref is the runtime's own name of the run, as the API shows it; empty: that of ID.
	Ref string
	// ImageID is the image that it runs, as the API shows it; empty for runtimes without images.
	ImageID string
	// User is who its first process was when it began; nil: the runtime does not tell. It is shared and immutable.
	User *corev1.ContainerUser
	// Image is what its spec called the image when it was started; empty: that is not known. Open tells it.
	Image string
	// Earlier: it ran in a sandbox of its pod that is not there any more.
	Earlier bool
	// Sandbox, in an Event without a container's name, is the sandbox of the pod, whose addresses were not known before; nil: it is not ready any more.
	Sandbox *Sandbox
	// Found, in an Event without a container's name, is what has been found of a pod that was Unseen. Nothing else is told of it before.
	Found *Pod
}

// Event tells that a container runs (Exit nil) or has ended. One without a container's name tells that the sandbox of the
// pod is gone, and with it its network; it is told again until there is another sandbox. Or it has a Sandbox, or what was Found.
type Event = Container

// Pod is what a runtime kept of a pod from before.
type Pod struct {
	Pod        *corev1.Pod
	Containers []Container
	// Sandbox is nil where the pod has none that its containers could be started in.
	Sandbox *Sandbox
	// Owing: one that none could be started in may hold something of the pod's still.
	Owing bool
	// Lost: what the runtime kept of the object cannot be read. Pod has its UID and the names of the containers that
	// were found, and nothing else.
	Lost bool
	// Unseen: what runs of it cannot be found out yet. It is Lost, without a container, until an Event tells what was Found; nothing of it is started,
	// and it is not removed.
	Unseen bool
}

// ExecResult is the outcome of a command that ran inside a container. Output is its beginning, at most a few KiB.
type ExecResult struct {
	Code   int
	Output []byte
}

// LogOptions selects what Logs returns.
type LogOptions struct {
	Follow     bool
	TailLines  *int64
	Since      time.Time // zero: from the beginning
	Timestamps bool
	LimitBytes *int64
	// Stream is Stdout, Stderr or All (also when empty).
	Stream string
}
