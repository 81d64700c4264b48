package sched

import (
	"fmt"
	"strings"
	"testing"

	"github.com/berth-dev/berth/sched/clustertest"
)

// crowded has so many nodes that are full of pods that count for a constraint, and one who waits and has to evict.
func crowded(nodes int) *harness {
	h := newHarness()
	h.zoned(nodes, 5, "")
	h.fill(nodes, 2, "priority=0 cpu=16 label=app=web")
	h.AdmitPod(clustertest.Pod("high priority=10 cpu=8 label=app=web spread=" + zoneKey + ":5:app=web"))
	return h
}

// TestFollowsInParts: neither building the view nor following a hundred changes of nodes, nor settling a plan, makes a
// step longer than its work and one change more; the view comes out as one that is built at once.
func TestFollowsInParts(t *testing.T) {
	h := crowded(100)
	const work = 20 * workChange
	steps := func() (n int) {
		h.sched.stepWork = work
		for n = 1; h.sched.Step(h.NowUnixNano, 0) == nil && h.sched.Behind(); n++ {
			if over := -h.sched.meter.left; over > 10*workChange {
				t.Fatalf("step %d: %d more than its work", n, over)
			}
		}
		h.sched.stepWork = stepWork
		(&world{harness: h}).checkViewOf(t.Fatalf)
		return n
	}
	if n := steps(); n < 15 {
		t.Errorf("the view of 300 objects was built in %d steps", n)
	}
	for i := range 100 {
		h.PutNode(clustertest.Node(fmt.Sprintf("node-%d cpu=32 mem=64Gi pods=110 label=%s=node-%d label=%s=zone-%d label=new=", i, hostKey,
			i, zoneKey, i%4)))
	}
	if n := steps(); n < 5 {
		t.Errorf("100 changes were followed in %d steps", n)
	}
	for i := range 50 {
		h.AdmitPod(clustertest.Pod(fmt.Sprintf("small-%d priority=20 mem=1Mi", i)))
	}
	p := h.next(50)
	h.commit(p)
	if n := steps(); n < 3 {
		t.Errorf("%d decisions were settled in %d steps", p.Decisions, n)
	}
}

// TestOvertakenSearch: a search for victims that takes many steps comes to its end, whatever changes meanwhile for all
// nodes: it goes on with the state that it began with.
func TestOvertakenSearch(t *testing.T) {
	for _, nominated := range []bool{false, true} {
		h := crowded(60)
		if nominated { // what is out of sight for its sake counts in the constraint, and stays so until it is decided
			h.commit(h.next(1))
			h.Confirm()
			h.AdmitPod(clustertest.Pod("more priority=20 cpu=16 node=" + nominatedTo(h, "default/high")))
		}
		h.sched.followAll()
		h.sched.stepWork = 1000
		for steps := 1; ; steps++ {
			p := h.sched.Step(h.NowUnixNano, 10)
			if p != nil {
				if steps < 5 {
					t.Errorf("nominated %v: it took %d steps", nominated, steps)
				}
				if len(p.Command.Preemptions) != 1 {
					t.Errorf("nominated %v: %s", nominated, describe(p.Command))
				}
				if now := h.State.View().Revision(); p.Command.Revision >= now {
					t.Errorf("nominated %v: decided at revision %d, which is %d now", nominated, p.Command.Revision, now)
				}
				h.commit(p)
				break
			}
			if steps == 1000 {
				t.Fatalf("nominated %v: it begins anew for ever", nominated)
			}
			h.AdmitPod(clustertest.Pod(fmt.Sprintf("beside-%d priority=0 mem=1Mi label=app=web node=node-%d", steps, steps%60)))
		}
		h.sched.stepWork = stepWork
		(&world{harness: h}).checkViewOf(t.Fatalf)
	}
}

func nominatedTo(h *harness, key string) string {
	n, _ := h.State.View().Nominations.Get(key)
	return n.Node
}

// TestEndlessDecision: a pod whose decision is not made in two thousand steps is set aside, is told, and the next is
// tried.
func TestEndlessDecision(t *testing.T) {
	h := newHarness()
	h.zoned(decisionSteps+100, 3, "")
	h.AdmitPod(clustertest.Pod("slow priority=10 cpu=1"))
	h.sched.followAll()
	h.sched.stepWork = 1
	p := h.next(10)
	if len(p.Command.Failures) != 1 || p.Command.Failures[0].SetAside == nil ||
		!strings.Contains(p.Command.Failures[0].SetAside.Message, fmt.Sprintf("not made in %d steps", decisionSteps)) {
		t.Fatalf("%s", describe(p.Command))
	}
	h.commit(p)
	h.sched.stepWork = stepWork
	h.AdmitPod(clustertest.Pod("other cpu=2"))
	if p := h.next(10); len(p.Command.Bindings) != 1 {
		t.Errorf("%s", describe(p.Command))
	}
}
