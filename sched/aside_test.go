package sched

import (
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/berth-dev/berth/api/berthv1"
	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/sched/clustertest"
)

// panicsAfter lets a decision panic every so many charges of work.
func (w *world) panicsAfter(charges int) {
	n := 0
	w.sched.meter.charged = func() {
		if n++; n%charges == 0 {
			panic(fmt.Sprintf("injected at charge %d", n))
		}
	}
}

// TestPanicSetsAside: wherever a decision panics, its pod is set aside and everybody else is served: no decision is
// refused, the view is that of the state, and when nothing panics any more those who were set aside find their places.
func TestPanicSetsAside(t *testing.T) {
	asides := 0
	rapid.Check(t, func(t *rapid.T) {
		nodes := rapid.IntRange(1, 5).Draw(t, "nodes")
		w := newTopologyWorld(t, nodes)
		w.relabels = true
		w.drawWork()
		w.Configure(func(s *berthv1.SchedulerConfigurationSpec) { s.Reservation.AfterSeconds = new(int32(1)) })
		w.panicsAfter(rapid.IntRange(5, 300).Draw(t, "charges"))
		for range rapid.IntRange(1, 8).Draw(t, "rounds") {
			w.happenAround(nodes)
			for p := w.step(8); p != nil; p = w.step(8) {
				told, set := len(w.sched.Panics()), len(asideIn(p.Command))
				if set > 0 && told == 0 && len(w.sched.asides) == 0 {
					t.Fatalf("%d pods are set aside and nothing panicked: %s", set, describe(p.Command))
				}
				asides += set
				refused := w.commit(p)
				if len(w.sched.faulty) > 0 { // charges within a row: what it is about is not known
					continue
				}
				if len(refused) > 0 {
					t.Fatalf("refused: %v of %s", refused, describe(p.Command))
				}
				w.checkView()
			}
		}
		w.sched.meter.charged = nil
		w.sched.Panics()
		for range 8 {
			w.NowUnixNano += 600 * second
			for p := w.step(8); p != nil; p = w.step(8) {
				w.commit(p)
				if len(w.sched.faulty) == 0 {
					w.checkView()
				}
			}
		}
		w.State.View().Queue.Scan("", func(key string, e *fsm.QueueEntry) bool {
			if e.State == berthv1.QueueSetAside {
				t.Fatalf("%s is still set aside: %+v", key, e)
			}
			return true
		})
	})
	if asides == 0 {
		t.Error("nobody was set aside")
	}
}

// TestPanicSpares: the pod that panics is told with its stack, and the others are bound by the same plan or the next.
func TestPanicSpares(t *testing.T) {
	h := newHarness()
	h.PutNode(clustertest.Node("n1 cpu=8"))
	for i := range 3 {
		h.AdmitPod(clustertest.Pod(fmt.Sprintf("p%d cpu=1 label=app=p%d select=x%d=", i, i, i)))
	}
	h.PutNode(clustertest.Node("n1 cpu=8 label=x0= label=x1= label=x2="))
	looks := 0
	h.sched.meter.charged = func() {
		if looks++; looks == 4 {
			panic("the second pod")
		}
	}
	h.run()
	panics := h.sched.Panics()
	if len(panics) != 1 || panics[0].Value != "the second pod" ||
		!strings.Contains(panics[0].Stack, "sched.(*meter).Spend") {
		t.Fatalf("told: %+v", panics)
	}
	bound := 0
	for i := range 3 {
		p, _ := h.State.View().Pods.Get(fmt.Sprintf("default/p%d", i))
		if p.Spec.NodeName != "" {
			bound++
		}
	}
	e, ok := h.State.View().Queue.Get(panics[0].Pod)
	if bound != 2 || !ok || e.State != berthv1.QueueSetAside || e.SetAside.Message != "the second pod" {
		t.Fatalf("%d are bound; %s: %+v", bound, panics[0].Pod, e)
	}
	h.NowUnixNano += 600 * second
	h.run()
	if p, _ := h.State.View().Pods.Get(panics[0].Pod); p.Spec.NodeName == "" {
		t.Error("it was not tried again")
	}
}
