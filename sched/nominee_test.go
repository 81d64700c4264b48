package sched

import (
	"testing"

	"github.com/berth-dev/berth/api/berthv1"
)

// TestNomineeFindsRoomElsewhere (NM6, QU8): who waits for his victims is bound as soon as a node has room for which nobody has
// to go, whatever hid that from the group that he waits with.
func TestNomineeFindsRoomElsewhere(t *testing.T) {
	const full = "node=n1 priority=0 cpu=4"
	for _, c := range []struct {
		name, pod string
		before    []string // nodes that are there beside n1
		// while: the node comes while the decision is on its way; otherwise when the victims were told to end.
		while bool
		node  string
	}{
		{name: "the node came while the preemption was decided", pod: "high priority=5 cpu=4", while: true, node: "n2 cpu=8"},
		{name: "the nominee's own affinity counts its nomination", node: "n2 cpu=8 label=" + hostKey + "=n2",
			pod: "high priority=5 cpu=4 label=app=web near=" + hostKey + ":app=web"},
		{name: "the nominee's own anti-affinity counts its nomination", node: "n2 cpu=8 label=zone=a",
			pod: "high priority=5 cpu=4 label=app=web far=zone:app=web"},
		{name: "the node would have had room before, with evictions", pod: "high priority=5 cpu=4", before: []string{"n2 cpu=4"},
			node: "n2 cpu=16"},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := newHarness()
			h.node(mkNode("n1 cpu=4 label=" + hostKey + "=n1 label=zone=a"))
			h.pod(mkPod("low " + full))
			for i, n := range c.before {
				h.node(mkNode(n))
				h.pod(mkPod([]string{"other node=n2 priority=1 cpu=4"}[i])) // n1 is the cheaper one
			}
			h.pod(mkPod(c.pod))
			p := h.sched.Step(h.now, 10)
			if p == nil || len(p.Command.Preemptions) != 1 {
				t.Fatalf("nobody is preempted for it: %+v", p)
			}
			if c.while {
				h.node(mkNode(c.node))
			}
			h.commit(p)
			if !c.while {
				h.now += 20 * second // one whom its own nomination woke looks again
				h.run()
				if e, _ := h.state.View().Queue.Get("default/high"); e.State != berthv1.QueueNominated {
					t.Fatalf("it does not wait for its victims: %+v", e)
				}
				h.node(mkNode(c.node))
			}
			h.now += 600 * second // past its backoff
			h.run()
			if pod, _ := h.state.View().Pods.Get("default/high"); pod.Spec.NodeName != "n2" {
				e, _ := h.state.View().Queue.Get("default/high")
				t.Fatalf("it is on %q, %+v", pod.Spec.NodeName, e)
			}
		})
	}
}
