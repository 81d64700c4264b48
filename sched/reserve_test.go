package sched

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"pgregory.net/rapid"

	"github.com/berth-dev/berth/api/berthv1"
	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/sched/clustertest"
)

// TestPropertyReservation: whatever happens around a reservation, no plan that makes, renews or minds one is refused
// when nothing came between, steps come to an end, there is one at a time, and its pod waits.
func TestPropertyReservation(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		nodes := rapid.IntRange(1, 5).Draw(t, "nodes")
		w := newWorld(t, nodes)
		w.Configure(func(s *berthv1.SchedulerConfigurationSpec) {
			after := int32(1)
			s.Reservation.AfterSeconds = &after
		})
		for range rapid.IntRange(1, 12).Draw(t, "rounds") {
			w.happen(nodes)
			for turn := 0; ; turn++ {
				p := w.step(rapid.IntRange(1, 8).Draw(t, "max"))
				if p == nil {
					break
				}
				if refused := w.commit(p); len(refused) > 0 {
					t.Fatalf("refused: %v\n%s", refused, describe(p.Command))
				}
				if turn > 200 {
					t.Fatalf("steps do not come to an end:\n%s", describe(p.Command))
				}
			}
			w.oneReservation()
			w.checkView()
		}
	})
}

// TestNobodyIsRobbedInTheSamePlan (NM3): who is tried first though others have a higher priority, and goes on waiting, is not told so in
// the plan in which one of those takes its node: it would be refused, as it is tried again.
func TestNobodyIsRobbedInTheSamePlan(t *testing.T) {
	h := newHarness()
	h.Configure(func(s *berthv1.SchedulerConfigurationSpec) { s.Queue = berthv1.QueueFIFO })
	h.PutNode(clustertest.Node("n1 cpu=4"))
	h.AdmitPod(clustertest.Pod("low node=n1 priority=0 cpu=4"))
	h.AdmitPod(clustertest.Pod("first priority=1 cpu=4"))
	h.run() // low ends for it
	pod, _ := h.State.View().Pods.Get("default/first")
	pod = pod.DeepCopy()
	pod.Spec.Tolerations = append(pod.Spec.Tolerations, corev1.Toleration{Key: "unrelated"})
	h.Must(&fsm.UpdatePod{Pod: fsm.PodWire{Object: pod}})
	h.NowUnixNano += 20 * second // past its backoff
	h.AdmitPod(clustertest.Pod("high priority=5 cpu=4"))
	p := h.next(10)
	if p == nil || len(p.Command.Failures) != 1 {
		t.Fatalf("it is not decided that the first goes on waiting: %+v", p)
	}
	if refused := h.commit(p); len(refused) > 0 {
		t.Errorf("refused: %v\n%s", refused, describe(p.Command))
	}
	h.run()
	if on, first := h.nominatedTo("default/high"), h.nominatedTo("default/first"); on != "n1" || first != "" {
		t.Errorf("the one of higher priority is promised %q, the first %q", on, first)
	}
}

func (w *world) oneReservation() {
	v := w.State.View()
	reserved := 0
	v.Nominations.Scan("", func(key string, n *fsm.Nomination) bool {
		if !n.Reserved {
			return true
		}
		reserved++
		if r := v.Reservation(); r == nil || r.Key() != key {
			w.t.Fatalf("%s has a reservation that is not found", key)
		}
		return true
	})
	if reserved > 1 || reserved == 0 && v.Reservation() != nil {
		w.t.Fatalf("%d reservations", reserved)
	}
}
