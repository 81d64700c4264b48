package server

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/raftnode"
)

// road is where convoys go: a log that applies each to a state, an entry after the other.
type road struct {
	mu     sync.Mutex
	state  *fsm.State
	groups []int         // how many commands went together, each time
	most   int           // that it takes at once; 0: any number
	closed chan struct{} // nil, or nobody is told of anything before it is closed
	breaks bool          // what becomes of it can not be waited for
	panics bool
}

func newRoad() *road { return &road{state: fsm.NewState()} }

func (r *road) convoy() *convoy { return &convoy{enter: r.enter, guard: quiet} }

var errLong = fmt.Errorf("too many: %w", raftnode.ErrBusy)

func (r *road) enter(ps []fsm.Proposal) (outcome, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.panics {
		panic("on purpose")
	}
	if r.most > 0 && len(ps) > r.most {
		return nil, errLong
	}
	for _, p := range ps {
		if c, ok := p.Command.(*fsm.AdmitPod); ok && len(c.Pod.Object.Annotations["large"]) > 0 {
			return nil, raftnode.ErrTooLarge
		}
	}
	entry, err := fsm.EncodeEntry(fsm.Header{Version: fsm.LogVersion, TimeUnixNano: 1}, ps)
	if err != nil {
		return nil, err
	}
	r.groups = append(r.groups, len(ps))
	results, err := r.state.Apply(r.state.View().Index()+1, 1, entry)
	closed, breaks := r.closed, r.breaks
	return func() ([]fsm.Result, error) {
		if breaks {
			panic("the outcome breaks")
		}
		if closed != nil {
			<-closed
		}
		return results, err
	}, nil
}

// went are how many commands went together, each time until now.
func (r *road) went() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return fmt.Sprint(r.groups)
}

// pod is a new one.
func pod(namespace, name string) []fsm.Proposal {
	return []fsm.Proposal{{User: "test", Command: &fsm.AdmitPod{Pod: fsm.PodWire{Object: &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(namespace + name)},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "none"}}},
	}}}}}
}

// told is what one write was told.
type told struct {
	results []fsm.Result
	err     error
}

// say is what a write was told, but for when.
func (w *told) say() string {
	if w.err != nil {
		return w.err.Error()
	}
	var b strings.Builder
	for _, r := range w.results {
		fmt.Fprintf(&b, "%d %s %s %t; ", r.Code, r.Reason, r.Message, r.Deleted)
	}
	return b.String()
}

// writes are those of a test.
type writes struct {
	c   *convoy
	all []*told
	end sync.WaitGroup
}

// propose lets one that has come propose; the call returns when it waits, or has its answer.
func (w *writes) propose(ctx context.Context, ps []fsm.Proposal) *told {
	is := &told{err: errors.New("it waits")}
	w.all = append(w.all, is)
	w.end.Go(func() {
		results, err := w.c.propose(ctx, ps)
		is.results, is.err = results, err
		w.c.leave()
	})
	synctest.Wait()
	return is
}

