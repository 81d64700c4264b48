package worker

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/worker/runtime"
	"github.com/berth-dev/berth/worker/runtime/fake"
	"github.com/berth-dev/berth/worker/runtime/mounts"
)

// large is a runtime whose pods have so much to be removed that it takes until it is released.
type large struct {
	*fake.Runtime
	began, release chan struct{}
}

func (l *large) wait() {
	l.began <- struct{}{}
	<-l.release
}

func (l *large) Unpin(types.UID) error {
	l.wait()
	return nil
}

func (l *large) Remove(ctx context.Context, pod types.UID) error {
	l.wait()
	return l.Runtime.Remove(ctx, pod)
}

// A removal that takes long keeps no other pod from being started, and a worker that is stopped does not wait for it.
func TestLongRemovalHoldsNothingUp(t *testing.T) {
	s := newServers()
	rt := &large{fake.New(runTimeline(t)), make(chan struct{}, 100), make(chan struct{})}
	old, ended := testPod("old"), testPod("ended", "run-seconds", "0")
	ended.Spec.RestartPolicy = corev1.RestartPolicyNever
	for _, p := range []*corev1.Pod{old, ended} {
		p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
	}
	_, stop := run(t, Options{Node: testNode(t), Uplink: s, Runtime: rt, Volumes: &Volumes{Root: t.TempDir()}, CallsAtOnce: 1})
	s.assignments <- Assignment{Full: true, Revision: 1, Pods: []*corev1.Pod{old}}
	s.await(t, "it runs", func() bool { return s.pods["old"].Status.Phase == corev1.PodRunning })
	s.assignments <- Assignment{Revision: 2, Pods: []*corev1.Pod{ended}}
	<-rt.began
	s.assignments <- Assignment{Revision: 3, Gone: []types.UID{"old"}}
	<-rt.began
	s.assignments <- Assignment{Revision: 4, Pods: []*corev1.Pod{testPod("new")}}
	s.await(t, "another one runs", func() bool { return s.pods["new"].Status.Phase == corev1.PodRunning })
	stop()
	close(rt.release)
}

// Whoever has waited in vain leaves a removal that goes on; the next one for the pod comes after it, and those of others beside it, up to a bound.
func TestRemovalsHavePlaces(t *testing.T) {
	var r removals
	release, began := make(chan struct{}), make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	first := make(chan error, 1)
	go func() {
		first <- r.apart(ctx, "a", 0, func(context.Context) error { close(began); <-release; return nil })
	}()
	<-began
	cancel()
	if err := <-first; !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	if err := r.apart(ctx, "a", 0, func(context.Context) error { t.Error("it was called beside the first"); return nil }); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	other := errors.New("done")
	if err := r.apart(t.Context(), "b", 0, func(context.Context) error { return other }); !errors.Is(err, other) {
		t.Errorf("another's: %v", err)
	}
	for i := 1; i < removalsAtOnce; i++ {
		if err := r.begin(t.Context(), types.UID(fmt.Sprint(i))); err != nil {
			t.Fatalf("there is no place for %d: %v", i, err)
		}
	}
	third := make(chan error, 1)
	go func() { third <- r.begin(t.Context(), "c") }()
	awaitTrue(t, "the last one waits", func() bool { return r.waiting() == 1 })
	if err := r.await(t.Context(), "c"); err != nil {
		t.Errorf("nothing of it is being removed: %v", err)
	}
	if err := r.await(ctx, "a"); !errors.Is(err, context.Canceled) {
		t.Errorf("something of it is being removed: %v", err)
	}
	close(release)
	if err := <-third; err != nil {
		t.Error(err)
	}
	r.end("c")
	if err := r.await(t.Context(), "a"); err != nil {
		t.Error(err)
	}
	if err := r.apart(ctx, "d", 0, func(context.Context) error { t.Error("it began after its end"); return nil }); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	for _, pod := range []types.UID{"a", "c"} {
		if err := r.apart(t.Context(), pod, 0, func(context.Context) error { return other }); !errors.Is(err, other) {
			t.Errorf("%s: %v", pod, err)
		}
	}
}

func (r *removals) underWay() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.of)
}

func (r *removals) waiting() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.queue)
}

