package worker

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/berth-dev/berth/model"
	"github.com/berth-dev/berth/worker/eviction"
	"github.com/berth-dev/berth/worker/runtime"
	"github.com/berth-dev/berth/worker/runtime/fake"
)

func nothingShort(context.Context) (eviction.Observations, error) { return nil, nil }

// measured is a runtime whose containers use what the test says, and that has something to give back.
type measured struct {
	*fake.Runtime
	mu        sync.Mutex
	uses      map[types.UID]int64
	inodes    map[types.UID]int64
	processes map[types.UID]int64
	endless   map[types.UID]bool // what it has written is never counted
	reclaimed int
	onReclaim func()
}

func (m *measured) Use(context.Context) ([]runtime.ContainerUse, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []runtime.ContainerUse
	for uid, n := range m.uses {
		out = append(out, runtime.ContainerUse{ID: runtime.ID{Pod: uid, Container: "main"}, Counted: runtime.Counted{WorkingSetBytes: n}})
	}
	return out, nil
}

func (m *measured) DiskUse(ctx context.Context, pod types.UID) (runtime.DiskUse, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.endless[pod] {
		if _, bounded := ctx.Deadline(); !bounded {
			m.mu.Unlock()
			<-ctx.Done()
			m.mu.Lock()
		}
		return runtime.DiskUse{}, context.DeadlineExceeded
	}
	return runtime.DiskUse{Bytes: map[string]int64{"main": m.uses[pod]}, Inodes: m.inodes[pod]}, nil
}

func (m *measured) Processes(context.Context) (map[types.UID]int64, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return maps.Clone(m.processes), nil
}

func (m *measured) Reclaim(context.Context) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.reclaimed++
	if m.onReclaim != nil {
		m.onReclaim()
	}
	return nil
}

// relieved is a node of some pods that runs short.
type relieved struct {
	*servers
	*measured
	t         *testing.T
	clock     *clocktesting.FakeClock
	signal    eviction.Signal
	available int64 // guarded by measured.mu
}

func newRelieved(t *testing.T, signal eviction.Signal, pods ...*corev1.Pod) *relieved {
	r := &relieved{servers: newServers(), t: t, clock: newStepClock(), signal: signal, available: 100}
	node := testNode(t)
	node.Status.Allocatable[corev1.ResourceEphemeralStorage] = resource.MustParse("1Gi")
	tl := runTimeline(t)
	r.measured = &measured{Runtime: fake.New(tl), uses: map[types.UID]int64{}}
	_, _ = run(t, Options{
		Node: node, Uplink: r.servers, Runtime: r.measured, Clock: r.clock,
		Eviction: eviction.Config{Thresholds: []eviction.Threshold{{Signal: signal, Least: eviction.Amount{Absolute: 100}}}},
		Observe: func(context.Context) (eviction.Observations, error) {
			r.measured.mu.Lock()
			defer r.measured.mu.Unlock()
			return eviction.Observations{signal: {Available: r.available, Capacity: 1000}}, nil
		},
	})
	r.assignments <- Assignment{Full: true, Pods: pods}
	r.await(t, "all run", func() bool {
		r.clock.Step(time.Second)
		n := 0
		for _, p := range r.pods {
			if p.Status.Phase == corev1.PodRunning {
				n++
			}
		}
		return n == len(pods)
	})
	return r
}

func (r *relieved) is(available int64) {
	r.measured.mu.Lock()
	defer r.measured.mu.Unlock()
	r.available = available
}

