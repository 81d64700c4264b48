package sched

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/api/berthv1"
	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/model"
	"github.com/berth-dev/berth/sched/clustertest"
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
			h.PutNode(clustertest.Node("n1 cpu=4 label=" + hostKey + "=n1 label=zone=a"))
			h.AdmitPod(clustertest.Pod("low " + full))
			for i, n := range c.before {
				h.PutNode(clustertest.Node(n))
				h.AdmitPod(clustertest.Pod([]string{"other node=n2 priority=1 cpu=4"}[i])) // n1 is the cheaper one
			}
			h.AdmitPod(clustertest.Pod(c.pod))
			p := h.sched.Step(h.NowUnixNano, 10)
			if p == nil || len(p.Command.Preemptions) != 1 {
				t.Fatalf("nobody is preempted for it: %+v", p)
			}
			if c.while {
				h.PutNode(clustertest.Node(c.node))
			}
			h.commit(p)
			if !c.while {
				h.NowUnixNano += 20 * second // one whom its own nomination woke looks again
				h.run()
				if e, _ := h.State.View().Queue.Get("default/high"); e.State != berthv1.QueueNominated {
					t.Fatalf("it does not wait for its victims: %+v", e)
				}
				h.PutNode(clustertest.Node(c.node))
			}
			h.NowUnixNano += 600 * second // past its backoff
			h.run()
			if pod, _ := h.State.View().Pods.Get("default/high"); pod.Spec.NodeName != "n2" {
				e, _ := h.State.View().Queue.Get("default/high")
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
			h.PutNode(clustertest.Node("n1 cpu=4 label=zone=a"))
			h.PutNode(clustertest.Node("n2 cpu=4 label=zone=b"))
			h.AdmitPod(clustertest.Pod("low node=n1 priority=0 cpu=4"))
			h.AdmitPod(clustertest.Pod("other node=n2 priority=1 cpu=4"))
			h.AdmitPod(clustertest.Pod(c.pod))
			h.run()
			if h.nominatedTo("default/high") != "n1" {
				t.Fatalf("it does not wait for its victims on n1")
			}
			h.NowUnixNano += 20 * second // past its backoff
			if c.deciding {
				pod, _ := h.State.View().Pods.Get("default/high")
				pod = pod.DeepCopy()
				pod.Spec.Tolerations = append(pod.Spec.Tolerations, corev1.Toleration{Key: "unrelated"})
				h.Must(&fsm.UpdatePod{Pod: fsm.PodWire{Object: pod}})
				p := h.next(10)
				if p == nil || len(p.Command.Failures) != 1 {
					t.Fatalf("it is not decided that it goes on waiting: %+v", p)
				}
				h.PutNode(clustertest.Node(c.node))
				h.commit(p)
			} else {
				h.PutNode(clustertest.Node(c.node))
			}
			h.NowUnixNano += 600 * second // past its backoff
			h.run()
			if !c.want(h) {
				e, _ := h.State.View().Queue.Get("default/high")
				t.Fatalf("it is on %q, and promised %q: %+v", h.nodeOf("default/high"), h.nominatedTo("default/high"), e)
			}
		})
	}
}

// TestReservationIsNoPreemption: a pod for which room is only kept has not preempted, and may, although somebody is
// ending there.
func TestReservationIsNoPreemption(t *testing.T) {
	h := newHarness()
	h.Configure(func(s *berthv1.SchedulerConfigurationSpec) { s.Reservation.AfterSeconds = ptr(int32(1)) })
	h.PutNode(clustertest.Node("n1 cpu=4"))
	h.AdmitPod(clustertest.Pod("low node=n1 priority=0 cpu=2"))
	h.AdmitPod(clustertest.Pod("higher node=n1 priority=9 cpu=2"))
	h.AdmitPod(clustertest.Pod("first priority=1 cpu=2"))
	h.run() // low ends for it
	h.AdmitPod(clustertest.Pod("high priority=5 cpu=4"))
	h.run()
	h.NowUnixNano += 30 * second
	h.run()
	if r := h.State.View().Reservation(); r == nil || r.Name != "high" {
		t.Fatalf("no room is kept for it: %+v", r)
	}
	h.Remove("default/higher")
	h.run()
	if e, _ := h.State.View().Queue.Get("default/high"); e.State != berthv1.QueueNominated {
		t.Fatalf("it does not wait for the one that is ending: %+v", e)
	}
}

