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
)

const (
	// opensAtOnce is how many containers from before are taken over at a time: shims that are silent keep few of the others waiting.
	opensAtOnce = 16
	// listPatience is how long what there is of a pod from before is listed again where that fails. After it the others are not kept waiting.
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
		rp, watches := l.told()
		out = append(out, rp)
		for _, watch := range watches {
			watch()
		}
		if l.unseen {
			r.watch.Go(func() { r.see(&left{uid: l.uid}) })
		}
	}
	return out, nil
}

// left is what there is of a pod from before.
type left struct {
	uid        types.UID
	pod        *corev1.Pod // nil: only the rest of one
	lost       bool
	unseen     bool // nobody can say what it is yet
	containers []found
}

// told is what is told of the pod, and what to do after that to watch its containers.
func (l *left) told() (rp runtime.Pod, watches []func()) {
	rp = runtime.Pod{Pod: l.pod, Lost: l.lost, Unseen: l.unseen}
	for _, c := range l.containers {
		if c.there {
			rp.Containers = append(rp.Containers, c.Container)
		}
		if c.watch != nil {
			watches = append(watches, c.watch)
		}
	}
	return rp, watches
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
		r.log.Error("a pod's containers cannot be looked at; nothing is done about it until they can", "pod", l.uid, "error", err)
		r.mu.Lock()
		r.unseen[l.uid] = true
		r.mu.Unlock()
		l.pod, l.lost, l.unseen = unknownPod(l.uid), true, true
		return
	}
	if r.sort(l, ids); l.pod == nil {
		r.drop(l.uid)
	}
}

// drop takes away what is only the rest of a pod.
func (r *Runtime) drop(uid types.UID) {
	if err := r.discard(r.life, uid); err != nil {
		r.log.Warn("what is left of a pod could not be removed", "pod", uid, "error", err)
	}
	r.sweep()
}

func unknownPod(uid types.UID) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: uid}}
}

// sort says which pod it is and which runs of its containers there are, in their order.
func (r *Runtime) sort(l *left, ids []runtime.ID) {
	if l.pod, l.lost = r.recover(l.uid, ids); l.pod == nil {
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
	f.Container, f.watch, f.there = r.adopt(r.life, f.ID)
}

// awaitAttempts is attempts, again and again until it is known or ctx ends.
func (r *Runtime) awaitAttempts(ctx context.Context, pod types.UID) ([]runtime.ID, error) {
	for pause := 5 * time.Millisecond; ; pause = min(2*pause, time.Second) {
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

// see finds out, as soon as it can, what there is of a pod that could not be looked at when the runtime was opened, and takes it over.
func (r *Runtime) see(l *left) {
	ids, err := r.awaitAttempts(r.life, l.uid)
	if err != nil {
		return // the agent ends
	}
	if r.sort(l, ids); l.pod == nil {
		r.drop(l.uid)
		l.pod, l.lost = unknownPod(l.uid), true
	}
	var calls []func()
	for i := range l.containers {
		calls = append(calls, func() { r.takeOver(&l.containers[i]) })
	}
	severalAtOnce(calls)
	rp, watches := l.told()
	if r.life.Err() == nil { // else it may not be all that there is
		r.log.Info("a pod's containers can be looked at now", "pod", l.uid, "containers", len(rp.Containers))
		r.mu.Lock()
		delete(r.unseen, l.uid)
		r.mu.Unlock()
		r.notify(runtime.Event{ID: runtime.ID{Pod: l.uid}, Found: &rp})
	}
	for _, watch := range watches {
		watch()
	}
}

// seen fails for a pod of which it is not known yet what runs: nothing of it is started beside that, or taken away below it.
func (r *Runtime) seen(pod types.UID) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.unseen[pod] {
		return errors.New("what runs of the pod from before cannot be looked at yet")
	}
	return nil
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