// Removals that take hours keep no other from its place: they let it have theirs, and go on.
func TestLongRemovalsTakeTurns(t *testing.T) {
	r := removals{turn: time.Nanosecond}
	nothing := filepath.Join(t.TempDir(), "nothing")
	var enough atomic.Bool
	long := make(chan error, removalsAtOnce)
	for i := range removalsAtOnce {
		go func() {
			long <- r.apart(t.Context(), types.UID(fmt.Sprint("long", i)), 0, func(ctx context.Context) error {
				for !enough.Load() {
					if err := mounts.RemoveAll(ctx, nothing); err != nil {
						return err
					}
				}
				return nil
			})
		}()
	}
	awaitTrue(t, "all places are taken", func() bool { return r.underWay() == removalsAtOnce })
	for i := range 100 {
		short := false
		if err := r.apart(t.Context(), types.UID(fmt.Sprint("short", i)), 0, func(context.Context) error { short = true; return nil }); err != nil || !short {
			t.Fatalf("a short one: %v", err)
		}
	}
	enough.Store(true)
	for range removalsAtOnce {
		if err := <-long; err != nil {
			t.Error(err)
		}
	}
	if r.placed != 0 || r.underWay() != 0 || r.waiting() != 0 {
		t.Errorf("there is left: %d places, %d pods, %d who wait", r.placed, r.underWay(), r.waiting())
	}
}

// Places are given to those who have waited longest; who waits no more, or for another one of its pod, holds up nobody.
func TestRemovalsInTheirOrder(t *testing.T) {
	var r removals
	for i := range removalsAtOnce {
		if err := r.begin(t.Context(), types.UID(fmt.Sprint(i))); err != nil {
			t.Fatal(err)
		}
	}
	began := make(chan types.UID, 10)
	ctx, cancel := context.WithCancel(t.Context())
	given := make(chan error, 1)
	for i, pod := range []types.UID{"gives up", "0", "a", "b", "c"} {
		go func() {
			if pod == "gives up" {
				given <- r.begin(ctx, pod)
				return
			}
			if err := r.begin(t.Context(), pod); err != nil {
				t.Error(err)
			}
			began <- pod
		}()
		awaitTrue(t, "it waits", func() bool { return r.waiting() == i+1 })
	}
	cancel()
	if err := <-given; !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	for i, want := range []types.UID{"a", "b", "0", "c"} {
		over := types.UID(fmt.Sprint(i + 1))
		if want == "0" {
			over = want
		}
		r.end(over)
		if got := <-began; got != want {
			t.Errorf("%s has its place before %s", got, want)
		}
	}
}

// What pods have left that went away while no agent ran is removed: one that hangs holds up no other, and what failed is tried again.
func TestVolumesOfPodsThatAreGone(t *testing.T) {
	clk := newStepClock()
	v := &Volumes{Root: t.TempDir()}
	pods := []types.UID{"hangs", "fails", "plain", "here"}
	for _, uid := range pods {
		if err := os.MkdirAll(v.dir(uid, "v"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	there := func(uid types.UID) bool { _, err := os.Lstat(filepath.Join(v.Root, string(uid))); return err == nil }
	fails := filepath.Join(v.Root, "fails")
	for _, err := range []error{os.RemoveAll(fails), os.Symlink("fails", fails)} { // leads nowhere
		if err != nil {
			t.Fatal(err)
		}
	}
	a, err := New(Options{Node: testNode(t), Uplink: newServers(), Runtime: fake.New(fake.NewTimeline(clk)), Volumes: v, Clock: clk})
	if err != nil {
		t.Fatal(err)
	}
	a.core.Adopt([]runtime.Pod{{Pod: testPod("here")}}, epoch)
	hangs := v.of("hangs")
	hangs.writing <- struct{}{}
	ctx, cancel := context.WithCancel(t.Context())
	defer func() { cancel(); a.calls.Wait() }()
	a.dropVolumes(ctx, pods)
	awaitTrue(t, "one is removed", func() bool { return !there("plain") })
	<-hangs.writing
	awaitTrue(t, "the one that hung is removed", func() bool { return !there("hangs") })
	if !there("fails") || !there("here") {
		t.Error("what cannot be removed, or is needed, is gone")
	}
	if err := os.Remove(fails); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(v.dir("fails", "v"), 0o700); err != nil {
		t.Fatal(err)
	}
	awaitTrue(t, "the one that failed is removed", func() bool { clk.Step(time.Second); return !there("fails") })
	if !there("here") {
		t.Error("a pod's volumes are gone that is here")
	}
}
