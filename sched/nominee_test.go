package sched

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/api/berthv1"
	"github.com/berth-dev/berth/fsm"
)

// TestNomineeFindsRoomElsewhere (NM6, QU8): who waits for his victims is bound as soon as a node has room for which
// nobody has to go, whatever hid that from the group that he waits with.
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
		{name: "the node would have had room before, with evictions", pod: "high priority=5 cpu=4",
			before: []string{"n2 cpu=4"},
			node:   "n2 cpu=16"},
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

// TestNomineeIsNotForgotten (QU8, T5): what happens while it is decided that a pod goes on waiting for its victims
// counts, and a node that cannot take it any more holds it no longer.
func TestNomineeIsNotForgotten(t *testing.T) {
	for _, c := range []struct {
		name, pod string
		deciding  bool // the pod is being decided again when it happens
		node      string
		want      func(h *harness) bool
	}{
		{name: "a node comes", pod: "high priority=5 cpu=4", deciding: true, node: "n3 cpu=8 label=zone=c",
			want: func(h *harness) bool { return h.nodeOf("default/high") == "n3" }},
		{name: "its node is tainted", pod: "high priority=5 cpu=4", deciding: true,
			node: "n1 cpu=4 label=zone=a taint=team=x:NoSchedule",
			want: func(h *harness) bool { return h.nominatedTo("default/high") == "n2" }},
		{name: "its node is in no domain any more", pod: "high priority=5 cpu=4 label=app=x spread=zone:1:app=x",
			node: "n1 cpu=4", want: func(h *harness) bool { return h.nominatedTo("default/high") == "n2" }},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := newHarness()
			h.node(mkNode("n1 cpu=4 label=zone=a"))
			h.node(mkNode("n2 cpu=4 label=zone=b"))
			h.pod(mkPod("low node=n1 priority=0 cpu=4"))
			h.pod(mkPod("other node=n2 priority=1 cpu=4"))
			h.pod(mkPod(c.pod))
			h.run()
			if h.nominatedTo("default/high") != "n1" {
				t.Fatalf("it does not wait for its victims on n1")
			}
			h.now += 20 * second // past its backoff
			if c.deciding {
				pod, _ := h.state.View().Pods.Get("default/high")
				pod = pod.DeepCopy()
				pod.Spec.Tolerations = append(pod.Spec.Tolerations, corev1.Toleration{Key: "unrelated"})
				h.must(&fsm.UpdatePod{Pod: fsm.PodWire{Object: pod}})
				p := h.next(10)
				if p == nil || len(p.Command.Failures) != 1 {
					t.Fatalf("it is not decided that it goes on waiting: %+v", p)
				}
				h.node(mkNode(c.node))
				h.commit(p)
			} else {
				h.node(mkNode(c.node))
			}
			h.now += 600 * second // past its backoff
			h.run()
			if !c.want(h) {
				e, _ := h.state.View().Queue.Get("default/high")
				t.Fatalf("it is on %q, and promised %q: %+v", h.nodeOf("default/high"), h.nominatedTo("default/high"), e)
			}
		})
	}
}

// TestReservationIsNoPreemption: a pod for which room is only kept has not preempted, and may, although somebody is
// ending there.
func TestReservationIsNoPreemption(t *testing.T) {
	h := newHarness()
	h.configure(func(s *berthv1.SchedulerConfigurationSpec) { s.Reservation.AfterSeconds = ptr(int32(1)) })
	h.node(mkNode("n1 cpu=4"))
	h.pod(mkPod("low node=n1 priority=0 cpu=2"))
	h.pod(mkPod("higher node=n1 priority=9 cpu=2"))
	h.pod(mkPod("first priority=1 cpu=2"))
	h.run() // low ends for it
	h.pod(mkPod("high priority=5 cpu=4"))
	h.run()
	h.now += 30 * second
	h.run()
	if r := h.state.View().Reservation(); r == nil || r.Name != "high" {
		t.Fatalf("no room is kept for it: %+v", r)
	}
	h.remove("default/higher")
	h.run()
	if e, _ := h.state.View().Queue.Get("default/high"); e.State != berthv1.QueueNominated {
		t.Fatalf("it does not wait for the one that is ending: %+v", e)
	}
}

