package sched

import (
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"pgregory.net/rapid"

	"github.com/berth-dev/berth/api/berthv1"
	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/sched/clustertest"
)

// TestOracleCrossNode: where rules between pods are in the way, who has to leave, on whatever nodes, costs exactly as
// much as the best of all sets of pods of lower priority; and the state machine takes the plan.
func TestOracleCrossNode(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := &world{harness: newHarness(), t: t}
		w.Configure(func(s *berthv1.SchedulerConfigurationSpec) {
			most := rapid.Int32Range(0, 3).Draw(t, "other nodes")
			s.Preemption.MaxOtherNodes = &most
		})
		for i := range rapid.IntRange(1, 3).Draw(t, "nodes") {
			w.PutNode(clustertest.Node(fmt.Sprintf("n%d cpu=%s mem=8Gi label=zone=%s label=host=n%d", i, w.pick("cpu", "2", "3", "4"),
				w.pick("zone", "a", "a", "b"), i)))
		}
		for range rapid.IntRange(0, 9).Draw(t, "pods") {
			spec := fmt.Sprintf("p%d priority=%s cpu=%s node=%s label=app=%s%s", w.Admitted,
				w.pick("priority", "0", "0", "1", "2", "9"),
				w.pick("cpu", "0", "500m", "1"), w.someNode(), w.pick("app", "web", "web", "db"),
				w.pick("start", "", " start=10", " start=20"))
			w.AdmitPod(clustertest.Pod(spec + w.pick("its far", "", "", "", " far=zone:app=new", " far=host:app=new", " far=host:app=db")))
		}
		if key, ok := w.somePod(); ok && rapid.Bool().Draw(t, "leaving") {
			w.Must(&fsm.DeletePod{Key: key})
		}
		w.AdmitPod(clustertest.Pod(fmt.Sprintf("x priority=5 cpu=%s label=app=new%s", w.pick("its cpu", "0", "1", "2"),
			w.pick("rules", "", " far=zone:app=web", " far=host:app=web", " far=zone:app=web far=host:app=db",
				" spread=zone:1:app=web", " spread=host:1:app=web",
				" near=zone:app=web", " near=host:app=db", " near=zone:app=db far=host:app=web",
				" spread=zone:1:app=db near=zone:app=web"))))
		ready := w.ready()
		o := newOracle(w.State.View(), budgetTable{})
		o.cross = true
		pod, _ := w.State.View().Pods.Get(ready[0].Key())
		want := o.decide(pod)
		p := w.step(8)
		if p == nil {
			t.Fatal("nothing was decided")
		}
		got := p.assumptions[0]
		if got.kind != want.kind || got.kind == assumeBind && got.node != want.node {
			t.Fatalf("got kind %d on %q, the oracle has %+v %v\n%s", got.kind, got.node, want, uidsOf(want.set.pods),
				describe(p.Command))
		}
		if got.kind == assumePreempt {
			w.compareAnywhere(o, pod, got, &want)
			w.explainsIt(pod, &p.Command.Preemptions[0])
		}
		if refused := w.commit(p); len(refused) > 0 {
			t.Fatalf("refused: %v\n%s", refused, describe(p.Command))
		}
		w.Confirm()
		w.NowUnixNano += 100 * second
		w.run()
		if stored, _ := w.State.View().Pods.Get(ready[0].Key()); got.kind == assumePreempt &&
			stored.Spec.NodeName != got.node {
			t.Fatalf("%s is on %q and was to go to %s", stored.Name, stored.Spec.NodeName, got.node)
		}
	})
}