// failed are the pods that have failed, in the order of their names.
func (r *relieved) failed() string {
	var out []string
	for name, p := range r.pods {
		if p.Status.Phase == corev1.PodFailed {
			out = append(out, string(name))
		}
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

func using(name string, priority int32, asks string, change ...func(*corev1.Pod)) *corev1.Pod {
	p := testPod(name)
	p.Spec.Priority = &priority
	p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{
		corev1.ResourceMemory: resource.MustParse(asks), corev1.ResourceEphemeralStorage: resource.MustParse(asks),
	}
	for _, f := range change {
		f(p)
	}
	return p
}

// PC13: who uses more than it asks for goes first, then who is of lower priority; one at a time, as long as the node is
// short; critical pods stay.
func TestWhoGoesWhenTheNodeIsShort(t *testing.T) {
	r := newRelieved(t, eviction.MemoryAvailable, using("modest", 0, "50"), using("greedy-and-important", 10, "50"), using("greedy", 0, "50"),
		using("critical", model.SystemCriticalPriority, "0"))
	r.measured.mu.Lock()
	for _, name := range []string{"greedy-and-important", "greedy", "critical"} {
		r.uses[types.UID(name)] = 60
	}
	r.uses["modest"] = 40
	r.available = 20
	r.measured.mu.Unlock()
	for _, want := range []string{"greedy", "greedy greedy-and-important", "greedy greedy-and-important modest"} {
		r.await(t, want, func() bool {
			r.clock.Step(time.Second)
			return r.failed() == want
		})
	}
	r.servers.mu.Lock()
	s := r.pods["greedy"].Status
	r.servers.mu.Unlock()
	want := "The node was low on resource: memory. Threshold quantity: 100, available: 20. Container main was using 60, request is 50, has larger consumption of memory. "
	if s.Reason != "Evicted" || s.Message != want {
		t.Errorf("it says %s, %q", s.Reason, s.Message)
	}
	if !slices.ContainsFunc(s.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.DisruptionTarget && c.Reason == corev1.PodReasonTerminationByKubelet && c.Message == want
	}) {
		t.Errorf("its conditions are %+v", s.Conditions)
	}
	// Who would make it worse is not taken.
	r.assignments <- Assignment{Pods: []*corev1.Pod{testPod("best-effort")}}
	r.await(t, "a pod that asks for nothing to be refused", func() bool {
		p, ok := r.pods["best-effort"]
		return ok && p.Status.Reason == "Evicted" && strings.Contains(p.Status.Message, "The node had condition: [MemoryPressure]")
	})
	if r.reclaimed > 0 {
		t.Error("images were removed for want of memory")
	}
}

// Where a disk is full, what no pod needs goes first, and no pod does if that is enough.
func TestNobodyGoesWhereImagesSuffice(t *testing.T) {
	r := newRelieved(t, eviction.NodeFSAvailable, using("a", 0, "0"))
	r.measured.mu.Lock()
	r.uses["a"] = 60
	r.onReclaim = func() { r.available = 100 }
	r.measured.mu.Unlock()
	r.is(50)
	r.await(t, "what nobody needs to be removed", func() bool {
		r.clock.Step(time.Second)
		r.measured.mu.Lock()
		defer r.measured.mu.Unlock()
		return r.reclaimed > 0
	})
	for range 30 {
		r.clock.Step(time.Second)
	}
	r.measured.mu.Lock()
	r.onReclaim = nil
	r.available = 50
	r.measured.mu.Unlock()
	r.servers.mu.Lock()
	failed := r.failed()
	r.servers.mu.Unlock()
	if failed != "" {
		t.Errorf("%s had to go", failed)
	}
	r.await(t, "the pod to go", func() bool {
		r.clock.Step(time.Second)
		return r.failed() == "a"
	})
}

// Nobody else has to go before what the last one held is given back: its volumes may be what was short.
func TestWhatAnEvictedPodHeldIsWaitedFor(t *testing.T) {
	a := &Agent{core: NewCore(CoreOptions{Node: testNode(t), RuntimeName: "fake", Files: true})}
	a.relief.lastEvicted, a.relief.until = "greedy", epoch.Add(leavingPatience)
	pod := testPod("greedy")
	pod.Spec.Volumes = []corev1.Volume{{Name: "v"}}
	main := runtime.Container{ID: runtime.ID{Pod: "greedy", Container: "main"}, StartedAt: epoch}
	a.core.Adopt([]runtime.Pod{{Pod: pod, Containers: []runtime.Container{main}}}, epoch)
	a.core.Assign(Assignment{Full: true, Pods: []*corev1.Pod{pod}}, epoch)
	a.core.Evict("greedy", "it holds too much", &eviction.Config{}, &eviction.Threshold{}, epoch)
	a.core.TakeActions()
	main.Exit = &runtime.Exit{Code: 137, FinishedAt: epoch}
	a.core.Observe(main, epoch)
	actions := a.core.TakeActions()
	if len(actions) != 1 || actions[0].Kind != ActionUnmount {
		t.Fatalf("got %v", actions)
	}
	if !a.leaves(epoch) {
		t.Error("it is not waited for what it held")
	}
	a.core.Done(Outcome{Action: actions[0]}, epoch)
	if a.leaves(epoch) {
		t.Error("it is waited for what it does not hold any more")
	}
}

// Where a file system has no room for more files, who has most of them goes first, however little it holds; where processes are
// short, of those of the lowest priority who has most of them.
func TestWhoGoesForFilesAndProcesses(t *testing.T) {
	for signal, want := range map[eviction.Signal]string{eviction.NodeFSInodes: "files", eviction.ImageFSInodes: "files", eviction.PIDAvailable: "processes"} {
		t.Run(string(signal), func(t *testing.T) {
			r := newRelieved(t, signal, using("large", 0, "0"), using("files", 0, "0"), using("processes", 0, "0"), using("important", 10, "0"))
			r.measured.mu.Lock()
			r.uses = map[types.UID]int64{"large": 1 << 30, "files": 10, "processes": 10, "important": 10}
			r.inodes = map[types.UID]int64{"large": 1, "files": 1000, "processes": 1, "important": 10}
			r.processes = map[types.UID]int64{"large": 1, "files": 1, "processes": 100, "important": 1000}
			r.available = 50
			r.measured.mu.Unlock()
			r.await(t, want+" to go", func() bool {
				r.clock.Step(time.Second)
				return r.failed() == want
			})
		})
	}
}
