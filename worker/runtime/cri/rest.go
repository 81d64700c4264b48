package cri

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-dev/berth/worker/runtime/mounts"
	"github.com/berth-dev/berth/worker/runtime/record"
)

const (
	// restFile in a pod's directory says that the pod is gone, and that what is left of it are records.
	restFile = "rest"
	// maxRests bounds the pods that are gone and have records left: with more of them a pod is not gone before its records are.
	maxRests = 128
	// restPatience is how long records are kept at most because calls of other pods are under way.
	restPatience = time.Minute
	// restAgain is how long after a failure they are removed again.
	restAgain = 10 * time.Second
	// restTimeout bounds the removal of one pod's.
	restTimeout = 2 * time.Minute
	// restClose is how long a runtime that is closed goes on with them. The next agent has what is left then.
	restClose = 10 * time.Second
)

// rests are the pods that are gone: nothing of them runs, and they hold no address, mount or cgroup. What the runtime still has of them, and
// their logs, is removed when no pod waits for the runtime.
type rests struct {
	one     chan struct{} // has a token while somebody removes some: one at a time
	changed chan struct{} // there is one more, or nobody waits for the runtime any more

	mu      sync.Mutex
	waiting []rest
	calls   int // that pods wait for
}

// rest is one of them.
type rest struct {
	pod     types.UID
	at      time.Time // not before
	latest  time.Time // then whatever else is under way
	failure int       // times
}

func newRests() *rests {
	return &rests{one: make(chan struct{}, 1), changed: make(chan struct{}, 1)}
}

func (q *rests) tell() {
	select {
	case q.changed <- struct{}{}:
	default:
	}
}

// hold keeps removals waiting until the function that it returns is called.
func (q *rests) hold() (over func()) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.calls++
	return func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		if q.calls--; q.calls == 0 {
			q.tell()
		}
	}
}

// add takes one more, and says whether there are too many.
func (q *rests) add(pod types.UID, now time.Time) (tooMany bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.index(pod) >= 0 {
		return false
	}
	q.waiting = append(q.waiting, rest{pod: pod, at: now, latest: now.Add(restPatience)})
	q.tell()
	return q.tooMany()
}

// tooMany says whether more are gone than may have records left. The caller holds the lock.
func (q *rests) tooMany() bool { return len(q.waiting) > maxRests }

// owes says whether a pod has records left, and has to be without them, as there are too many such.
func (q *rests) owes(pod types.UID) (left, owed bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	left = q.index(pod) >= 0
	return left, left && q.tooMany()
}

func (q *rests) has(pod types.UID) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.index(pod) >= 0
}

func (q *rests) index(pod types.UID) int {
	return slices.IndexFunc(q.waiting, func(r rest) bool { return r.pod == pod })
}

func (q *rests) pods() []types.UID {
	q.mu.Lock()
	defer q.mu.Unlock()
	out := make([]types.UID, len(q.waiting))
	for i := range q.waiting {
		out[i] = q.waiting[i].pod
	}
	return out
}

// next is whose turn it is; nobody's: in how long it may be somebody's, if nothing changes.
func (q *rests) next(now time.Time) (pod types.UID, in time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.waiting) == 0 {
		return "", restPatience
	}
	due := func(r rest) time.Time {
		if q.calls > 0 && r.latest.After(r.at) {
			return r.latest
		}
		return r.at
	}
	first := slices.MinFunc(q.waiting, func(a, b rest) int { return due(a).Compare(due(b)) })
	if in := due(first).Sub(now); in > 0 {
		return "", in
	}
	return first.pod, 0
}

// settle takes how the removal of one went, and how often it has failed.
func (q *rests) settle(pod types.UID, err error, now time.Time) (failed int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	i := q.index(pod)
	if i < 0 {
		return 0
	}
	r := q.waiting[i]
	q.waiting = slices.Delete(q.waiting, i, i+1)
	if err != nil {
		r.failure++
		r.at = now.Add(restAgain)
		r.latest = r.at
		q.waiting = append(q.waiting, r)
	}
	return r.failure
}

// adoptRest says whether an earlier agent has left no more than records of a pod, and takes them over.
func (r *Runtime) adoptRest(pod types.UID, l *left) bool {
	mark := filepath.Join(r.podDir(pod), restFile)
	if _, err := os.Stat(mark); err != nil {
		return false
	}
	if l.alive() {
		r.log.Warn("a pod that was gone runs, as the container runtime says; it is taken over", "pod", pod)
		_ = os.Remove(mark) // else the next agent says so again
		return false
	}
	r.rests.add(pod, time.Now())
	return true
}

