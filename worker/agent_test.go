package worker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/worker/eviction"
	"github.com/berth-dev/berth/worker/runtime"
	"github.com/berth-dev/berth/worker/runtime/fake"
	"github.com/berth-dev/berth/worker/runtime/mounts"
	"github.com/berth-dev/berth/worker/runtime/process"
)

func TestMain(m *testing.M) {
	if process.IsShim(os.Args) {
		os.Exit(process.ShimMain(os.Args))
	}
	// The race detector keeps every process a second longer, and each shim is one.
	if err := os.Setenv("GORACE", "atexit_sleep_ms=0 "+os.Getenv("GORACE")); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m)
}

// servers is an uplink that keeps what it is told.
type servers struct {
	assignments chan Assignment

	mu         sync.Mutex
	agent      *Agent // that hears what was taken
	down       bool
	registered []*corev1.Node
	nodes      []*corev1.NodeStatus
	pods       map[types.UID]PodReport
	calls      int
}

func newServers() *servers {
	return &servers{assignments: make(chan Assignment, 10), pods: map[types.UID]PodReport{}}
}

var errDown = errors.New("no server can be reached")

func (s *servers) Register(_ context.Context, n *corev1.Node) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls++
	if s.down {
		return errDown
	}
	s.registered = append(s.registered, n)
	return nil
}

func (s *servers) Assignments() <-chan Assignment { return s.assignments }

func (s *servers) Report(_ context.Context, reports []PodReport) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls++
	if s.down {
		return errDown
	}
	var taken []Taken
	for _, r := range reports {
		s.pods[r.UID] = r
		taken = append(taken, Taken{UID: r.UID, Number: r.Number})
	}
	s.agent.Taken(taken)
	return nil
}

func (s *servers) ReportNode(_ context.Context, n *corev1.NodeStatus) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.down {
		return errDown
	}
	s.nodes = append(s.nodes, n)
	return nil
}

func (s *servers) setDown(down bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.down = down
}

// status returns what is known of a pod.
func (s *servers) status(uid types.UID) corev1.PodStatus {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.pods[uid].Status
}

// await waits until what the servers know satisfies ok.
func (s *servers) await(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); ; {
		s.mu.Lock()
		done := ok()
		s.mu.Unlock()
		if done {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("it did not come to be: %s", what)
		}
		tick := time.NewTimer(2 * time.Millisecond)
		<-tick.C
	}
}

func testNode(t *testing.T) *corev1.Node {
	t.Helper()
	n, err := NewNode(NodeConfig{Name: "n1", Addresses: []string{"10.1.2.3"}, Capacity: corev1.ResourceList{
		"cpu": resource.MustParse("4"), "memory": resource.MustParse("8Gi")}}, Machine{}, epoch)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func testPod(name string, annotations ...string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: types.UID(name), Annotations: map[string]string{}},
		Spec: corev1.PodSpec{NodeName: "n1", Containers: []corev1.Container{{Name: "main"}}}}
	for i := 0; i < len(annotations); i += 2 {
		p.Annotations[fake.Prefix+annotations[i]] = annotations[i+1]
	}
	return p
}

func deleted(p *corev1.Pod, graceSeconds int64) *corev1.Pod {
	p = p.DeepCopy()
	now := metav1.Now()
	p.DeletionTimestamp, p.DeletionGracePeriodSeconds = &now, &graceSeconds
	return p
}

// run runs an agent until the returned function is called.
func run(t *testing.T, o Options) (*Agent, func()) {
	t.Helper()
	a, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	if s, ok := o.Uplink.(*servers); ok {
		s.mu.Lock()
		s.agent = a
		s.mu.Unlock()
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- a.Run(ctx) }()
	var once sync.Once
	stop := func() {
		once.Do(func() {
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
		})
	}
	t.Cleanup(stop)
	return a, stop
}

func runTimeline(t *testing.T) *fake.Timeline {
	t.Helper()
	tl := fake.NewTimeline(nil)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { tl.Run(ctx); close(done) }()
	t.Cleanup(func() { cancel(); <-done })
	return tl
}