// TestReservationIsTriedAtOnce: what keeps the room from those who were woken for it lets its own pod have it.
func TestReservationIsTriedAtOnce(t *testing.T) {
	h := newHarness()
	h.Configure(func(s *berthv1.SchedulerConfigurationSpec) { s.Reservation.AfterSeconds = ptr(int32(100)) })
	h.PutNode(clustertest.Node("n1 cpu=2"))
	h.AdmitPod(clustertest.Pod("low node=n1 priority=0 cpu=2"))
	for _, name := range []string{"first", "second", "third"} {
		h.AdmitPod(clustertest.Pod(name + " priority=5 cpu=2"))
	}
	h.run() // low ends for the first
	h.NowUnixNano += 400 * second
	first, _ := h.State.View().Pods.Get("default/first")
	h.Must(&fsm.ReleaseNominations{Pods: []fsm.PodRef{{Key: "default/first", UID: string(first.UID)}}})
	h.run()
	h.NowUnixNano += 20 * second
	h.run()
	nominated := 0
	h.State.View().Nominations.Scan("", func(_ string, n *fsm.Nomination) bool {
		if !n.Reserved {
			nominated++
		}
		return true
	})
	if nominated != 1 {
		t.Fatalf("%d pods wait for the one that is ending, and %+v has the room", nominated, h.State.View().Reservation())
	}
}

// TestReservationHidesNothing: one for which room is kept sees what came free there while it was decided about.
func TestReservationHidesNothing(t *testing.T) {
	h := newHarness()
	h.Configure(func(s *berthv1.SchedulerConfigurationSpec) { s.Reservation.AfterSeconds = ptr(int32(1)) })
	h.PutNode(clustertest.Node("n1 cpu=4"))
	h.AdmitPod(clustertest.Pod("low node=n1 priority=0 cpu=2"))
	h.AdmitPod(clustertest.Pod("higher node=n1 priority=9 cpu=2"))
	h.AdmitPod(clustertest.Pod("high priority=5 cpu=4"))
	h.run()
	h.NowUnixNano += 30 * second
	h.run()
	if r := h.State.View().Reservation(); r == nil || r.Name != "high" {
		t.Fatalf("no room is kept for it: %+v", r)
	}
	pod, _ := h.State.View().Pods.Get("default/high")
	pod = pod.DeepCopy()
	pod.Spec.Tolerations = append(pod.Spec.Tolerations, corev1.Toleration{Key: "unrelated"})
	h.Must(&fsm.UpdatePod{Pod: fsm.PodWire{Object: pod}})
	h.NowUnixNano += 20 * second // past its backoff
	p := h.next(10)
	if p == nil || len(p.Command.Failures) != 1 {
		t.Fatalf("it is not decided that it goes on waiting: %+v", p)
	}
	h.Remove("default/higher")
	h.commit(p)
	h.NowUnixNano += 20 * second
	h.run()
	if on := h.nominatedTo("default/high"); on != "n1" {
		e, _ := h.State.View().Queue.Get("default/high")
		t.Fatalf("it does not preempt: %+v", e)
	}
}

// nodeOf is the node that a pod is on, and nominatedTo that which it is nominated to.
func (h *harness) nodeOf(key string) string {
	pod, _ := h.State.View().Pods.Get(key)
	return pod.Spec.NodeName
}

func (h *harness) nominatedTo(key string) string {
	if n, ok := h.State.View().Nominations.Get(key); ok && !n.Reserved {
		return n.Node
	}
	return ""
}

