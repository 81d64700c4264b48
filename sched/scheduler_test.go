package sched

import (
	"fmt"
	"runtime"
	"testing"

	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/model"
	"github.com/berth-dev/berth/sched/clustertest"
)

// TestForget: the boards not asked for longest go first, what they held is not counted any more, and those that nobody
// has asked for in a long time go by themselves.
func TestForget(t *testing.T) {
	h := newHarness()
	for i := range 4 {
		h.PutNode(clustertest.Node(fmt.Sprintf("n%d cpu=8 mem=8Gi", i)))
	}
	s := h.sched
	s.followAll()
	known := func(i int) bool {
		_, kept := s.boards[boardKey{class: model.ClassOf(clustertest.Pod(fmt.Sprintf("p cpu=%d", i+1))).Shape}]
		return kept
	}
	for i := range 6 {
		s.step++
		s.boardOf(model.ClassOf(clustertest.Pod(fmt.Sprintf("p cpu=%d", i+1))))
	}
	s.limit = s.bytes - 1
	s.weigh(s.boards[boardKey{class: model.ClassOf(clustertest.Pod("p cpu=6")).Shape}])
	for i := range 6 {
		if known(i) != (i >= 2) {
			t.Errorf("class %d of 6: kept %v", i, known(i))
		}
	}
	sum := 0
	for _, b := range s.boards {
		sum += b.holds()
	}
	if s.bytes != sum {
		t.Errorf("%d bytes are counted, %d held", s.bytes, sum)
	}
	s.step = 2 * idleSteps
	s.boardOf(model.ClassOf(clustertest.Pod("p cpu=6")))
	s.sweep()
	if len(s.boards) != 1 || !known(5) {
		t.Errorf("%d boards are left", len(s.boards))
	}
}

// TestBoardsHoldWhatTheySay: shapes that come and go hold no more memory than is allowed, as the runtime measures it; with
// rules between pods too.
func TestBoardsHoldWhatTheySay(t *testing.T) {
	for name, c := range map[string]struct {
		first, more int
		pod         string
	}{
		"plain": {70_000, 20_000, "p cpu=%[1]dm select=zone=z%[1]d"},
		"rules": {45_000, 10_000, "p cpu=%[1]dm label=app=a%[1]d far=zone:app=a%[1]d near=zone:app=a%[1]d"},
	} {
		t.Run(name, func(t *testing.T) { boardsHoldWhatTheySay(t, c.first, c.more, c.pod) })
	}
}

func boardsHoldWhatTheySay(t *testing.T, first, more int, pod string) {
	h := newHarness()
	h.PutNode(clustertest.Node("n1 cpu=1000 mem=8Gi pods=100 label=zone=a"))
	h.sched.limit = 8 << 20
	heap := func() int {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int(m.HeapAlloc)
	}
	s := h.sched
	s.followAll()
	shape := 0
	churn := func(shapes int) {
		for range shapes {
			s.step++
			shape++
			s.boardOf(model.ClassOf(clustertest.Pod(fmt.Sprintf(pod, shape))))
		}
	}
	churn(first) // what is kept beside them, the judges of model above all, is as much as it gets by now
	before, boards := heap(), len(s.boards)
	churn(more)
	if grown := heap() - before; grown > s.limit || len(s.boards) > 2*boards+16 {
		t.Errorf("grown by %d bytes, %d boards from %d", grown, len(s.boards), boards)
	}
	if s.bytes > s.limit {
		t.Errorf("%d bytes are counted, %d allowed", s.bytes, s.limit)
	}
	filled := heap()
	held := s.bytes
	s.dropAll()
	if freed := filled - heap(); freed > 2*held {
		t.Errorf("%d bytes were counted and %d were held", held, freed)
	}
	runtime.KeepAlive(h) // with it would go what is kept beside them
}

