package server

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/controller"
	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/owners"
	"github.com/berth-dev/berth/raftnode"
)

// workLog is the log of a workLoop: it applies what is proposed, after a while,
// or refuses it, or loses the answer.
type workLog struct {
	mu    sync.Mutex
	state *fsm.State
	// after is how long an entry takes; refuse and lose are what becomes of
	// proposals.
	after        time.Duration
	refuse, lose error
	proposed     int
	most         int32 // of the active pods of the ReplicaSet that is watched
	watched      types.UID
	broken       int // of so many works to wait for the outcome panics
}

func newWorkLog() *workLog { return &workLog{state: fsm.NewState(), watched: "uid-web"} }

func (l *workLog) propose(w controller.Work) (func(ctx context.Context) ([]fsm.Result, error), error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.proposed++
	if l.refuse != nil {
		return nil, l.refuse
	}
	// Encoded at once, as the real log does.
	ps := make([]fsm.Proposal, len(w.Commands))
	for i, c := range w.Commands {
		ps[i] = fsm.Proposal{User: systemUser, Groups: systemGroups, Command: c}
	}
	entry, err := fsm.EncodeEntry(fsm.Header{Version: fsm.LogVersion, TimeUnixNano: time.Now().UnixNano()}, ps)
	if err != nil {
		return nil, err
	}
	type answer struct {
		results []fsm.Result
		err     error
	}
	done, lose := make(chan answer, 1), l.lose
	go func() {
		<-time.After(l.after) // of the virtual time
		results, err := l.applyEntry(entry)
		if lose != nil {
			results, err = nil, lose
		}
		done <- answer{results, err}
	}()
	broken := l.broken > 0
	if broken {
		l.broken--
	}
	return func(ctx context.Context) ([]fsm.Result, error) {
		if broken {
			panic("the outcome breaks")
		}
		select {
		case a := <-done:
			return a.results, a.err
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}, nil
}

func (l *workLog) applyEntry(entry []byte) ([]fsm.Result, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	results, err := l.state.Apply(l.state.View().Index()+1, 1, entry)
	l.most = max(l.most, l.state.View().TallyOf(owners.ID{Namespace: "default", UID: l.watched}).Active)
	return results, err
}

func (l *workLog) must(t *testing.T, cs ...fsm.Command) {
	t.Helper()
	for _, c := range cs {
		entry, err := fsm.EncodeEntry(fsm.Header{Version: fsm.LogVersion, TimeUnixNano: time.Now().UnixNano()}, []fsm.Proposal{{User: "test", Command: c}})
		if err != nil {
			t.Fatal(err)
		}
		rs, err := l.applyEntry(entry)
		if err == nil {
			err = rs[0].Err()
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	synctest.Wait()
}

func (l *workLog) set(change func(l *workLog)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	change(l)
}

// web is a ReplicaSet of so many pods, to be created or changed.
func (l *workLog) web(t *testing.T, replicas int32) {
	t.Helper()
	rs, known := l.state.View().ReplicaSet("default", "web")
	if known {
		rs = rs.DeepCopy()
		rs.Generation++
	} else {
		labels := map[string]string{"app": "web"}
		rs = &appsv1.ReplicaSet{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", UID: "uid-web", Generation: 1},
			Spec: appsv1.ReplicaSetSpec{Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "none"}}}}},
		}
	}
	rs.Spec.Replicas = &replicas
	raw, err := rs.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	l.must(t, &fsm.PutObject{Resource: fsm.ReplicaSets, Raw: raw, Create: !known})
}

func (l *workLog) want(t *testing.T, active int) {
	t.Helper()
	v := l.state.View()
	if n := v.TallyOf(owners.ID{Namespace: "default", UID: "uid-web"}).Active; int(n) != active {
		t.Fatalf("%d active pods, not %d", n, active)
	}
	if v.Pods.Len() != active {
		t.Fatalf("%d pods in all, not %d", v.Pods.Len(), active)
	}
}