// TestRelabelledOntoItsOwnTerm (AF2): a pod that is relabelled so that it matches its own terms is the first of its
// kind, though its shape was refused before.
func TestRelabelledOntoItsOwnTerm(t *testing.T) {
	h := newHarness()
	h.PutNode(clustertest.Node("n1 cpu=4 label=" + hostKey + "=n1 label=" + zoneKey + "=a"))
	h.AdmitPod(clustertest.Pod("p cpu=1 label=app=db near=" + hostKey + ":app=web near=" + zoneKey + ":app=web spread=" + hostKey +
		":1:app=db:soft"))
	h.run()
	old, _ := h.State.View().Pods.Get("default/p")
	pod := old.DeepCopy()
	pod.Labels = map[string]string{"app": "web"}
	h.Must(&fsm.UpdatePod{Pod: fsm.PodWire{Object: pod}})
	h.run()
	if h.nodeOf("default/p") != "n1" {
		e, _ := h.State.View().Queue.Get("default/p")
		t.Fatalf("it is refused: %+v", e.Diagnosis)
	}
}

// TestFirstOfItsKindWhenOneLeaves (AF2, QU8): a pod that may be the first of its kind once those that are there have
// gone is tried again when one begins to leave: then fewer nodes have victims of its own.
func TestFirstOfItsKindWhenOneLeaves(t *testing.T) {
	h := newHarness()
	h.Configure(func(s *berthv1.SchedulerConfigurationSpec) { s.Preemption.MaxOtherNodes = ptr(int32(1)) })
	for _, n := range []string{"n1 cpu=4 label=disk=ssd", "n2 cpu=1", "n3 cpu=1"} {
		h.PutNode(clustertest.Node(n + " label=" + hostKey + "=" + n[:2]))
	}
	h.AdmitPod(clustertest.Pod("a node=n1 cpu=4 label=app=web"))
	h.AdmitPod(clustertest.Pod("b node=n2 cpu=1 label=app=web"))
	h.AdmitPod(clustertest.Pod("c node=n3 cpu=1 label=app=web"))
	h.AdmitPod(clustertest.Pod("p priority=5 cpu=1 label=app=web select=disk=ssd near=" + hostKey + ":app=web"))
	h.run()
	if h.nominatedTo("default/p") != "" {
		t.Fatal("pods of two other nodes are evicted for it")
	}
	h.NowUnixNano += 20 * second
	h.Must(&fsm.DeletePod{Key: "default/b"})
	h.run()
	if h.nominatedTo("default/p") != "n1" {
		e, _ := h.State.View().Queue.Get("default/p")
		t.Fatalf("it sleeps: %+v", e)
	}
}

// TestNobodyGoesForRoomThatMayComeBack (PR17): who finds no room only because of what is not settled waits until it is,
// and somebody is evicted for him only then.
func TestNobodyGoesForRoomThatMayComeBack(t *testing.T) {
	for _, c := range []struct {
		name, first, pod string
		lost             bool
		bound, nominated string
	}{
		{name: "the room is taken", first: "first priority=9 cpu=4", pod: "high priority=5 cpu=4", nominated: "n1"},
		{name: "the decision is lost", first: "first priority=9 cpu=4", pod: "high priority=5 cpu=4", lost: true, bound: "n2"},
		{name: "it keeps others away", first: "first priority=9 cpu=1 label=app=web far=" + hostKey + ":app=web",
			pod: "high priority=5 cpu=1 label=app=web", nominated: "n1"},
		{name: "it would have kept others away", first: "first priority=9 cpu=1 label=app=web far=" + hostKey + ":app=web",
			pod: "high priority=5 cpu=1 label=app=web", lost: true, bound: "n2"},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := newHarness()
			h.PutNode(clustertest.Node("n1 cpu=4 label=" + hostKey + "=n1"))
			h.PutNode(clustertest.Node("n2 cpu=4 label=" + hostKey + "=n2"))
			h.AdmitPod(clustertest.Pod("low node=n1 priority=0 cpu=4"))
			h.AdmitPod(clustertest.Pod(c.first))
			before := h.sched.Step(h.NowUnixNano, 10)
			if before == nil || len(before.Command.Bindings) != 1 {
				t.Fatalf("the first is not placed: %+v", before)
			}
			h.AdmitPod(clustertest.Pod(c.pod))
			if p := h.sched.Step(h.NowUnixNano, 10); p != nil {
				t.Fatalf("it is decided before the first is settled: %s", describe(p.Command))
			}
			if c.lost {
				h.Remove("default/first")
				h.sched.Settle(before)
			} else {
				h.commit(before)
			}
			h.run()
			if got := h.nodeOf("default/high"); got != c.bound {
				t.Errorf("it is on %q, not on %q", got, c.bound)
			}
			if got := h.nominatedTo("default/high"); got != c.nominated {
				t.Errorf("it is nominated to %q, not to %q", got, c.nominated)
			}
		})
	}
}

