package worker

import (
	"context"
	"fmt"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/worker/runtime/mounts"
)

// removalsAtOnce bounds the pods of which something is being removed at a time, by calls that are waited for and by such as were given up.
const removalsAtOnce = 16

// removals gives back what pods held. That takes as long as it is much: so whoever waits for it soon has no place among the calls any more, which
// others need to start something; these have places of their own. The zero value is ready to use.
type removals struct {
	mu      sync.Mutex
	of      map[types.UID]bool
	changed chan struct{} // closed when one is over; nil: nobody waits for that
}

// apart calls f once there is a place, and gives it up when it has had its time, or when ctx ends: it goes on alone then, and the next one for the
// pod comes after it.
func (r *removals) apart(ctx context.Context, pod types.UID, bound time.Duration, f func(ctx context.Context) error) error {
	defer stepAside(ctx)()
	for {
		changed := r.begin(pod)
		if changed == nil {
			break
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("waiting for what is being removed already: %w", context.Cause(ctx))
		}
	}
	if ctx.Err() != nil {
		r.end(pod)
		return context.Cause(ctx)
	}
	cancel := func() {}
	if bound > 0 {
		ctx, cancel = context.WithTimeout(ctx, bound)
	}
	defer cancel()
	return mounts.Apart(ctx, func() error {
		defer r.end(pod)
		return f(ctx)
	})
}

// await returns when nothing of the pod is being removed.
func (r *removals) await(ctx context.Context, pod types.UID) error {
	if r.ended(pod) == nil {
		return nil
	}
	defer stepAside(ctx)()
	for {
		changed := r.ended(pod)
		if changed == nil {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("waiting for what of the pod is being removed: %w", context.Cause(ctx))
		}
	}
}

// begin takes a place for the pod; else it returns what to wait for.
func (r *removals) begin(pod types.UID) (changed <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.of[pod] && len(r.of) < removalsAtOnce {
		if r.of == nil {
			r.of = map[types.UID]bool{}
		}
		r.of[pod] = true
		return nil
	}
	return r.change()
}

// ended returns what to wait for while something of the pod is being removed.
func (r *removals) ended(pod types.UID) (changed <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.of[pod] {
		return nil
	}
	return r.change()
}

// change is closed when a removal is over. mu is held.
func (r *removals) change() <-chan struct{} {
	if r.changed == nil {
		r.changed = make(chan struct{})
	}
	return r.changed
}

func (r *removals) end(pod types.UID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.of, pod)
	if r.changed != nil {
		close(r.changed)
		r.changed = nil
	}
}

// dropsAtOnce are the pods whose volumes dropVolumes removes at a time: the others have their places.
const dropsAtOnce = removalsAtOnce / 2

// dropVolumes removes the volumes of pods that went away while no agent ran. What could not be removed is tried again.
func (a *Agent) dropVolumes(ctx context.Context, kept []types.UID) {
	left := a.unknown(kept)
	if len(left) == 0 {
		return
	}
	a.spawn(func() {
		for try := 1; ; try++ {
			if left = a.dropEach(ctx, left, try&(try-1) == 0); len(left) == 0 {
				return
			}
			select {
			case <-a.clock.After(retryInterval):
			case <-ctx.Done():
				return
			}
		}
	})
}

// dropEach removes the volumes of the pods once, and returns those of which that failed.
func (a *Agent) dropEach(ctx context.Context, pods []types.UID, tell bool) (failed []types.UID) {
	next := make(chan types.UID)
	var mu sync.Mutex
	var workers sync.WaitGroup
	for range min(dropsAtOnce, len(pods)) {
		workers.Go(func() {
			for uid := range next {
				err := a.dropVolumesOf(ctx, uid)
				if err == nil || ctx.Err() != nil {
					continue
				}
				if tell && ctx.Err() == nil {
					a.log.Warn("the volumes of a pod that is gone could not be removed", "pod", uid, "error", err)
				}
				mu.Lock()
				failed = append(failed, uid)
				mu.Unlock()
			}
		})
	}
	for _, uid := range pods {
		next <- uid
	}
	close(next)
	workers.Wait()
	return failed
}

// dropVolumesOf takes as long as it takes: whoever gave it up would leave its place taken, and take another one.
func (a *Agent) dropVolumesOf(ctx context.Context, pod types.UID) error {
	return a.caller.removals.apart(ctx, pod, 0, func(context.Context) error {
		if len(a.unknown([]types.UID{pod})) == 0 {
			return nil // the servers went back to a state in which it is there
		}
		return a.opts.Volumes.remove(pod)
	})
}

// unknown are those of the pods that are not this node's, or not any more.
func (a *Agent) unknown(pods []types.UID) (out []types.UID) {
	a.locked(func() {
		for _, uid := range pods {
			if a.core.pods[uid] == nil {
				out = append(out, uid)
			}
		}
	})
	return out
}
