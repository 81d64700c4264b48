package process

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/worker/runtime"
	"github.com/berth-dev/berth/worker/runtime/record"
)

const (
	// opensAtOnce is how many containers from before are taken over at a time: shims that are silent keep few of the others waiting.
	opensAtOnce = 16
	// listPatience is how long what there is of a pod from before is listed again where that fails.
	listPatience = time.Second
)

// Open implements runtime.Runtime.
func (r *Runtime) Open(notify func(runtime.Event)) ([]runtime.Pod, error) {
	r.notify = notify
	entries, err := os.ReadDir(r.opts.Root)
	if err != nil {
		return nil, fmt.Errorf("looking for containers from before: %w", err)
	}
	var found []*left
	var calls []func()
	for _, e := range entries {
		switch {
		case strings.HasPrefix(e.Name(), asidePrefix):
			r.sweep()
		case strings.HasPrefix(e.Name(), cgroupPrefix):
			r.findCgroup(e.Name())
		case !e.IsDir():
			r.log.Error("what is no pod's is where pods are", "name", e.Name())
		default:
			l := &left{uid: types.UID(e.Name())}
			found = append(found, l)
			calls = append(calls, func() { r.look(l) })
		}
	}
	severalAtOnce(calls)
	calls = nil
	for _, l := range found {
		for i := range l.containers {
			calls = append(calls, func() { r.takeOver(&l.containers[i]) })
		}
	}
	severalAtOnce(calls)
	var out []runtime.Pod
	for _, l := range found {
		if l.pod == nil {
			continue
		}
		rp := runtime.Pod{Pod: l.pod, Lost: l.lost}
		for _, c := range l.containers {
			if c.there {
				rp.Containers = append(rp.Containers, c.Container)
			}
			if c.watch != nil {
				c.watch()
			}
		}
		out = append(out, rp)
	}
	return out, nil
}

// left is what there is of a pod from before.
type left struct {
	uid        types.UID
	pod        *corev1.Pod // nil: only the rest of one
	lost       bool
	containers []found
}

// found is a container from before, and what adopt says of it.
type found struct {
	runtime.Container
	watch func()
	there bool
}

// look finds out what there is of a pod, and puts aside what is only the rest of one.
func (r *Runtime) look(l *left) {
	ctx, cancel := context.WithTimeout(r.life, listPatience)
	defer cancel()
	ids, err := r.awaitAttempts(ctx, l.uid)
	if err != nil {
		// Nobody can say what it is. Whoever starts a container of it, or removes it, meets the same error until it can be looked at, and then ends
		// what runs of it.
		r.log.Error("a pod's containers cannot be looked at", "pod", l.uid, "error", err)
		r.mu.Lock()
		r.unseen[l.uid] = time.Time{}
		r.mu.Unlock()
		l.pod, l.lost = &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: l.uid}}, true
		return
	}
	if l.pod, l.lost = r.recover(l.uid, ids); l.pod == nil {
		if err := r.discard(r.life, l.uid); err != nil {
			r.log.Warn("what is left of a pod could not be removed", "pod", l.uid, "error", err)
		}
		r.sweep()
		return
	}
	slices.SortFunc(ids, func(a, b runtime.ID) int {
		return cmp.Or(cmp.Compare(a.Container, b.Container), cmp.Compare(a.Attempt, b.Attempt))
	})
	for _, id := range ids {
		l.containers = append(l.containers, found{Container: runtime.Container{ID: id}})
	}
}

func (r *Runtime) takeOver(f *found) {
	f.Container, f.watch, f.there = r.adopt(f.ID)
}

// awaitAttempts is attempts, again and again until it is known or ctx ends.
func (r *Runtime) awaitAttempts(ctx context.Context, pod types.UID) ([]runtime.ID, error) {
	for pause := 5 * time.Millisecond; ; pause *= 2 {
		ids, err := r.attempts(pod)
		if err == nil {
			return ids, nil
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return nil, err
		}
	}
}

// endUnseen ends what runs of a pod that could not be looked at when the runtime was opened: nobody was told of it, so nobody else does. It fails
// until all of it has ended.
func (r *Runtime) endUnseen(uid types.UID) error {
	r.unseenMu.Lock() // nobody adopts what another does
	defer r.unseenMu.Unlock()
	r.mu.Lock()
	since, unseen := r.unseen[uid]
	r.mu.Unlock()
	if !unseen {
		return nil
	}
	ids, err := r.attempts(uid)
	if err != nil {
		return err
	}
	var alive []runtime.ID
	for _, id := range ids {
		r.mu.Lock()
		w := r.running[id]
		r.mu.Unlock()
		if w == nil {
			_, watch, _ := r.adopt(id)
			if watch == nil {
				continue // it has ended
			}
			r.mu.Lock()
			w = r.running[id]
			w.quiet = true
			r.mu.Unlock()
			watch()
		}
		if w.quiet {
			alive = append(alive, id)
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(alive) == 0 || r.closed {
		delete(r.unseen, uid)
		return nil
	}
	signal := runtime.Terminate
	switch {
	case since.IsZero():
		r.unseen[uid] = time.Now()
	case time.Since(since) > r.graceOf(uid):
		signal = runtime.Kill
	default:
		alive = nil // they have been told
	}
	for _, id := range alive {
		r.watch.Go(func() {
			if err := r.Signal(r.life, id, signal); err != nil && r.life.Err() == nil {
				r.log.Warn("a container that could not be looked at before could not be ended", "container", id.String(), "error", err)
			}
		})
	}
	return errors.New("containers of the pod that could not be looked at before still run")
}

// graceOf is how long the containers of a pod have to end by themselves.
func (r *Runtime) graceOf(uid types.UID) time.Duration {
	if pod, err := record.Read(r.podDir(uid), uid); err == nil && pod.Spec.TerminationGracePeriodSeconds != nil {
		return time.Duration(*pod.Spec.TerminationGracePeriodSeconds) * time.Second
	}
	return corev1.DefaultTerminationGracePeriodSeconds * time.Second
}

// severalAtOnce calls all of them, only so many at a time.
func severalAtOnce(calls []func()) {
	next := make(chan func())
	var workers sync.WaitGroup
	for range min(opensAtOnce, len(calls)) {
		workers.Go(func() {
			for call := range next {
				call()
			}
		})
	}
	for _, call := range calls {
		next <- call
	}
	close(next)
	workers.Wait()
}