// TestNomineeLooksAgainUnderOtherRules (QU8): who is preempted for by rules that are others by now looks again.
func TestNomineeLooksAgainUnderOtherRules(t *testing.T) {
	h := newHarness()
	spread := func(word string) {
		c, err := clustertest.Constraint(hostKey + ":1:-" + word)
		if err != nil {
			t.Fatal(err)
		}
		h.Configure(func(s *berthv1.SchedulerConfigurationSpec) {
			s.PodTopologySpread.DefaultingType = berthv1.SpreadList
			s.PodTopologySpread.DefaultConstraints = []corev1.TopologySpreadConstraint{c}
		})
	}
	spread("")
	h.PutNode(clustertest.Node("n1 cpu=4 label=" + hostKey + "=n1"))
	h.PutNode(clustertest.Node("n2 cpu=4 label=" + hostKey + "=n2"))
	h.AdmitPod(clustertest.Pod("low node=n1 priority=0 cpu=4"))
	h.AdmitPod(clustertest.Pod("web node=n2 priority=0 cpu=1 label=app=web"))
	h.PutService("web", map[string]string{"app": "web"})
	h.AdmitPod(clustertest.Pod("high priority=5 cpu=1 label=app=web"))
	p := h.sched.Step(h.NowUnixNano, 10)
	if p == nil || len(p.Command.Preemptions) != 1 {
		t.Fatalf("nobody is preempted for it: %+v", p)
	}
	spread(":soft")
	h.commit(p)
	h.NowUnixNano += 600 * second // past its backoff
	h.run()
	if got := h.nodeOf("default/high"); got != "n2" {
		e, _ := h.State.View().Queue.Get("default/high")
		t.Fatalf("it is on %q, %+v", got, e)
	}
}

// TestNomineesAreWoken (QU8): who is nominated, or was until now, looks again after what nominations, or the end of a
// node, hide from those who look for whom a change helps.
func TestNomineesAreWoken(t *testing.T) {
	for _, c := range []struct {
		name         string
		nodes, pods  []string
		then         func(h *harness)
		at, promised string // of the pod high in the end
	}{
		{
			name: "a pod comes to the domain in which their own nomination counts",
			nodes: []string{"n1 cpu=4 label=zone=a label=disk=x", "n2 cpu=1 label=zone=b label=disk=x",
				"n3 cpu=1 label=zone=a", "n4 cpu=4 label=zone=b"},
			pods: []string{"low node=n1 priority=0 cpu=4", "other node=n4 priority=0 cpu=4",
				"first priority=9 cpu=4 label=app=web select=zone=b",
				"high priority=5 cpu=1 label=app=web spread=zone:1:app=web select=disk=x"},
			then: func(h *harness) { h.AdmitPod(clustertest.Pod("web node=n3 priority=0 label=app=web")) },
			at:   "n2",
		},
		{
			name:  "their nomination ends that no victim of theirs held any more",
			nodes: []string{"n1 cpu=4 label=disk=x", "n2 cpu=2"},
			pods: []string{"v1 node=n1 priority=0 cpu=2", "v2 node=n1 priority=0 cpu=2", "low node=n2 priority=3 cpu=2",
				"high priority=5 cpu=2", "twin priority=5 cpu=2"},
			then: func(h *harness) {
				h.AdmitPod(clustertest.Pod("thief priority=9 cpu=2 select=disk=x"))
				h.Remove("default/" + h.victimOf("default/high"))
				h.run()
				if e, _ := h.State.View().Queue.Get("default/high"); h.nominatedTo("default/high") != "n1" || e.State != berthv1.QueueUnschedulable {
					t.Fatalf("it does not wait beside the victim of its twin: %+v", e)
				}
				h.NowUnixNano += 20 * second
				h.Must(&fsm.DeleteNode{Name: "n1"})
			},
			promised: "n2",
		},
		{
			name:  "a node goes, and with it a nomination that kept others out of its domain",
			nodes: []string{"n1 cpu=4 label=" + hostKey + "=x", "n2 cpu=1 label=" + hostKey + "=x"},
			pods: []string{"low node=n1 priority=0 cpu=4", "first priority=9 cpu=4 far=" + hostKey + ":app=web",
				"high priority=5 cpu=1 label=app=web"},
			then: func(h *harness) { h.Must(&fsm.DeleteNode{Name: "n1"}) },
			at:   "n2",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := newHarness()
			for _, n := range c.nodes {
				h.PutNode(clustertest.Node(n))
			}
			for _, p := range c.pods {
				h.AdmitPod(clustertest.Pod(p))
				h.run()
			}
			h.NowUnixNano += 20 * second
			c.then(h)
			h.NowUnixNano += 20 * second
			h.run()
			if at, promised := h.nodeOf("default/high"), h.nominatedTo("default/high"); at != c.at || promised != c.promised {
				e, _ := h.State.View().Queue.Get("default/high")
				t.Fatalf("it is on %q and promised %q, not on %q or promised %q: %+v", at, promised, c.at, c.promised, e)
			}
		})
	}
}

