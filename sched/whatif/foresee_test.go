package whatif

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/sched"
	"github.com/berth-dev/berth/sched/clustertest"
)

var asAdmin = Asker{User: "admin", Groups: []string{"system:masters"}}

// controlled is a pod that a controller would make again.
func controlled(spec string) *corev1.Pod {
	p := clustertest.Pod(spec)
	yes := true
	p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "rs", UID: "rs",
		Controller: &yes}}
	return p
}

// TestForeseeFollowsTheCascade: each victim's successor evicts the next, until one finds a free place; and the cluster
// is as it was. Victims without a grace period are gone at once, and are told of and replaced all the same.
func TestForeseeFollowsTheCascade(t *testing.T) {
	for _, grace := range []string{"grace=30", "grace=0"} {
		t.Run(grace, func(t *testing.T) { foreseeCascade(t, grace) })
	}
}

func foreseeCascade(t *testing.T, grace string) {
	cl := clustertest.New()
	for _, n := range []string{"n1 cpu=4 label=disk=ssd", "n2 cpu=3", "n3 cpu=2"} {
		cl.PutNode(clustertest.Node(n))
	}
	// The pod that is asked about fits n1 alone; what it evicts fits n2, and what that evicts fits n3.
	cl.AdmitPod(controlled("mid priority=5 cpu=3 node=n1 " + grace))
	cl.AdmitPod(controlled("low priority=1 cpu=2 node=n2 " + grace))
	before := cl.State.View().Digest()
	top := clustertest.Pod("top cpu=4 select=disk=ssd")
	top.Namespace, top.UID, top.Spec.PriorityClassName = "default", "uid-top", "top"
	setup := []fsm.Command{&fsm.CreatePriorityClass{Class: fsm.PriorityClassWire{Object: &schedulingv1.PriorityClass{
		ObjectMeta: metav1.ObjectMeta{Name: "top", UID: "top"}, Value: 100}}}}
	f, err := Foresee(t.Context(), cl.State.View(), asAdmin, setup, []*corev1.Pod{top})
	if err != nil {
		t.Fatal(err)
	}
	if cl.State.View().Digest() != before {
		t.Fatal("a what-if changed the state")
	}
	if p := f.Placements[0]; p.NominatedNode != "n1" || p.Priority != 100 || len(p.Victims) != 1 ||
		p.Victims[0].Key != "default/mid" || p.Victims[0].Priority != 5 || p.Victims[0].Node != "n1" {
		t.Fatalf("the pod itself: %+v", p)
	}
	if f.Depth != 2 || f.Cut || len(f.Successors) != 2 {
		t.Fatalf("depth %d, cut %v, %+v", f.Depth, f.Cut, f.Successors)
	}
	first, second := f.Successors[0], f.Successors[1]
	if first.Of.Key != "default/mid" || first.Of.Priority != 5 || first.Round != 1 || first.NominatedNode != "n2" ||
		len(first.Victims) != 1 {
		t.Errorf("in place of mid: %+v", first)
	}
	if second.Of.Key != "default/low" || second.Round != 2 || second.Node != "n3" {
		t.Errorf("in place of low: %+v", second)
	}
}

// TestForeseeWithoutControllers: nobody makes a victim again that has no controller, and a refused setup is the answer.
func TestForeseeWithoutControllers(t *testing.T) {
	cl := clustertest.New()
	cl.PutNode(clustertest.Node("n1 cpu=2"))
	cl.AdmitPod(clustertest.Pod("low priority=1 cpu=2 node=n1"))
	cl.Class(100, nil)
	top := clustertest.Pod("top cpu=2")
	top.Namespace, top.UID, top.Spec.PriorityClassName = "default", "uid-top", "p100"
	f, err := Foresee(t.Context(), cl.State.View(), asAdmin, nil, []*corev1.Pod{top})
	if err != nil || f.Depth != 1 || len(f.Successors) != 0 || f.Placements[0].NominatedNode != "n1" {
		t.Errorf("%+v, %v", f, err)
	}
	class := &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: "p100", UID: types.UID("other")}, Value: 3}
	if _, err := Foresee(t.Context(), cl.State.View(), asAdmin,
		[]fsm.Command{&fsm.CreatePriorityClass{Class: fsm.PriorityClassWire{Object: class}}}, nil); err == nil ||
		!strings.Contains(err.Error(), "already exists") {
		t.Errorf("a class that is there already: %v", err)
	}
}

