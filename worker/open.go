package worker

import (
	"context"
	"errors"
	"time"

	"github.com/berth-dev/berth/worker/runtime"
	"github.com/berth-dev/berth/worker/runtime/mounts"
)

// openAgain is how long a runtime that is away is waited for before it is opened again.
const openAgain = time.Second

// open opens the runtime. One that may be away is waited for; what the servers assign meanwhile is returned, too: whoever
// does not listen to them is taken for dead.
func (a *Agent) open(ctx context.Context) ([]runtime.Pod, []Assignment, error) {
	notify := func(ev runtime.Event) {
		a.inputs.put(func(now time.Time) { a.core.Observe(ev, now) })
	}
	checkup, ok := a.runtime.(runtime.Checkup)
	if !ok {
		pods, err := a.runtime.Open(notify)
		return pods, nil, err
	}
	type outcome struct {
		pods []runtime.Pod
		err  error
	}
	done := make(chan outcome, 1)
	try := func() {
		a.spawn(func() {
			var pods []runtime.Pod
			err := mounts.Apart(ctx, func() (err error) { // it takes as long as there is much to take over
				pods, err = a.runtime.Open(notify)
				return err
			})
			if ctx.Err() == nil {
				done <- outcome{pods, err}
			}
		})
	}
	try()
	var early []Assignment
	var again <-chan time.Time
	for failed := 0; ; {
		select {
		case <-ctx.Done():
			return nil, nil, ctx.Err()
		case as := <-a.uplink.Assignments():
			if as.Full {
				early = nil
			}
			early = append(early, as)
		case <-again:
			again = nil
			try()
		case o := <-done:
			if !errors.Is(o.err, runtime.ErrUnavailable) {
				if o.err == nil {
					a.met(checkup, failed > 0)
				}
				return o.pods, early, o.err
			}
			if failed++; failed&(failed-1) == 0 {
				a.log.Warn("the container runtime is waited for; no pods are started", "error", o.err)
			}
			again = a.clock.After(openAgain)
		}
	}
}

// met takes note of what the runtime is, which is known for sure only now.
func (a *Agent) met(c runtime.Checkup, late bool) {
	a.locked(func() { a.core.env.runtimeName = a.runtime.Name() })
	info := &a.node.Status.NodeInfo
	if now := a.runtime.Name() + "://" + c.Version(); info.ContainerRuntimeVersion != now || late {
		info.ContainerRuntimeVersion = now
		a.reportedAt, a.probeAt = time.Time{}, a.clock.Now() // the servers have heard something else
	}
	if a.opts.Amounts == nil {
		return
	}
	capacity, allocatable, err := a.opts.Amounts()
	if err != nil {
		a.log.Warn("what the node has is what was known before the container runtime answered", "error", err)
		return
	}
	a.locked(func() { a.setAmounts(capacity, allocatable, a.clock.Now()) })
	a.caller.alloc = a.node.Status.Allocatable // nothing is called yet
}

// unready says why no pod can be started; empty: pods can be.
func (a *Agent) unready(ctx context.Context) string {
	if a.closing.Load() {
		return shutdownUnready
	}
	c, ok := a.runtime.(runtime.Checkup)
	if !ok {
		return ""
	}
	if err := c.Check(ctx); err != nil {
		return err.Error()
	}
	return ""
}