// alive says whether something of the pod runs, or may.
func (l *left) alive() bool {
	return slices.ContainsFunc(l.boxes, func(b *criv1.PodSandbox) bool { return b.State == criv1.PodSandboxState_SANDBOX_READY }) ||
		slices.ContainsFunc(l.containers, func(c *criv1.Container) bool {
			return c.State == criv1.ContainerState_CONTAINER_RUNNING || c.State == criv1.ContainerState_CONTAINER_UNKNOWN
		})
}

// leave lets a pod go of which there are records and nothing else. The mark need not outlive the machine: without it the pod is found with its
// containers ended, and removed again. Where it cannot be written, as of a disk that is full, the records go at once: that needs no room.
func (r *Runtime) leave(ctx context.Context, pod types.UID) error {
	if err := r.mark(pod); err != nil {
		r.log.Debug("what is left of a pod that is gone is removed at once: it could not be marked", "pod", pod, "error", err)
		return r.removeRecords(ctx, pod)
	}
	if r.rests.add(pod, time.Now()) {
		return r.removeRest(ctx, pod)
	}
	return nil
}

func (r *Runtime) mark(pod types.UID) error {
	if err := os.MkdirAll(r.podDir(pod), 0o755); err != nil { // #nosec G301 -- as it was made: who collects logs reads them there
		return err
	}
	return os.WriteFile(filepath.Join(r.podDir(pod), restFile), nil, 0o600)
}

// removeRests removes what is left of pods that are gone, one after the other, until the runtime is closed.
func (r *Runtime) removeRests() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		pod, in := r.rests.next(time.Now())
		if pod == "" {
			timer.Reset(in)
			select {
			case <-r.ctx.Done():
				return
			case <-r.rests.changed:
			case <-timer.C:
			}
			continue
		}
		_ = r.removeRest(r.ctx, pod) // it is told, and tried again
		if r.ctx.Err() != nil {
			return
		}
	}
}

// finishRests removes what is left of pods that are gone while the runtime is being closed.
func (r *Runtime) finishRests() {
	ctx, cancel := context.WithTimeout(r.ctx, restClose)
	defer cancel()
	var failed error
	for _, pod := range r.rests.pods() {
		if err := r.removeRest(ctx, pod); err != nil {
			failed = err
		}
		if ctx.Err() != nil {
			break
		}
	}
	if failed != nil {
		r.log.Info("what is left of pods that are gone is removed when the worker is started again", "error", failed)
	}
}

// removeRest removes what is left of a pod that is gone, if anything is.
func (r *Runtime) removeRest(ctx context.Context, pod types.UID) error {
	if !r.rests.has(pod) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, restTimeout)
	defer cancel()
	select {
	case r.rests.one <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-r.rests.one }()
	ctx = mounts.WithTurns(ctx, func() {}) // others wait for what it holds: it lets nobody go first
	if !r.rests.has(pod) {
		return nil
	}
	err := r.removeRecords(ctx, pod)
	if failed := r.rests.settle(pod, err, time.Now()); failed&(failed-1) == 0 && err != nil && r.ctx.Err() == nil {
		r.log.Warn("what is left of a pod that is gone could not be removed", "pod", pod, "error", err)
	}
	return err
}

// removeRecords has the runtime forget a pod, and removes its logs and its object. containerd stops what it removes: the network's plugins run once
// more, as with a kubelet, and find nothing.
func (r *Runtime) removeRecords(ctx context.Context, pod types.UID) error {
	boxes, err := r.sandboxesOf(ctx, pod)
	if err != nil {
		return err
	}
	for _, s := range boxes {
		if err := r.endSandbox(ctx, s.Id, true); err != nil {
			return err
		}
	}
	// Containers whose sandbox is not there any more.
	left, err := r.containersOf(ctx, pod, "")
	for _, c := range left {
		err = errors.Join(err, r.removeContainer(ctx, c.Id))
	}
	dir := r.podDir(pod)
	for _, name := range [...]string{"logs", hostsFile, emptiedFile, restFile} {
		if err == nil {
			err = mounts.RemoveAll(ctx, filepath.Join(dir, name))
		}
	}
	// The record goes last: without it nobody would look for the rest again.
	if err == nil {
		err = record.Remove(dir)
	}
	if err != nil {
		return fmt.Errorf("removing the records of pod %s: %w", pod, err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	maps.DeleteFunc(r.emptied, func(_ string, of types.UID) bool { return of == pod })
	return nil
}
