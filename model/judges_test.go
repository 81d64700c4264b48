package model

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// judgesTopology has nodes with so many pods, each of a kind of its own.
func judgesTopology(pods int) *Topology {
	t := NewTopology()
	for i := range 10 {
		t.PutNode(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("node-", i), Labels: map[string]string{"zone": fmt.Sprint(i % 3)}}})
	}
	for i := range pods {
		t.AddPod(fmt.Sprint("node-", i%10), judgesClass(fmt.Sprint("kind-", i), nil), false)
	}
	return t
}

func judgesClass(kind string, selector *metav1.LabelSelector) *Class {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p", Labels: map[string]string{"kind": kind}}}
	if selector != nil {
		pod.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{
			{TopologyKey: "zone", LabelSelector: selector}}}}
	}
	var classes Classes
	return classes.Of(pod)
}

func notKind(kind string) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "kind", Operator: metav1.LabelSelectorOpNotIn, Values: []string{kind}}}}
}

// TestManyJudges: a thousand classes whose terms are about everybody are judged in
// turns without being counted anew, as long as what they hold is little.
func TestManyJudges(t *testing.T) {
	const classes = 1000
	topo := judgesTopology(50)
	var all []*Class
	for i := range classes {
		all = append(all, judgesClass("waiting", notKind(fmt.Sprint("no-", i))))
		topo.Judge(all[i])
	}
	before := topo.made
	for _, c := range all {
		if f := topo.Judge(c).Fails("node-0"); f == 0 {
			t.Fatal("all pods are in the way, and the node is not barred")
		}
	}
	if made := topo.made - before; made > 0 {
		t.Errorf("%d terms were counted anew", made)
	}
	if held := topo.judges.bytes; held > maxJudgeBytes {
		t.Errorf("%d bytes are held", held)
	}
}

// TestJudgesAreBoundedByBytes: classes whose terms are about all of thousands of
// kinds go, those unused for the longest time first, and are right when they are
// asked for again.
func TestJudgesAreBoundedByBytes(t *testing.T) {
	topo := judgesTopology(3000)
	first := judgesClass("waiting", notKind("first"))
	for i := range 3000 {
		topo.Judge(judgesClass("waiting", notKind(fmt.Sprint("no-", i))))
		if i%100 == 0 && topo.Judge(first).Fails("node-3") == 0 {
			t.Fatal("all pods are in the way, and the node is not barred")
		}
		if held := topo.judges.bytes; held > maxJudgeBytes {
			t.Fatalf("%d bytes are held", held)
		}
	}
	if n := len(topo.judges.by); n < 100 || n > 2500 {
		t.Errorf("%d judges are kept", n)
	}
	if _, ok := topo.judges.by[first.Signature]; !ok {
		t.Error("one that was used all the time has gone")
	}
	for i := range 3000 {
		topo.RemovePod(fmt.Sprint("node-", i%10), judgesClass(fmt.Sprint("kind-", i), nil), false)
	}
	for i := range 3000 {
		if topo.Judge(judgesClass("waiting", notKind(fmt.Sprint("no-", i)))).Fails("node-3") != 0 {
			t.Fatal("nobody is in the way, and the node is barred")
		}
	}
	for topo.judges.oldest != nil {
		topo.dismiss(topo.judges.oldest)
	}
	topo.sweep()
	if topo.judges.bytes != 0 || len(topo.matching.byID) != 0 {
		t.Errorf("without judges %d bytes are held, and %d counters are there", topo.judges.bytes, len(topo.matching.byID))
	}
}

// TestAPodIsCountedBySoManyTerms: however many classes with terms about everybody
// were judged, a pod that comes costs a bounded number of counts.
func TestAPodIsCountedBySoManyTerms(t *testing.T) {
	topo := judgesTopology(50)
	for i := range 5000 {
		topo.Judge(judgesClass("waiting", notKind(fmt.Sprint("no-", i))))
	}
	before := topo.Work()
	topo.AddPod("node-0", judgesClass("kind-0", nil), false)
	if did := topo.Work() - before; did > maxLinks {
		t.Errorf("a pod that came cost %d counts", did)
	}
	if n := len(topo.judges.by); n < maxLinks/2 {
		t.Errorf("only %d judges are kept", n)
	}
}

// TestATermWithALabelCostsThoseWhoHaveIt: whom a term is about is not looked for
// among all kinds of pods, but among those with the label that it demands.
func TestATermWithALabelCostsThoseWhoHaveIt(t *testing.T) {
	const kinds = 5000
	topo := judgesTopology(kinds)
	label := func(kind string) *metav1.LabelSelector {
		return &metav1.LabelSelector{MatchLabels: map[string]string{"kind": kind}}
	}
	topo.Judge(judgesClass("waiting", label("kind-1"))) // the first finds who has the label
	for i := range 100 {
		before := topo.Work()
		if topo.Judge(judgesClass("waiting", label(fmt.Sprint("kind-", i)))).Fails(fmt.Sprint("node-", i%10)) == 0 {
			t.Fatalf("kind-%d is there, and does not keep the pod away", i)
		}
		if did := topo.Work() - before; did > 100 {
			t.Fatalf("to be judged for the first time cost %d counts", did)
		}
	}
}

// TestNominationsAreCountedOnce: a class of a priority that was not asked about
// before costs the nominations that its terms are about, and no other.
func TestNominationsAreCountedOnce(t *testing.T) {
	const nominations = 5000
	topo := judgesTopology(10)
	for i := range nominations {
		topo.Nominate(fmt.Sprint("node-", i%10), judgesClass(fmt.Sprint("coming-", i), nil), int32(i%300))
	}
	c := judgesClass("waiting", &metav1.LabelSelector{MatchLabels: map[string]string{"kind": "coming-7"}})
	topo.Judge(c)
	for i := range 20 {
		before, at := topo.Work(), *c
		at.Priority = int32(i)
		at.Signature += fmt.Sprint(i)
		if got, want := topo.Judge(&at).Fails("node-7") != 0, i <= 7; got != want {
			t.Fatalf("priority %d is kept off: %t", i, got)
		}
		if did := topo.Work() - before; did > 100 {
			t.Fatalf("%d counts for a priority", did)
		}
	}
}
