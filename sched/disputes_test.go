package sched

import (
	"testing"

	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/model"
	"github.com/berth-dev/berth/sched/clustertest"
)

// TestDisputes: whatever the view has wrong of a node, the second refusal of the same decision has it read anew, and
// the third would be told.
func TestDisputes(t *testing.T) {
	for _, wrong := range []struct {
		what string
		do   func(v *View)
	}{
		{"a pod that is not known", func(v *View) {
			for uid, p := range v.pods {
				v.removePod(p)
				delete(v.pods, uid)
			}
		}},
		{"amounts of a node", func(v *View) {
			n := &v.nodes[v.byName["n1"]]
			n.alloc.MilliCPU *= 2
			v.touch(n.slot)
		}},
		{"usage", func(v *View) {
			n := &v.nodes[v.byName["n1"]]
			n.usage.Requested.MilliCPU = 0
			v.touch(n.slot)
		}},
		{"a nomination", func(v *View) {
			for _, h := range v.noms {
				v.unplace(h)
			}
		}},
	} {
		t.Run(wrong.what, func(t *testing.T) {
			h := newHarness()
			h.PutNode(clustertest.Node("n1 cpu=4"))
			h.AdmitPod(clustertest.Pod("there priority=0 cpu=2 node=n1"))
			h.AdmitPod(clustertest.Pod("high priority=10 cpu=3"))
			h.run() // it is nominated, and waits
			h.AdmitPod(clustertest.Pod("asks priority=10 cpu=1 never"))
			h.sched.followAll()
			wrong.do(h.sched.view)
			refused := 0
			for range 5 {
				p := h.next(8)
				if p == nil {
					break
				}
				r := h.Must(p.Command)
				refused += len(r.Plan.Refused)
				h.sched.Refused(p, r.Plan.Refused)
				h.sched.Settle(p)
				h.NowUnixNano += 60 * second
			}
			if refused != rereadAt {
				t.Errorf("refused %d times, want %d", refused, rereadAt)
			}
			if told := h.sched.Disagreements(); len(told) > 0 {
				t.Errorf("told: %v", told)
			}
			(&world{harness: h}).checkViewOf(func(format string, values ...any) { t.Errorf(format, values...) })
		})
	}
}

// TestDisagreement: what reading the node anew does not mend has everything read anew, and is told.
func TestDisagreement(t *testing.T) {
	h := newHarness()
	h.PutNode(clustertest.Node("n1 cpu=4"))
	h.AdmitPod(clustertest.Pod("asks cpu=1"))
	h.sched.followAll()
	for i := range 4 {
		f := &assumption{uid: "uid-asks", key: "default/asks", kind: assumeBind, node: "n1",
			class: model.ClassOf(clustertest.Pod("asks cpu=1"))}
		p := &Plan{Command: &fsm.ApplyPlan{}, assumptions: []*assumption{f}}
		h.sched.Refused(p, []fsm.PlanRefusal{{Key: f.key, UID: "uid-asks", Reason: "because"}})
		before := h.sched.view
		h.sched.seen, h.sched.meter.left = glimpse{state: h.State.View(), nowNano: h.NowUnixNano}, stepWork
		h.sched.lookUp()
		h.sched.lookAway()
		told := h.sched.Disagreements()
		if want := i+1 >= reloadAt; (len(told) == 1) != want {
			t.Errorf("refusal %d: told %v", i+1, told)
		}
		if want := i+1 == reloadAt; (h.sched.view != before) != want {
			t.Errorf("refusal %d: everything is read anew: %v", i+1, !want)
		}
	}
}