func TestAgentLife(t *testing.T) {
	for _, calls := range []int{CallsInline, 2} {
		t.Run(fmt.Sprint("calls ", calls), func(t *testing.T) {
			s := newServers()
			tl := runTimeline(t)
			rt := fake.New(tl)
			o := Options{Node: testNode(t), Uplink: s, Runtime: rt, CallsAtOnce: calls}
			a, stop := run(t, o)
			s.await(t, "the node is registered", func() bool { return len(s.registered) == 1 })
			web, job := testPod("web", "log", "hello"), testPod("job", "run-seconds", "0.01")
			job.Spec.RestartPolicy = corev1.RestartPolicyNever
			s.assignments <- Assignment{Full: true, Revision: 1, Pods: []*corev1.Pod{web, job}}
			s.await(t, "both are reported", func() bool {
				return s.pods["web"].Status.Phase == corev1.PodRunning && s.pods["job"].Status.Phase == corev1.PodSucceeded
			})
			rc, err := a.Logs(context.Background(), "web", "main", LogOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if b, _ := io.ReadAll(rc); string(b) != "hello\n" {
				t.Errorf("log is %q", b)
			}
			if _, err := a.Logs(context.Background(), "nobody", "main", LogOptions{}); !errors.Is(err, ErrUnknownPod) {
				t.Errorf("logs of an unknown pod: %v", err)
			}
			if _, err := a.Logs(context.Background(), "web", "main", LogOptions{Previous: true}); !errors.Is(err, ErrNoLogs) {
				t.Errorf("previous logs: %v", err)
			}

			// The servers go away, a container ends, the agent is restarted, the servers come back: nothing is lost.
			s.setDown(true)
			if err := rt.Crash(runtime.ID{Pod: "web", Container: "main"}, 3); err != nil {
				t.Fatal(err)
			}
			s.await(t, "a report has failed", func() bool { return s.calls > 0 })
			stop()
			web, job = web.DeepCopy(), job.DeepCopy()
			web.Status, job.Status = s.status("web"), s.status("job")
			_, _ = run(t, o)
			s.assignments <- Assignment{Full: true, Revision: 2, Pods: []*corev1.Pod{web, job}}
			s.setDown(false)
			s.await(t, "the restart is reported and the node registered", func() bool {
				cs := s.pods["web"].Status.ContainerStatuses[0]
				return cs.RestartCount == 1 && cs.LastTerminationState.Terminated.ExitCode == 3 && len(s.registered) == 2
			})

			// A new connection registers the node again; a deletion ends with the confirmation.
			s.assignments <- Assignment{Full: true, Revision: 3, Pods: []*corev1.Pod{deleted(web, 30), job}}
			s.await(t, "the end is confirmed", func() bool { return s.pods["web"].Removed && len(s.registered) == 3 })
		})
	}
}

// slowStarts starts containers of the pod "slow" when it may, and tells of signals.
type slowStarts struct {
	runtime.Runtime
	may       chan struct{}
	signalled chan runtime.ID
}

func (s *slowStarts) Start(ctx context.Context, spec runtime.Spec) error {
	if spec.Pod.Name == "slow" {
		select {
		case <-s.may:
		case <-ctx.Done():
		}
	}
	return s.Runtime.Start(ctx, spec)
}

func (s *slowStarts) Signal(ctx context.Context, id runtime.ID, signal runtime.Signal) error {
	s.signalled <- id
	return s.Runtime.Signal(ctx, id, signal)
}

// As many calls as there may be are under way, and others wait for them: a container that has to end does not.
func TestSignalsDoNotWait(t *testing.T) {
	s := newServers()
	rt := &slowStarts{Runtime: fake.New(runTimeline(t)), may: make(chan struct{}), signalled: make(chan runtime.ID, 10)}
	_, _ = run(t, Options{Node: testNode(t), Uplink: s, Runtime: rt, CallsAtOnce: 1})
	web := testPod("web")
	s.assignments <- Assignment{Full: true, Revision: 1, Pods: []*corev1.Pod{web}}
	s.await(t, "it runs", func() bool { return s.pods["web"].Status.Phase == corev1.PodRunning })
	s.assignments <- Assignment{Revision: 2, Pods: []*corev1.Pod{testPod("slow"), testPod("waits")}}
	s.assignments <- Assignment{Revision: 3, Pods: []*corev1.Pod{deleted(web, 30)}}
	select {
	case id := <-rt.signalled:
		if id.Pod != "web" {
			t.Errorf("%s is told to end", id)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("it is not told to end")
	}
	if s.status("waits").Phase == corev1.PodRunning {
		t.Error("more calls than may be were under way")
	}
	close(rt.may)
	s.await(t, "all is done", func() bool {
		return s.pods["web"].Removed && s.pods["slow"].Status.Phase == corev1.PodRunning && s.pods["waits"].Status.Phase == corev1.PodRunning
	})
}

func TestAgentReportsPressure(t *testing.T) {
	s := newServers()
	available := int64(10)
	var mu sync.Mutex
	clk := newStepClock()
	o := Options{Node: testNode(t), Uplink: s, Runtime: fake.New(fake.NewTimeline(clk)), Clock: clk,
		Eviction: eviction.Config{Thresholds: []eviction.Threshold{{Signal: eviction.MemoryAvailable, Least: eviction.Amount{Absolute: 10}}}},
		Observe: func(context.Context) (eviction.Observations, error) {
			mu.Lock()
			defer mu.Unlock()
			return eviction.Observations{eviction.MemoryAvailable: {Available: available, Capacity: 100}}, nil
		}}
	_, _ = run(t, o)
	s.await(t, "the node is registered", func() bool { return len(s.registered) == 1 })
	mu.Lock()
	available = 9
	mu.Unlock()
	s.await(t, "the pressure is reported", func() bool {
		clk.Step(time.Second)
		for _, n := range s.nodes {
			for _, c := range n.Conditions {
				if c.Type == corev1.NodeMemoryPressure && c.Status == corev1.ConditionTrue {
					return true
				}
			}
		}
		return false
	})
}

// A thousand agents with ten pods each have one goroutine each while nothing happens.
func TestManyAgents(t *testing.T) {
	const agents, pods = 1000, 10
	tl := runTimeline(t)
	all := make([]*servers, agents)
	for i := range all {
		s := newServers()
		all[i] = s
		_, _ = run(t, Options{Node: testNode(t), Uplink: s, Runtime: fake.New(tl), CallsAtOnce: CallsInline})
		as := Assignment{Full: true}
		for j := range pods {
			as.Pods = append(as.Pods, testPod(fmt.Sprintf("p-%d-%d", i, j)))
		}
		s.assignments <- as
	}
	for _, s := range all {
		s.await(t, "all run", func() bool {
			for _, p := range s.pods {
				if p.Status.Phase != corev1.PodRunning {
					return false
				}
			}
			return len(s.pods) == pods
		})
	}
}

func TestNodeObject(t *testing.T) {
	m, err := ReadMachine(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	cfg := NodeConfig{Name: "n1", Addresses: []string{"10.0.0.1", "fd00::1"}, Labels: map[string]string{"zone": "a"},
		Taints:   []corev1.Taint{{Key: "k", Effect: corev1.TaintEffectNoSchedule}},
		Capacity: corev1.ResourceList{"example.com/gpu": resource.MustParse("2"), "cpu": resource.MustParse("8")},
		Reserved: corev1.ResourceList{"cpu": resource.MustParse("500m")}, Version: "v1.2.3", Runtime: "process://1"}
	n, err := NewNode(cfg, m, epoch)
	if err != nil {
		t.Fatal(err)
	}
	if got := n.Status.Allocatable.Cpu().String(); got != "7500m" {
		t.Errorf("allocatable cpu is %s", got)
	}
	for _, name := range []corev1.ResourceName{"memory", "ephemeral-storage", "pods", "example.com/gpu"} {
		if q := n.Status.Allocatable[name]; q.IsZero() {
			t.Errorf("no %s", name)
		}
	}
	for _, label := range []string{"kubernetes.io/hostname", "kubernetes.io/os", "kubernetes.io/arch", "zone"} {
		if n.Labels[label] == "" {
			t.Errorf("no label %s", label)
		}
	}
	if len(n.Status.Conditions) != 4 || len(n.Status.Addresses) != 3 || n.Status.NodeInfo.KernelVersion == "" {
		t.Errorf("status is %+v", n.Status)
	}
	cfg.Capacity["memory"], cfg.Capacity["hugepages-2Mi"] = resource.MustParse("4Gi"), resource.MustParse("1Gi")
	if n, err = NewNode(cfg, m, epoch); err != nil {
		t.Fatal(err)
	}
	if memory, all := n.Status.Allocatable.Memory(), n.Status.Capacity.Memory(); memory.String() != "3Gi" || all.String() != "4Gi" {
		t.Errorf("beside hugepages %s of memory are for pods, of %s", memory, all)
	}
	cfg.Reserved["memory"] = resource.MustParse("1Pi")
	if _, err := NewNode(cfg, m, epoch); err == nil || !strings.Contains(err.Error(), "reserved") {
		t.Errorf("more reserved than there is: %v", err)
	}
	seen, err := ReadObservations(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	if o, ok := seen[eviction.ImageFSAvailable]; ok {
		t.Errorf("there are no images, and %+v of their disk", o)
	}
	if seen, err = ReadObservations(t.TempDir(), t.TempDir()); err != nil {
		t.Fatal(err)
	}
	for _, signal := range []eviction.Signal{eviction.MemoryAvailable, eviction.NodeFSAvailable, eviction.ImageFSAvailable, eviction.PIDAvailable} {
		if o := seen[signal]; o.Available <= 0 || o.Available > o.Capacity {
			t.Errorf("%s: %+v", signal, o)
		}
	}
	before := NodeConditions(Pressure{}, nil, epoch)
	after := NodeConditions(Pressure{Disk: true}, before, epoch.Add(time.Hour))
	for i, c := range after {
		changed := !c.LastTransitionTime.Equal(&before[i].LastTransitionTime)
		if changed != (c.Type == corev1.NodeDiskPressure) {
			t.Errorf("%s: transition %v", c.Type, c.LastTransitionTime)
		}
	}
}

// breaking panics at each start of the pod "broken", and beside each of the pod "broken-apart".
type breaking struct{ runtime.Runtime }

func (b breaking) Start(ctx context.Context, spec runtime.Spec) error {
	if spec.Pod.Name == "broken" {
		panic("a mistake")
	}
	if spec.Pod.Name == "broken-apart" {
		return fmt.Errorf("making it: %w", mounts.Apart(ctx, func() error { panic("a mistake") }))
	}
	return b.Runtime.Start(ctx, spec)
}

// What breaks by one pod costs that one its call: it is told why it waits, and others run.
func TestOnePodBreaks(t *testing.T) {
	s := newServers()
	_, _ = run(t, Options{Node: testNode(t), Uplink: s, Runtime: breaking{fake.New(runTimeline(t))}, CallsAtOnce: 1})
	s.assignments <- Assignment{Full: true, Revision: 1, Pods: []*corev1.Pod{testPod("broken"), testPod("broken-apart")}}
	s.await(t, "they wait", func() bool {
		for _, broken := range []string{"broken", "broken-apart"} {
			statuses := s.pods[types.UID(broken)].Status.ContainerStatuses
			if len(statuses) != 1 {
				return false
			}
			if w := statuses[0].State.Waiting; w == nil || !strings.Contains(w.Message, errBroke.Error()) || strings.Contains(w.Message, "a mistake") {
				return false
			}
		}
		return true
	})
	s.assignments <- Assignment{Revision: 2, Pods: []*corev1.Pod{testPod("web")}}
	s.await(t, "the other runs", func() bool { return s.pods["web"].Status.Phase == corev1.PodRunning })
}