// victimOf is the name of the first pod that has to go for one.
func (h *harness) victimOf(key string) string {
	n, ok := h.State.View().Nominations.Get(key)
	if !ok || len(n.Victims) == 0 {
		return ""
	}
	_, name, _ := strings.Cut(n.Victims[0].Key, "/")
	return name
}

// TestNomineeIsWokenByAnotherOwner (TS12, QU8): default constraints are of those who have an owner.
func TestNomineeIsWokenByAnotherOwner(t *testing.T) {
	h := newHarness()
	c, err := clustertest.Constraint("zone:1:-")
	if err != nil {
		t.Fatal(err)
	}
	h.Configure(func(s *berthv1.SchedulerConfigurationSpec) {
		s.PodTopologySpread.DefaultingType = berthv1.SpreadList
		s.PodTopologySpread.DefaultConstraints = []corev1.TopologySpreadConstraint{c}
	})
	h.PutReplicaSet("web", &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}, 1)
	h.PutNode(clustertest.Node("n1 cpu=4 label=zone=a"))
	h.PutNode(clustertest.Node("n2 cpu=4"))
	h.AdmitPod(clustertest.Pod("low node=n1 priority=0 cpu=4"))
	h.AdmitPod(clustertest.Pod("high priority=5 cpu=1 label=app=web owner=web"))
	h.run()
	if h.nominatedTo("default/high") != "n1" {
		t.Fatal("it does not wait for its victim")
	}
	h.NowUnixNano += 20 * second
	old, _ := h.State.View().Pods.Get("default/high")
	pod := old.DeepCopy()
	pod.OwnerReferences = nil
	h.Must(&fsm.UpdatePod{Pod: fsm.PodWire{Object: pod}})
	h.run()
	if h.nodeOf("default/high") != "n2" {
		e, _ := h.State.View().Queue.Get("default/high")
		t.Fatalf("it sleeps: %+v", e)
	}
}