// TestConvoys: who goes with whom, and when.
func TestConvoys(t *testing.T) {
	var nobody = context.Background()
	for name, f := range map[string]func(t *testing.T, r *road, w *writes){
		"one that is alone waits for nobody": func(t *testing.T, r *road, w *writes) {
			for i := range 2 {
				w.c.come()
				if is := w.propose(nobody, pod("default", fmt.Sprint("p", i))); is.err != nil {
					t.Error(is.err)
				}
			}
			want(t, r, "[1 1]")
		},
		"those who have begun go together": func(t *testing.T, r *road, w *writes) {
			for range 3 {
				w.c.come()
			}
			w.propose(nobody, pod("default", "p0"))
			w.propose(nobody, append(pod("default", "p1"), pod("default", "p2")...))
			want(t, r, "[]")
			w.propose(nobody, pod("default", "p3"))
			want(t, r, "[4]")
		},
		"who ends is not waited for": func(t *testing.T, r *road, w *writes) {
			w.c.come()
			w.c.come()
			w.propose(nobody, pod("default", "p0"))
			want(t, r, "[]")
			w.c.leave()
			synctest.Wait()
			want(t, r, "[1]")
		},
		"nor is who takes long": func(t *testing.T, r *road, w *writes) {
			for range 3 {
				w.c.come()
			}
			began := time.Now()
			w.propose(nobody, pod("default", "p0"))
			time.Sleep(convoyWait / 2) // of the virtual time
			is := w.propose(nobody, pod("default", "p1"))
			want(t, r, "[]")
			time.Sleep(convoyWait / 2)
			synctest.Wait()
			want(t, r, "[2]")
			if is.err != nil || time.Since(began) != convoyWait {
				t.Errorf("after %s: %v", time.Since(began), is.err)
			}
			w.c.leave()
		},
		"nor anybody by many": func(t *testing.T, r *road, w *writes) {
			for range convoyLen + 2 {
				w.c.come()
			}
			for i := range convoyLen + 1 {
				w.propose(nobody, pod("default", fmt.Sprint("p", i)))
			}
			want(t, r, fmt.Sprintf("[%d]", convoyLen))
			w.c.leave()
			synctest.Wait()
			want(t, r, fmt.Sprintf("[%d 1]", convoyLen))
		},
		"who gives up first is not proposed": func(t *testing.T, r *road, w *writes) {
			w.c.come()
			w.c.come()
			ctx, giveUp := context.WithCancel(nobody)
			is := w.propose(ctx, pod("default", "p0"))
			giveUp()
			synctest.Wait()
			if !errors.Is(is.err, raftnode.ErrNotProposed) || !errors.Is(is.err, context.Canceled) {
				t.Error(is.err)
			}
			w.propose(nobody, pod("default", "p1"))
			want(t, r, "[1]")
		},
		"of who gives up later it is not known": func(t *testing.T, r *road, w *writes) {
			r.closed = make(chan struct{})
			w.c.come()
			w.c.come()
			ctx, giveUp := context.WithCancel(nobody)
			is := w.propose(ctx, pod("default", "p0"))
			other := w.propose(nobody, pod("default", "p1"))
			giveUp()
			synctest.Wait()
			close(r.closed)
			synctest.Wait()
			if !errors.Is(is.err, raftnode.ErrUnknownOutcome) || other.err != nil {
				t.Error(is.err, other.err)
			}
		},
		"one that nobody takes keeps no other": func(t *testing.T, r *road, w *writes) {
			for range 3 {
				w.c.come()
			}
			large := pod("default", "p1")
			large[0].Command.(*fsm.AdmitPod).Pod.Object.Annotations = map[string]string{"large": "x"}
			first, second, third := w.propose(nobody, pod("default", "p0")), w.propose(nobody, large), w.propose(nobody, pod("default", "p2"))
			if first.err != nil || !errors.Is(second.err, raftnode.ErrTooLarge) || third.err != nil {
				t.Error(first.err, second.err, third.err)
			}
			want(t, r, "[1 1]")
		},
		"of what breaks it is not known": func(t *testing.T, r *road, w *writes) {
			r.panics = true
			w.c.come()
			w.c.come()
			for i := range 2 {
				if is := w.propose(nobody, pod("default", fmt.Sprint("p", i))); i == 1 && !errors.Is(is.err, raftnode.ErrUnknownOutcome) {
					t.Error(is.err)
				}
			}
			want(t, r, "[]")
		},
		"an outcome that breaks is not known": func(t *testing.T, r *road, w *writes) {
			r.breaks = true
			w.c.come()
			if is := w.propose(nobody, pod("default", "p0")); !errors.Is(is.err, raftnode.ErrUnknownOutcome) {
				t.Error(is.err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRoad()
				addNamespace(t, r.state, "default")
				w := &writes{c: r.convoy()}
				f(t, r, w)
				w.end.Wait()
				if w.c.coming != 0 || w.c.commands != 0 || len(w.c.waiting) != 0 {
					t.Errorf("it is left: %d are coming, %d commands wait of %d", w.c.coming, w.c.commands, len(w.c.waiting))
				}
			})
		})
	}
}

func want(t *testing.T, r *road, groups string) {
	t.Helper()
	if went := r.went(); went != groups {
		t.Errorf("together went %s, and not %s", went, groups)
	}
}

// TestConvoysSayWhatEachIsTold: whoever goes together, however many a log takes at once, and whoever gives no answer or comes late, each is
// told what it would be told if all had gone one by one, and the state is the same then.
func TestConvoysSayWhatEachIsTold(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		proposals := rapid.SliceOfN(rapid.Custom(someProposals), 1, 40).Draw(rt, "proposals")
		most := rapid.SampledFrom([]int{0, 0, 1, 5, 20}).Draw(rt, "most")
		others := rapid.SliceOfN(rapid.IntRange(0, 9), len(proposals), len(proposals)).Draw(rt, "others")
		synctest.Test(t, func(t *testing.T) {
			single, together := newRoad(), newRoad()
			for _, r := range []*road{single, together} {
				furnish(t, r.state)
				r.most = most
			}
			w := &writes{c: together.convoy()}
			for range proposals {
				w.c.come()
			}
			for i, ps := range proposals {
				w.propose(t.Context(), ps)
				switch others[i] {
				case 0: // somebody comes and goes
					w.c.come()
					w.c.leave()
				case 1:
					time.Sleep(convoyWait) // of the virtual time
				}
				synctest.Wait()
			}
			w.end.Wait()
			for i, ps := range proposals {
				var alone told
				wait, err := single.enter(ps)
				if alone.err = err; err == nil {
					alone.results, alone.err = wait()
				}
				if got := w.all[i].say(); got != alone.say() {
					rt.Errorf("write %d of %d is told %q, and alone it is told %q", i, len(proposals), got, alone.say())
				}
			}
			if a, b := single.state.View(), together.state.View(); a.Revision() != b.Revision() || a.Pods.Len() != b.Pods.Len() {
				rt.Errorf("%d pods at revision %d, and %d at %d where all go one by one", b.Pods.Len(), b.Revision(), a.Pods.Len(), a.Revision())
			}
		})
	})
}