// keep runs a loop in the present bubble; stop ends it.
func (l *workLog) keep() (stop func()) {
	loop := &workLoop{state: l.state, clock: runningClock(), propose: l.propose, log: hclog.NewNullLogger(), guard: quiet}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		loop.run(ctx, &controller.ReplicaSets{}, &controller.Garbage{})
	}()
	synctest.Wait()
	return func() { cancel(); <-ended }
}

// TestWorkloadsGoOnAfterAnOutcomeThatPanics: what was wanted is asked for again, and nobody is one too many.
func TestWorkloadsGoOnAfterAnOutcomeThatPanics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newWorkLog()
		addNamespace(t, l.state, "default")
		defer l.keep()()
		l.set(func(l *workLog) { l.broken = 3 })
		for _, replicas := range []int32{3, 1} {
			l.web(t, replicas)
			pass(time.Minute)
			l.want(t, int(replicas))
		}
		if l.broken > 0 {
			t.Error("nothing was broken")
		}
	})
}

func TestWorkloadsReactAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newWorkLog()
		addNamespace(t, l.state, "default")
		defer l.keep()()
		l.web(t, 3)
		l.want(t, 3)
		l.web(t, 3500)
		l.want(t, 3500)
		// One that ends is replaced.
		var key string
		l.state.View().PodsOf(owners.ID{Namespace: "default", UID: "uid-web"}, func(k string, _ *corev1.Pod) bool { key = k; return false })
		l.must(t, &fsm.DeletePod{Key: key})
		l.want(t, 3500)
		l.web(t, 2)
		l.want(t, 2)
		// The status follows by itself, though nothing changes any more.
		pass(time.Second)
		if rs, _ := l.state.View().ReplicaSet("default", "web"); rs.Status.Replicas != 2 || rs.Status.ObservedGeneration != rs.Generation {
			t.Errorf("the status is %+v", rs.Status)
		}
		before := l.proposed
		pass(time.Hour)
		if l.proposed != before {
			t.Errorf("%d proposals though there is nothing to do", l.proposed-before)
		}
		l.must(t, &fsm.DeleteObject{Resource: fsm.ReplicaSets, Namespace: "default", Name: "web"})
		l.want(t, 0)
	})
}

func TestWorkloadsPauseWhenTheLogRefuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newWorkLog()
		addNamespace(t, l.state, "default")
		defer l.keep()()
		l.set(func(l *workLog) { l.refuse = fmt.Errorf("propose: %w", raftnode.ErrBusy) })
		l.web(t, 10)
		pass(time.Second)
		if l.proposed < 2 || l.proposed > 30 {
			t.Errorf("%d proposals in a second of refusals", l.proposed)
		}
		l.want(t, 0)
		l.set(func(l *workLog) { l.refuse = nil })
		pass(time.Second)
		l.want(t, 10)
	})
}

// TestWorkloadsOutcomeUnknown: what was applied and never answered is not done
// again.
func TestWorkloadsOutcomeUnknown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newWorkLog()
		addNamespace(t, l.state, "default")
		defer l.keep()()
		l.set(func(l *workLog) { l.lose = raftnode.ErrUnknownOutcome })
		l.web(t, 2500)
		pass(time.Second)
		l.want(t, 2500)
		l.web(t, 100)
		pass(time.Second)
		l.want(t, 100)
		if l.most != 2500 {
			t.Errorf("there were %d pods at some time", l.most)
		}
	})
}

// TestWorkloadsChangeOfLeader: what the old leader has proposed is applied while
// the new one works, and there are never too many.
func TestWorkloadsChangeOfLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newWorkLog()
		addNamespace(t, l.state, "default")
		l.set(func(l *workLog) { l.after = 100 * time.Millisecond })
		old := l.keep()
		l.web(t, 25_000)
		pass(150 * time.Millisecond) // ten thousand are made, ten thousand are on their way
		old()
		l.set(func(l *workLog) { l.after = 10 * time.Millisecond })
		defer l.keep()()
		pass(time.Minute)
		l.want(t, 25_000)
		if l.most != 25_000 {
			t.Errorf("there were %d pods at some time", l.most)
		}
	})
}
