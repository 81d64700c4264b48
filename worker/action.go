package worker

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/worker/runtime"
)

// retryInterval is how long a failed call waits before it is made again.
const retryInterval = 10 * time.Second

// ActionKind says what a state machine wants done.
type ActionKind uint8

const (
	ActionStart ActionKind = iota + 1
	ActionSignal
	ActionPostStart
	ActionPreStop
	ActionRemove
	ActionProbe
	ActionMeasure
	ActionSandbox     // make the pod's
	ActionSandboxStop // give back what it holds
	ActionRefresh     // write the volumes anew that show objects
	ActionPull        // see to it that the container's image is here, and those of its volumes
	ActionResize      // give running containers other resources
	ActionHookEnd     // end the container's postStart hook, which may run; it has no outcome of its own
	ActionUnmount     // give back what the volumes hold of a pod that has ended
	ActionPullEnd     // end what ActionPull began for the container, which may be under way; it has no outcome of its own
)

func (k ActionKind) String() string {
	switch k {
	case ActionStart:
		return "start"
	case ActionSignal:
		return "signal"
	case ActionPostStart:
		return "postStart"
	case ActionPreStop:
		return "preStop"
	case ActionRemove:
		return "remove"
	case ActionProbe:
		return "probe"
	case ActionMeasure:
		return "measure"
	case ActionSandbox:
		return "sandbox"
	case ActionSandboxStop:
		return "sandbox stop"
	case ActionRefresh:
		return "refresh"
	case ActionPull:
		return "pull"
	case ActionResize:
		return "resize"
	case ActionHookEnd:
		return "end of hook"
	case ActionUnmount:
		return "unmount"
	case ActionPullEnd:
		return "end of pull"
	}
	return "none"
}

// counts says whether calls of the kind are among those of which only so many are under way. Hooks may take as long as a pod's grace, and do
// not; nor do signals, which a container gets at its time whatever others are waiting for; probes and measurements, which have timeouts of their
// own; images that are fetched, of which the runtime takes only so many at a time; and volumes that are written anew, which wait for each other.
func (k ActionKind) counts() bool {
	switch k {
	case ActionPreStop, ActionPostStart, ActionSignal, ActionProbe, ActionMeasure, ActionPull, ActionRefresh:
		return false
	}
	return true
}

// imageRefs are what a container is started from and, by their names, what those of its volumes show that are of images, as the
// ImageStore calls them.
type imageRefs struct {
	container string
	volumes   map[string]string
}

// Action is a call to make. Its Outcome goes back into the Core, whatever it is.
type Action struct {
	Kind      ActionKind
	Pod       *corev1.Pod
	ID        runtime.ID // Container and Attempt are set for what is about one container
	IPs       []string   // the pod's addresses
	Images    imageRefs  // of ActionStart: what ActionPull found
	Resize    *runtime.Resize
	Target    runtime.ID // of ActionStart: whose processes the container is to see; none where it has no name
	Container *corev1.Container
	Signal    runtime.Signal
	Stuck     bool // of ActionSignal: the container does not end although it was killed
	Hook      *corev1.LifecycleHandler
	Probe     *corev1.Probe
	ProbeKind ProbeKind
	Timeout   time.Duration // 0: what all calls have
}

// Outcome is how an action went.
type Outcome struct {
	Action
	Err error
	// Sandbox is the outcome of ActionSandbox, Found that of ActionPull.
	Sandbox runtime.Sandbox
	Found   imageRefs
	// RenewAt is when the first of the pod's tokens is due, after ActionStart and ActionRefresh; zero: it has none.
	RenewAt time.Time
	// Warning is what a probe has to say although it is a success.
	Warning string
}