// furnish makes a namespace with a quota, one that ends, and a pod.
func furnish(t *testing.T, s *fsm.State) {
	addNamespace(t, s, "default")
	addNamespace(t, s, "small")
	quota := &corev1.ResourceQuota{
		ObjectMeta: metav1.ObjectMeta{Namespace: "small", Name: "few", UID: "few"},
		Spec:       corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{corev1.ResourcePods: resource.MustParse("3")}},
	}
	raw, err := quota.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	applyTo(t, s, &fsm.PutObject{Resource: fsm.ResourceQuotas, Raw: raw, Create: true})
	applyTo(t, s, pod("default", "p0")[0].Command)
}

// someProposals are those of a write: a pod, or that one is let go, deleted or changed; some of them are refused.
func someProposals(rt *rapid.T) []fsm.Proposal {
	namespace := rapid.SampledFrom([]string{"default", "default", "small", "small", "unheard"}).Draw(rt, "namespace")
	name := rapid.SampledFrom([]string{"p0", "p1", "p2", "p3", "p4", "p5", ""}).Draw(rt, "name")
	key := fsm.PodKey(namespace, name)
	switch rapid.IntRange(0, 6).Draw(rt, "what") {
	case 0:
		return []fsm.Proposal{{User: "test", Command: &fsm.ReleasePod{Key: key, Finalizers: []string{"example.com/hold"}}}}
	case 1:
		return []fsm.Proposal{{User: "test", Command: &fsm.DeletePod{Key: key}}}
	case 2:
		return append(pod(namespace, name), fsm.Proposal{User: "test", Command: &fsm.ReleasePod{Key: key, Finalizers: []string{"example.com/hold"}}})
	}
	ps := pod(namespace, name)
	made := ps[0].Command.(*fsm.AdmitPod).Pod.Object
	if rapid.Bool().Draw(rt, "held") {
		made.Finalizers = []string{"example.com/hold"}
	}
	if rapid.IntRange(0, 9).Draw(rt, "large") == 0 {
		made.Annotations = map[string]string{"large": "x"}
	}
	return ps
}

// TestConvoysThroughAFence: hundreds of writes that are made at once go in few pieces, though few of them are got ready at a time, and each
// has its own answer.
func TestConvoysThroughAFence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const places, asks = 4, 2*convoyLen + 50
		r := newRoad()
		addNamespace(t, r.state, "default")
		f := &fence{reign: reign{lasting: t.Context()}, state: r.state, astray: func() bool { return false }, places: make(chan struct{}, places), convoy: r.convoy()}
		for range places { // until all have begun
			f.places <- struct{}{}
		}
		var ready, most atomic.Int64
		var end sync.WaitGroup
		for i := range asks {
			end.Go(func() {
				name := fmt.Sprint("p", i)
				result, err := fenced(t.Context(), f, func(ctx context.Context) (fsm.Result, error) {
					if n := ready.Add(1); n > most.Load() {
						most.Store(n)
					}
					runtime.Gosched()
					ready.Add(-1)
					results, err := ctx.Value(here{}).(*seat).propose(ctx, pod("default", name))
					if err != nil {
						return fsm.Result{}, err
					}
					return results[0], nil
				})
				if made, ok := result.Object.(*corev1.Pod); err != nil || !ok || made.Name != name {
					t.Errorf("who makes %s is told %+v, %v", name, result, err)
				}
			})
		}
		synctest.Wait()
		for range places {
			<-f.places
		}
		end.Wait()
		want(t, r, fmt.Sprintf("[%d %d 50]", convoyLen, convoyLen))
		if n := r.state.View().Pods.Len(); n != asks || most.Load() > places {
			t.Errorf("%d pods, %d were got ready at a time", n, most.Load())
		}
		if len(f.places) != 0 || f.convoy.coming != 0 {
			t.Errorf("%d places are taken, %d writes are coming", len(f.places), f.convoy.coming)
		}
	})
}
