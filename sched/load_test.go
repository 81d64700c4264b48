package sched

import (
	"testing"

	"github.com/berth-dev/berth/sched/clustertest"
)

// TestLoadHoldsBack: a failure that hangs on an unsettled preemption is held back whether the view was loaded anew
// meanwhile or not: what the preemption is about is known from the plan, also when its victim is gone already.
func TestLoadHoldsBack(t *testing.T) {
	for _, anew := range []bool{false, true} {
		h := newHarness()
		h.PutNode(clustertest.Node("n1 pods=1"))
		h.AdmitPod(clustertest.Pod("victim priority=0 label=app=web grace=0 node=n1"))
		h.AdmitPod(clustertest.Pod("high priority=10"))
		p := h.next(1)
		h.Must(p.Command)
		if _, there := h.State.View().Pods.Get("default/victim"); there {
			t.Fatal("a victim without a grace period is still there")
		}
		h.AdmitPod(clustertest.Pod("near priority=10 near=kubernetes.io/hostname:app=web"))
		if anew {
			h.sched.broken = true
		}
		if q := h.next(8); q != nil {
			t.Errorf("loaded anew: %v: it does not wait for the plan under way: %s", anew, describe(q.Command))
		}
	}
}
