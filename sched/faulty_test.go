package sched

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"

	"github.com/berth-dev/berth/api/berthv1"
	"github.com/berth-dev/berth/model"
	"github.com/berth-dev/berth/sched/clustertest"
)

// rowsThatPanic are rows over which the view breaks, each time.
var rowsThatPanic = map[string]func(row any) bool{
	"pod": func(row any) bool { p, ok := row.(*corev1.Pod); return ok && p.Name == "bad" },
	"pod, and its room": func(row any) bool {
		p, ok := row.(*corev1.Pod)
		c, is := row.(*model.Class)
		return ok && p.Name == "bad" || is && c.Labels["app"] == "bad"
	},
	"node":      func(row any) bool { n, ok := row.(*corev1.Node); return ok && n.Name == "bad" },
	"namespace": func(row any) bool { n, ok := row.(*corev1.Namespace); return ok && n.Name == "other" },
	"budget":    func(row any) bool { _, ok := row.(*policyv1.PodDisruptionBudget); return ok },
	"every pod": func(row any) bool { _, ok := row.(*corev1.Pod); return ok },
}

// TestRowThatPanicsIsLetBe: whatever row the view breaks over, it is told, and everybody else gets a place: by a view that follows
// and by one that is built anew. When the row is sound again the view takes it in.
func TestRowThatPanicsIsLetBe(t *testing.T) {
	for name, panics := range rowsThatPanic {
		for _, anew := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s anew=%t", name, anew), func(t *testing.T) {
				h, broken, hits := newHarness(), true, 0
				taking := func(row any) {
					if broken && panics(row) {
						hits++
						panic("it breaks")
					}
				}
				if !anew {
					h.run()
					h.sched.taking = taking
				}
				h.PutNode(clustertest.Node("n1 cpu=4"))
				h.PutNode(clustertest.Node("n2 cpu=4"))
				h.PutNode(clustertest.Node("bad cpu=4"))
				h.PutNamespace("other", nil)
				h.PutBudget([]string{"all", "app=web", "min=1"})
				h.AdmitPod(clustertest.Pod("bad cpu=3 label=app=bad"))
				h.run()
				if anew {
					h.sched = New(h.State)
					h.sched.taking = taking
				}
				for i := range 5 {
					h.AdmitPod(clustertest.Pod(fmt.Sprintf("p%d cpu=1 label=app=web", i)))
				}
				refused := h.run()
				if len(refused) > 0 {
					t.Errorf("refused: %v", refused)
				}
				h.bound(t, 5)
				told := h.sched.Panics()
				if len(told) == 0 || told[0].Row == "" || told[0].Pod != "" || told[0].Value != "it breaks" || hits < wholeTries {
					t.Fatalf("%d hits, told: %+v", hits, told)
				}
				broken = false
				for range 3 {
					h.NowUnixNano += faultyNanos
					h.AdmitPod(clustertest.Pod(fmt.Sprintf("late%d cpu=1", h.NowUnixNano)))
					h.run()
				}
				if s := h.sched; len(s.faulty) > 0 || len(s.view.bare) > 0 || s.faultyNext != 0 || s.rebuilds != 0 {
					t.Errorf("let be: %v, %d barely, next at %d", s.faulty, len(s.view.bare), s.faultyNext)
				}
				(&world{harness: h}).checkViewOf(t.Fatalf)
			})
		}
	}
}

// TestNobodySleepsForARowThatPanics: a pod that finds no place because the view lacks a node is set aside, and has its place when the
// node is taken in, though nothing has changed.
func TestNobodySleepsForARowThatPanics(t *testing.T) {
	h, broken := newHarness(), true
	h.sched.taking = func(row any) {
		if n, ok := row.(*corev1.Node); ok && n.Name == "bad" && broken {
			panic("it breaks")
		}
	}
	h.PutNode(clustertest.Node("bad cpu=4"))
	h.AdmitPod(clustertest.Pod("p0 cpu=1"))
	h.run()
	if e, _ := h.State.View().Queue.Get("default/p0"); e.State != berthv1.QueueSetAside {
		t.Fatalf("%+v", e)
	}
	broken = false
	for range 10 {
		h.NowUnixNano += faultyNanos
		h.run()
	}
	h.bound(t, 1)
}

// bound fails unless so many of the pods p0, p1, ... have a node.
func (h *harness) bound(t *testing.T, want int) {
	t.Helper()
	for range 20 { // refused decisions are made again
		h.NowUnixNano += second
		h.run()
	}
	for i := range want {
		key := fmt.Sprintf("default/p%d", i)
		if p, _ := h.State.View().Pods.Get(key); p.Spec.NodeName == "" {
			e, _ := h.State.View().Queue.Get(key)
			t.Errorf("%s is not bound: %+v", key, e)
		}
	}
}

// TestRowsThatPanicAreNotTriedForEver: where nothing can be taken in the view is built anew so many times, and steps end.
func TestRowsThatPanicAreNotTriedForEver(t *testing.T) {
	h, hits := newHarness(), 0
	for i := range 3 * maxRebuilds {
		h.PutNode(clustertest.Node(fmt.Sprintf("n%d cpu=1", i)))
	}
	h.sched.taking = func(row any) {
		if n, ok := row.(*corev1.Node); ok && n.Name != "n0" {
			hits++
			panic("it breaks")
		}
	}
	h.AdmitPod(clustertest.Pod("p0 cpu=1"))
	h.run()
	h.bound(t, 1)
	if h.sched.rebuilds != maxRebuilds || hits > (3+maxRebuilds)*3*maxRebuilds {
		t.Errorf("built anew %d times, %d hits", h.sched.rebuilds, hits)
	}
}

// TestConfigurationThatPanicsIsNotTaken: the one before goes on, and a minute later it is tried again.
func TestConfigurationThatPanicsIsNotTaken(t *testing.T) {
	h, broken := newHarness(), false
	h.PutNode(clustertest.Node("n1 cpu=4"))
	h.run()
	before := h.sched.config
	h.sched.taking = func(row any) {
		if _, is := row.(*berthv1.SchedulerConfiguration); is && broken {
			panic("it breaks")
		}
	}
	broken = true
	h.Configure(func(s *berthv1.SchedulerConfigurationSpec) { s.Reservation.AfterSeconds = new(int32(1)) })
	h.AdmitPod(clustertest.Pod("p0 cpu=1"))
	h.run()
	if h.bound(t, 1); h.sched.config != before {
		t.Error("it was taken")
	}
	broken = false
	h.NowUnixNano += 2 * faultyNanos
	h.AdmitPod(clustertest.Pod("p1 cpu=1"))
	h.run()
	if h.bound(t, 2); h.sched.config != h.State.View().SchedulerConfig() {
		t.Error("it was not tried again")
	}
}
