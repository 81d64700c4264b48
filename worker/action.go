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
	}
	return "none"
}

// Action is a call to make. Its Outcome goes back into the Core, whatever it is.
type Action struct {
	Kind      ActionKind
	Pod       *corev1.Pod
	ID        runtime.ID // Container and Attempt are not set for ActionRemove and ActionMeasure
	Container *corev1.Container
	Signal    runtime.Signal
	Hook      *corev1.LifecycleHandler
	Probe     *corev1.Probe
	ProbeKind ProbeKind
	Timeout   time.Duration // of a hook or a probe; 0: none
}

// Outcome is how an action went.
type Outcome struct {
	Action
	Err error
}