// TestNomineeWhoseVolumeIsTaken (T5): who waits for victims on a node, and counts on a volume there that another pod is given
// meanwhile, looks elsewhere at once.
func TestNomineeWhoseVolumeIsTaken(t *testing.T) {
	h := newHarness()
	mode := storagev1.VolumeBindingWaitForFirstConsumer
	h.PutObject(fsm.StorageClasses, &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "made"}, Provisioner: model.NoProvisioner, VolumeBindingMode: &mode})
	for name, zone := range map[string]string{"v1": "a", "v2": "b"} {
		h.PutObject(fsm.PersistentVolumes, newVolume(name, "1Gi", zone))
	}
	for _, name := range []string{"c1", "c2"} {
		h.PutObject(fsm.VolumeClaims, newClaim(name, "made", "1Gi", corev1.ReadWriteOnce))
	}
	h.PutNode(clustertest.Node("n1 cpu=4 label=" + zoneKey + "=a"))
	h.PutNode(clustertest.Node("n2 cpu=4 label=" + zoneKey + "=b"))
	h.PutNode(clustertest.Node("n3 cpu=1 label=" + zoneKey + "=a"))
	h.AdmitPod(clustertest.Pod("low node=n1 priority=0 cpu=4"))
	h.AdmitPod(clustertest.Pod("other node=n2 priority=1 cpu=4"))
	h.AdmitPod(claiming("c1", "high priority=5 cpu=4"))
	h.run()
	if on := h.nominatedTo("default/high"); on != "n1" {
		t.Fatalf("it waits for victims on %q", on)
	}
	h.NowUnixNano += 20 * second // past its backoff
	h.AdmitPod(claiming("c2", "taker priority=0 cpu=1"))
	h.run()
	if on := h.nodeOf("default/taker"); on != "n3" {
		t.Fatalf("the other pod is on %q", on)
	}
	if on := h.nominatedTo("default/high"); on != "n2" {
		t.Fatalf("it still waits for victims on %q", on)
	}
}

// TestNobodyGoesForARefusedBinding: who was to evict others, because an earlier decision of the plan took the room, finds it
// when that one is refused: nobody has to go.
func TestNobodyGoesForARefusedBinding(t *testing.T) {
	h := newHarness()
	mode := storagev1.VolumeBindingWaitForFirstConsumer
	h.PutObject(fsm.StorageClasses, &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "made"}, Provisioner: "somebody.else", VolumeBindingMode: &mode})
	h.PutObject(fsm.VolumeClaims, newClaim("c1", "made", "1Gi", corev1.ReadWriteOnce))
	h.PutNode(clustertest.Node("n1 cpu=4"))
	h.PutNode(clustertest.Node("n2 cpu=4"))
	h.AdmitPod(clustertest.Pod("low node=n2 priority=0 cpu=4"))
	h.AdmitPod(claiming("c1", "first priority=9 cpu=4"))
	h.AdmitPod(clustertest.Pod("second priority=5 cpu=4"))
	p := h.sched.Step(h.NowUnixNano, 10)
	if p == nil || len(p.Command.Bindings) != 1 || len(p.Command.Preemptions) != 1 {
		t.Fatalf("the plan is %+v", p)
	}
	h.commit(p) // the first waits for whoever makes its volume
	h.run()
	if on := h.nodeOf("default/second"); on != "n1" {
		t.Errorf("it is on %q, and promised %q", on, h.nominatedTo("default/second"))
	}
	if low, _ := h.State.View().Pods.Get("default/low"); low.DeletionTimestamp != nil {
		t.Error("somebody had to go for it")
	}
}

// TestRoomForWhoCouldEvictNobody (QU8): a node that grows wakes whom it had room for before, could they only have evicted
// those whom they need.
func TestRoomForWhoCouldEvictNobody(t *testing.T) {
	h := newHarness()
	h.PutNode(clustertest.Node("n1 cpu=4 label=zone=a"))
	h.AdmitPod(clustertest.Pod("needed node=n1 priority=0 cpu=4 label=app=db"))
	h.AdmitPod(clustertest.Pod("high priority=5 cpu=4 near=zone:app=db"))
	h.run()
	if e, _ := h.State.View().Queue.Get("default/high"); e.State != berthv1.QueueUnschedulable {
		t.Fatalf("it does not wait: %+v", e)
	}
	h.PutNode(clustertest.Node("n1 cpu=8 label=zone=a"))
	h.NowUnixNano += 20 * second
	h.run()
	if on := h.nodeOf("default/high"); on != "n1" {
		t.Errorf("it is on %q", on)
	}
}