// TestForeseeIsWhatHappens: a what-if says what the scheduler then does at the same revision.
func TestForeseeIsWhatHappens(t *testing.T) {
	cl := clustertest.New()
	for _, n := range []string{"n1 cpu=4", "n2 cpu=3", "n3 cpu=2"} {
		cl.PutNode(clustertest.Node(n))
	}
	for _, p := range []string{"a priority=1 cpu=2 node=n1", "b priority=2 cpu=2 node=n1", "c priority=1 cpu=3 node=n2",
		"d priority=9 cpu=1 node=n3"} {
		cl.AdmitPod(clustertest.Pod(p))
	}
	cl.Class(7, nil)
	var asked []*corev1.Pod
	for _, spec := range []string{"x cpu=2", "y cpu=1", "z cpu=9"} {
		p := clustertest.Pod(spec)
		p.Namespace, p.UID, p.Spec.PriorityClassName = "default", types.UID("uid-"+p.Name), "p7"
		asked = append(asked, p)
	}
	f, err := Foresee(t.Context(), cl.State.View(), asAdmin, nil, asked)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range asked {
		cl.Must(&fsm.AdmitPod{Pod: fsm.PodWire{Object: p.DeepCopy()}})
	}
	decider := sched.New(cl.State)
	for p := clustertest.Next(decider, cl.NowUnixNano, 1024); p != nil; p = clustertest.Next(decider, cl.NowUnixNano, 1024) {
		cl.Must(p.Command)
		decider.Settle(p)
	}
	for _, p := range f.Placements {
		pod, _ := cl.State.View().Pods.Get(p.Key)
		n, nominated := cl.State.View().Nominations.Get(p.Key)
		if pod.Spec.NodeName != p.Node || nominated != (p.NominatedNode != "") || nominated && n.Node != p.NominatedNode {
			t.Errorf("%s: foreseen %+v, became %q, nomination %+v", p.Key, p, pod.Spec.NodeName, n)
		}
		if nominated && !slices.EqualFunc(p.Victims, n.Victims,
			func(a Victim, b fsm.VictimRef) bool { return a.UID == b.UID }) {
			t.Errorf("%s: victims foreseen %v, became %v", p.Key, p.Victims, n.Victims)
		}
	}
}

// TestForeseeWaitsForWhoIsEnding: whoever is ending already is told of as that, is
// not counted as evicted, and is not replaced a second time.
func TestForeseeWaitsForWhoIsEnding(t *testing.T) {
	cl := clustertest.New()
	cl.PutNode(clustertest.Node("n1 cpu=4"))
	cl.AdmitPod(controlled("ending priority=-1 cpu=4 node=n1 grace=30"))
	cl.Must(&fsm.DeletePod{Key: "default/ending"})
	asked := clustertest.Pod("asked cpu=4")
	asked.Namespace, asked.UID = "default", "uid-asked"
	f, err := Foresee(t.Context(), cl.State.View(), asAdmin, nil, []*corev1.Pod{asked})
	if err != nil {
		t.Fatal(err)
	}
	if v := f.Placements[0].Victims; len(v) != 1 || !v[0].WaitedFor {
		t.Errorf("%+v", f.Placements[0])
	}
	if f.Depth != 0 || len(f.Successors) != 0 {
		t.Errorf("depth %d, successors %+v", f.Depth, f.Successors)
	}
}
