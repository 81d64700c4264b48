package worker

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/worker/runtime/mounts"
)

// removalsAtOnce bounds how many remove something at a time, by calls that are waited for and by such as were given up.
const removalsAtOnce = 16

// removalTurn is how long a removal has its place at a time, while others wait for one.
const removalTurn = 250 * time.Millisecond

// removals gives back what pods held. That takes as long as it is much: so whoever waits for it soon has no place among the calls any more, which
// others need to start something; these have places of their own. Those are given in turn: a removal that takes hours lets the others have its place
// between one file and the next, and goes on when its turn has come again. So no pod waits for what others have held. The zero value is ready to use.
type removals struct {
	turn time.Duration // 0: removalTurn

	mu      sync.Mutex
	of      map[types.UID]bool // the pods of which something is being removed, whether it has a place just now or waits for its turn
	placed  int                // how many of them have a place
	queue   []*place           // who waits for one, the first one first
	changed chan struct{}      // closed when one is over; nil: nobody waits for that
}

// place is what a removal waits for.
type place struct {
	pod  types.UID
	next bool          // it goes on with what it has begun
	had  chan struct{} // closed when it has one
}

// apart calls f once there is a place, and gives it up when it has had its time, or when ctx ends: it goes on alone then, and the next one for the
// pod comes after it.
func (r *removals) apart(ctx context.Context, pod types.UID, bound time.Duration, f func(ctx context.Context) error) error {
	defer stepAside(ctx)()
	if err := r.begin(ctx, pod); err != nil {
		return err
	}
	cancel := func() {}
	if bound > 0 {
		ctx, cancel = context.WithTimeout(ctx, bound)
	}
	defer cancel()
	return mounts.Apart(ctx, func() error {
		defer r.end(pod)
		return f(mounts.WithTurns(ctx, r.turns(pod)))
	})
}

// begin waits for a place, and until nothing else of the pod is being removed.
func (r *removals) begin(ctx context.Context, pod types.UID) error {
	p := &place{pod: pod, had: make(chan struct{})}
	r.mu.Lock()
	r.queue = append(r.queue, p)
	r.admit()
	r.mu.Unlock()
	select {
	case <-p.had:
	case <-ctx.Done():
	}
	if ctx.Err() == nil {
		return nil
	}
	r.mu.Lock()
	i := slices.Index(r.queue, p)
	if i >= 0 {
		r.queue = slices.Delete(r.queue, i, i+1)
	}
	r.mu.Unlock()
	if i < 0 {
		r.end(pod)
	}
	return fmt.Errorf("waiting for what is being removed already: %w", context.Cause(ctx))
}

// admit gives places to those who have waited longest. mu is held.
func (r *removals) admit() {
	r.queue = slices.DeleteFunc(r.queue, func(p *place) bool {
		if r.placed >= removalsAtOnce || !p.next && r.of[p.pod] {
			return false
		}
		if r.of == nil {
			r.of = map[types.UID]bool{}
		}
		r.of[p.pod] = true
		r.placed++
		close(p.had)
		return true
	})
}

// turns returns what a removal calls as often as it can wait: it does when its turn is over and somebody waits for its place.
func (r *removals) turns(pod types.UID) (wait func()) {
	turn := cmp.Or(r.turn, removalTurn)
	began := time.Now()
	return func() {
		if time.Since(began) < turn {
			return
		}
		p := &place{pod: pod, next: true, had: make(chan struct{})}
		r.mu.Lock()
		r.placed--
		r.queue = append(r.queue, p)
		r.admit()
		r.mu.Unlock()
		<-p.had
		began = time.Now()
	}
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

// ended returns what to wait for while something of the pod is being removed.
func (r *removals) ended(pod types.UID) (changed <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.of[pod] {
		return nil
	}
	if r.changed == nil {
		r.changed = make(chan struct{})
	}
	return r.changed
}

// end gives back the pod's place.
func (r *removals) end(pod types.UID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.of, pod)
	r.placed--
	r.admit()
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
	return a.caller.removals.apart(ctx, pod, 0, func(ctx context.Context) error {
		if len(a.unknown([]types.UID{pod})) == 0 {
			return nil // the servers went back to a state in which it is there
		}
		return a.opts.Volumes.remove(ctx, pod)
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