// TestBounds: one Step decides no more than it is told, and none when everything is under way.
func TestBounds(t *testing.T) {
	h := newHarness()
	h.PutNode(clustertest.Node("n1 cpu=64 mem=64Gi"))
	h.admit(10, "p cpu=1")
	first := h.next(4)
	second := h.next(100)
	if first.Decisions != 4 || second.Decisions != 6 || h.sched.Unsettled() != 2 {
		t.Fatalf("decided %d and %d, %d plans under way", first.Decisions, second.Decisions, h.sched.Unsettled())
	}
	if p := h.next(100); p != nil {
		t.Fatalf("decided %d more with every pod under way", p.Decisions)
	}
	for _, p := range []*Plan{first, second} {
		if refused := h.commit(p); len(refused) > 0 {
			t.Error(refused)
		}
	}
	h.sched.Settle(first) // settling twice does nothing
	if h.sched.Unsettled() != 0 {
		t.Error("plans are left")
	}
}

// TestHoldEnds: a failure that hangs on plans under way is held back only for so long; then no new plan is made until
// they are settled, and it is told.
func TestHoldEnds(t *testing.T) {
	h := newHarness()
	h.PutNode(clustertest.Node("n1 cpu=100 mem=64Gi"))
	h.AdmitPod(clustertest.Pod("big cpu=100"))
	under := []*Plan{h.next(1)}
	h.AdmitPod(clustertest.Pod("late cpu=100"))
	if p := h.next(10); p != nil {
		t.Fatalf("%s", describe(p.Command))
	}
	h.PutNode(clustertest.Node("n2 cpu=4 mem=8Gi"))
	h.AdmitPod(clustertest.Pod("small cpu=1"))
	under = append(under, h.sched.Step(h.NowUnixNano+maxHeldNanos, 10))
	h.AdmitPod(clustertest.Pod("small2 cpu=1"))
	if p := h.sched.Step(h.NowUnixNano+maxHeldNanos, 10); p != nil {
		t.Fatalf("a plan was made instead of waiting: %s", describe(p.Command))
	}
	for _, p := range under {
		h.commit(p)
	}
	p := h.sched.Step(h.NowUnixNano+maxHeldNanos, 10)
	if len(p.Command.Failures) != 1 || len(p.Command.Bindings) != 1 {
		t.Fatalf("%s", describe(p.Command))
	}
}

// TestShortBy: a failure tells the least that is missing on any node.
func TestShortBy(t *testing.T) {
	h := newHarness()
	h.PutNode(clustertest.Node("n1 cpu=4 mem=8Gi"))
	h.PutNode(clustertest.Node("n2 cpu=2 mem=8Gi"))
	h.AdmitPod(clustertest.Pod("a cpu=2 node=n1"))
	h.AdmitPod(clustertest.Pod("p cpu=3"))
	p := h.next(10)
	got := p.Command.Failures[0].Diagnosis.Reasons
	want := []fsm.ReasonCount{
		{Kind: model.InsufficientResource, Resource: "cpu", Text: "Insufficient cpu", Nodes: 1, ShortBy: 1000},
		{Kind: model.ExceedsCapacity, Resource: "cpu", Text: "Insufficient cpu", Nodes: 1, ShortBy: 1000},
	}
	if len(got) != 2 || got[0] != want[0] || got[1] != want[1] {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

// TestRing: pods spread over equally good nodes, and the same pod always goes to the same one.
func TestRing(t *testing.T) {
	count := map[string]int{}
	for i := range 300 {
		h := newHarness()
		for n := range 3 {
			h.PutNode(clustertest.Node(fmt.Sprintf("n%d cpu=8 mem=8Gi", n)))
		}
		h.AdmitPod(clustertest.Pod(fmt.Sprintf("p%d cpu=1", i)))
		count[h.next(1).Command.Bindings[0].Node]++
	}
	if len(count) != 3 {
		t.Errorf("300 pods on 3 equal nodes went to %v", count)
	}
}