// TestReservationIsTriedAtOnce: what keeps the room from those who were woken for it lets its own pod have it.
func TestReservationIsTriedAtOnce(t *testing.T) {
	h := newHarness()
	h.configure(func(s *berthv1.SchedulerConfigurationSpec) { s.Reservation.AfterSeconds = ptr(int32(100)) })
	h.node(mkNode("n1 cpu=2"))
	h.pod(mkPod("low node=n1 priority=0 cpu=2"))
	for _, name := range []string{"first", "second", "third"} {
		h.pod(mkPod(name + " priority=5 cpu=2"))
	}
	h.run() // low ends for the first
	h.now += 400 * second
	first, _ := h.state.View().Pods.Get("default/first")
	h.must(&fsm.ReleaseNominations{Pods: []fsm.PodRef{{Key: "default/first", UID: string(first.UID)}}})
	h.run()
	h.now += 20 * second
	h.run()
	nominated := 0
	h.state.View().Nominations.Scan("", func(_ string, n *fsm.Nomination) bool {
		if !n.Reserved {
			nominated++
		}
		return true
	})
	if nominated != 1 {
		t.Fatalf("%d pods wait for the one that is ending, and %+v has the room", nominated, h.state.View().Reservation())
	}
}

// nodeOf is the node that a pod is on, and nominatedTo that which it is nominated to.
func (h *harness) nodeOf(key string) string {
	pod, _ := h.state.View().Pods.Get(key)
	return pod.Spec.NodeName
}

func (h *harness) nominatedTo(key string) string {
	if n, ok := h.state.View().Nominations.Get(key); ok && !n.Reserved {
		return n.Node
	}
	return ""
}

// TestRelabelledOntoItsOwnTerm (AF2): a pod that is relabelled so that it matches its own terms is the first of its
// kind, though its shape was refused before.
func TestRelabelledOntoItsOwnTerm(t *testing.T) {
	h := newHarness()
	h.node(mkNode("n1 cpu=4 label=" + hostKey + "=n1 label=" + zoneKey + "=a"))
	h.pod(mkPod("p cpu=1 label=app=db near=" + hostKey + ":app=web near=" + zoneKey + ":app=web spread=" + hostKey +
		":1:app=db:soft"))
	h.run()
	old, _ := h.state.View().Pods.Get("default/p")
	pod := old.DeepCopy()
	pod.Labels = map[string]string{"app": "web"}
	h.must(&fsm.UpdatePod{Pod: fsm.PodWire{Object: pod}})
	h.run()
	if h.nodeOf("default/p") != "n1" {
		e, _ := h.state.View().Queue.Get("default/p")
		t.Fatalf("it is refused: %+v", e.Diagnosis)
	}
}

// TestFirstOfItsKindWhenOneLeaves (AF2, QU8): a pod that may be the first of its kind once those that are there have
// gone is tried again when one begins to leave: then fewer nodes have victims of its own.
func TestFirstOfItsKindWhenOneLeaves(t *testing.T) {
	h := newHarness()
	h.configure(func(s *berthv1.SchedulerConfigurationSpec) { s.Preemption.MaxOtherNodes = ptr(int32(1)) })
	for _, n := range []string{"n1 cpu=4 label=disk=ssd", "n2 cpu=1", "n3 cpu=1"} {
		h.node(mkNode(n + " label=" + hostKey + "=" + n[:2]))
	}
	h.pod(mkPod("a node=n1 cpu=4 label=app=web"))
	h.pod(mkPod("b node=n2 cpu=1 label=app=web"))
	h.pod(mkPod("c node=n3 cpu=1 label=app=web"))
	h.pod(mkPod("p priority=5 cpu=1 label=app=web select=disk=ssd near=" + hostKey + ":app=web"))
	h.run()
	if h.nominatedTo("default/p") != "" {
		t.Fatal("pods of two other nodes are evicted for it")
	}
	h.now += 20 * second
	h.must(&fsm.DeletePod{Key: "default/b"})
	h.run()
	if h.nominatedTo("default/p") != "n1" {
		e, _ := h.state.View().Queue.Get("default/p")
		t.Fatalf("it sleeps: %+v", e)
	}
}
