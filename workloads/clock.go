package workloads

import (
	"time"

	"k8s.io/client-go/util/flowcontrol"
	utilclock "k8s.io/utils/clock"
)

// stateClock tells the state's time, for those of Kubernetes' controllers that can be
// given a clock. Who waits by it waits in real time.
type stateClock struct {
	utilclock.RealClock
	now func() time.Time
}

// Now implements utilclock.PassiveClock.
func (c stateClock) Now() time.Time { return c.now() }

// Since implements utilclock.PassiveClock.
func (c stateClock) Since(t time.Time) time.Duration { return c.now().Sub(t) }

func (o *Options) clock() utilclock.Clock {
	if o.Now == nil {
		return utilclock.RealClock{}
	}
	return stateClock{now: o.Now}
}

// A DaemonSet's pods that fail on a node are made again there after longer and longer.
const daemonBackoff, maxDaemonBackoff = time.Second, 15 * time.Minute

// daemonBackoffs are those of DaemonSets. By their clock the controller also tells
// since when a pod is ready.
func daemonBackoffs(now utilclock.Clock) *flowcontrol.Backoff {
	b := flowcontrol.NewBackOff(daemonBackoff, maxDaemonBackoff)
	b.Clock = now
	return b
}