// compareAnywhere holds a preemption against the oracle's, and every victim against the need for it.
func (w *world) compareAnywhere(o *oracle, pod *corev1.Pod, got *assumption, want *decision) {
	set := plainVictims{node: got.node}
	var gone []*plainPod
	for _, p := range o.pods {
		if slices.Contains(got.victims, p.obj.UID) {
			gone = append(gone, p)
			if !p.leaving {
				set.pods = append(set.pods, p)
			}
		}
	}
	at := slices.IndexFunc(o.nodes, func(n *corev1.Node) bool { return n.Name == got.node })
	if len(o.check(o.nodes[at], pod, gone...)) > 0 || !equallyCheap(set, want.set) {
		w.t.Fatalf("%s: evicting %v for a place on %s, the oracle has %v on %s", pod.Name, got.victims, got.node,
			uidsOf(want.set.pods), want.set.node)
	}
	for _, p := range set.pods {
		without := slices.DeleteFunc(slices.Clone(gone), func(q *plainPod) bool { return q == p })
		if len(o.check(o.nodes[at], pod, without...)) == 0 {
			w.t.Fatalf("%s need not go", p.obj.Name)
		}
	}
}

// explainsIt: Explain names the same victims as the decision.
func (w *world) explainsIt(pod *corev1.Pod, d *fsm.PreemptDecision) {
	for _, verdict := range explainAll(w.State.View(), pod) {
		if verdict.Node != d.Node {
			continue
		}
		var victims []string
		for _, v := range d.Victims {
			victims = append(victims, v.Key)
		}
		if told := slices.Concat(verdict.Victims, verdict.Ending); !slices.Equal(told, victims) {
			w.t.Fatalf("%s is told that on %s %v would go (%s), and %v do", pod.Name, d.Node, told, verdict.Preemption, victims)
		}
	}
}

// TestPropertyCrossNodePipeline is TestPipeline among pods that preempt and have rules about each other: plans under
// way, lost or overtaken, come to an end, and the view is that of the state.
func TestPropertyCrossNodePipeline(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := &world{harness: newHarness(), t: t}
		w.Configure(func(s *berthv1.SchedulerConfigurationSpec) {
			after := rapid.Int32Range(1, 300).Draw(t, "reserve after")
			s.Reservation.AfterSeconds = &after
		})
		nodes := rapid.IntRange(1, 4).Draw(t, "nodes")
		for i := range nodes {
			w.putZonedNode(i)
		}
		w.pipeline(nodes, w.happenAmongRuled)
		w.oneReservation()
	})
}

func (w *world) happenAmongRuled(nodes int) {
	switch rapid.IntRange(0, 7).Draw(w.t, "event") {
	case 0, 1, 2:
		w.AdmitPod(w.ruledPod())
	case 3:
		w.Confirm()
	case 4:
		if key, ok := w.somePod(); ok {
			w.Must(&fsm.DeletePod{Key: key})
		}
	case 5:
		w.putZonedNode(rapid.IntRange(0, nodes).Draw(w.t, "which"))
	case 6:
		if name := w.someNode(); w.State.View().Nodes.Len() > 1 {
			w.Must(&fsm.DeleteNode{Name: name})
		}
	case 7:
		if key, ok := w.somePod(); ok {
			w.end(key)
		}
	}
	w.NowUnixNano += 20 * second
}

func (w *world) putZonedNode(i int) {
	w.PutNode(clustertest.Node(fmt.Sprintf("n%d cpu=%s mem=8Gi label=zone=%s label=host=n%d", i, w.pick("cpu", "1", "2", "3"),
		w.pick("zone", "a", "a", "b"), i)))
}

func (w *world) ruledPod() *corev1.Pod {
	return clustertest.Pod(fmt.Sprintf("p%d priority=%s cpu=%s label=app=%s%s", w.Admitted, w.pick("priority", "0", "1", "2", "9"),
		w.pick("cpu", "0", "500m", "1", "2"),
		w.pick("app", "web", "db", "new"), w.pick("rules", "", "", " far=zone:app=web", " far=host:app=web",
			" far=host:app=new", " far=zone:app=db",
			" spread=zone:1:app=web", " spread=host:1:app=db", " near=zone:app=web", " near=host:app=db")))
}
