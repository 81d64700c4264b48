package fsm

import (
	"bytes"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/api/berthv1"
	"github.com/berth-dev/berth/queue"
)

// countedWorld has a pod for each of so many kinds, and a namespace of a team.
func countedWorld(t failer, kinds int) *worstWorld {
	w := worstPlan{Nodes: 10, Zones: 3, Placed: kinds, Kinds: kinds, Namespaces: 1, Labels: 2, Recorded: true}.build(t)
	w.must(&PutNamespace{Create: true, Namespace: NamespaceWire{Object: &corev1.Namespace{
		ObjectMeta: metav1.ObjectMeta{Name: "team", Labels: map[string]string{"team": "1"}}}}})
	return w
}

// asking is a pod with terms about pods with labels that none has, which only a look
// at each of them shows.
func (w *worstWorld) asking(name string, terms int, namespaces *metav1.LabelSelector) *corev1.Pod {
	pod := w.pod(name, name, 0, 0, worstRules{})
	anti := &corev1.PodAntiAffinity{}
	for i := range terms {
		anti.RequiredDuringSchedulingIgnoredDuringExecution = append(anti.RequiredDuringSchedulingIgnoredDuringExecution, corev1.PodAffinityTerm{
			TopologyKey: "zone", NamespaceSelector: namespaces, LabelSelector: &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
				{Key: fmt.Sprintf("nobody-%d", i), Operator: metav1.LabelSelectorOpExists}}}})
	}
	pod.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: anti}
	return pod
}

// bindTo has a pod bound, and says why not.
func (w *worstWorld) bindTo(pod *corev1.Pod, node string) (refusal PlanRefusal) {
	rs := w.may(&ApplyPlan{Revision: w.state.View().Revision(), Bindings: []BindDecision{{Key: PodKey(pod.Namespace, pod.Name), UID: string(pod.UID), Node: node}}})
	if refused := rs[0].Plan.Refused; len(refused) > 0 {
		return refused[0]
	}
	return PlanRefusal{}
}

// TestRulesAreCountedInParts: where it takes long to count whom a pod's rules are
// about, entries do it in parts; meanwhile nothing is decided about the pod, which is
// told so, and then it is, and all that have its rules. A server that is restored in
// between comes to the same.
func TestRulesAreCountedInParts(t *testing.T) {
	w := countedWorld(t, 200)
	w.countsInParts(t, w.asking("first", 64, nil), w.asking("second", 64, nil))
}

// TestNodesAreAskedInParts is TestRulesAreCountedInParts where it takes long to ask all
// nodes whether they are domains. By the rules of before they are asked at once.
func TestNodesAreAskedInParts(t *testing.T) {
	w := worstPlan{Nodes: 2000, Zones: 3, Placed: 1, Kinds: 1, Namespaces: 1, Labels: 2, Where: 500, Recorded: true}.build(t)
	asking := func(name string) *corev1.Pod {
		pod := w.pod(name, "placed-0", 0, 0, worstRules{})
		pod.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: w.where()}}}
		pod.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{MaxSkew: 100, TopologyKey: "zone",
			WhenUnsatisfiable: corev1.DoNotSchedule, LabelSelector: &metav1.LabelSelector{MatchLabels: pod.Labels}}}
		return pod
	}
	w.countsInParts(t, asking("first"), asking("second"))
}

func (w *worstWorld) countsInParts(t *testing.T, first, second *corev1.Pod) {
	replica := NewState()
	restore := func() {
		var b bytes.Buffer
		if err := w.state.View().Write(&b); err != nil {
			t.Fatal(err)
		}
		if err := replica.Restore(&b); err != nil {
			t.Fatal(err)
		}
	}
	w.must(&AdmitPod{Pod: PodWire{Object: first}}, &AdmitPod{Pod: PodWire{Object: second}})
	if r := w.bindTo(first, "node-00000"); r.Reason != stillCounting || !r.Deferred {
		t.Fatalf("the first decision: %+v", r)
	}
	e, _ := w.state.View().Queue.Get("ns-0/first")
	if e.State != berthv1.QueueBackoff || e.Refusals != 0 || e.Diagnosis.Message != stillCounting || e.BackoffUntilUnixNano <= w.state.View().TimeUnixNano() {
		t.Fatalf("the entry of who waits for it: %+v", e)
	}
	pod, _ := w.state.View().Pods.Get("ns-0/first")
	if c := findCondition(&pod.Status, corev1.PodScheduled); c == nil || c.Message != stillCounting {
		t.Errorf("the pod is told: %+v", c)
	}
	parts := 0
	for ; w.state.View().WorkPending(); parts++ {
		if parts > 100 {
			t.Fatal("it never ends")
		}
		if parts%2 == 0 {
			restore()
		}
		began := w.state.live.countWork()
		entry := w.entry(&ApplyPlan{})
		w.index++
		for _, s := range []*State{w.state, replica} {
			if _, err := s.Apply(w.index, 1, entry); err != nil {
				t.Fatal(err)
			}
		}
		if work := w.state.live.countWork() - began; work > 2*maxCountAtOnce {
			t.Errorf("an entry counted %d units", work)
		}
		if is, want := replica.View().Digest(), w.state.View().Digest(); is != want {
			t.Fatalf("the replica that was restored differs after part %d", parts)
		}
	}
	if parts < 2 {
		t.Errorf("it took %d parts", parts)
	}
	for _, pod := range []*corev1.Pod{first, second} {
		before := w.state.live.countWork()
		if r := w.bindTo(pod, "node-00000"); r != (PlanRefusal{}) {
			t.Fatalf("%s once all is counted: %+v", pod.Name, r)
		}
		if work := w.state.live.countWork() - before; work > 5000 {
			t.Errorf("%s was counted for anew: %d units", pod.Name, work)
		}
	}
}

// countedLog is a log in which it is counted in parts whom rules are about.
func countedLog(t failer) [][]byte {
	w := countedWorld(t, 100)
	everywhere := &metav1.LabelSelector{MatchLabels: map[string]string{"team": "1"}}
	pods := []*corev1.Pod{w.asking("few", 8, nil), w.asking("many", 64, nil), w.asking("more", 63, everywhere), w.asking("again", 64, nil)}
	for _, pod := range pods {
		w.must(&AdmitPod{Pod: PodWire{Object: pod}})
	}
	for i := range 3 * len(pods) {
		w.bindTo(pods[i%len(pods)], w.nodeName(i))
		w.must(&ApplyPlan{})
		w.must(&ApplyPlan{})
	}
	w.must(&PutNamespace{Namespace: NamespaceWire{Object: &corev1.Namespace{
		ObjectMeta: metav1.ObjectMeta{Name: w.namespace(0), Labels: map[string]string{"team": "1"}}}}})
	w.must(&ApplyPlan{})
	return w.log
}

// TestCountingEndsWithThePod: what nobody wants any more is not counted.
func TestCountingEndsWithThePod(t *testing.T) {
	w := countedWorld(t, 200)
	pod := w.asking("pod", 64, nil)
	w.must(&AdmitPod{Pod: PodWire{Object: pod}})
	w.bindTo(pod, "node-00000")
	if w.state.View().counted.Len() != 1 {
		t.Fatal("nothing is being counted")
	}
	now := int64(0)
	w.must(&DeletePod{Key: "ns-0/pod", GraceSeconds: &now})
	w.must(&ApplyPlan{})
	if v := w.state.View(); v.WorkPending() || v.counted.Len() != 0 {
		t.Errorf("pending %v, counted %d", v.WorkPending(), v.counted.Len())
	}
}

// TestNamespacesAreCountedAnew: what was counted by the labels of namespaces is
// counted again when those of one with pods change, also while it is being counted.
func TestNamespacesAreCountedAnew(t *testing.T) {
	for _, meanwhile := range []bool{false, true} {
		w := countedWorld(t, 200)
		pod := w.asking("pod", 64, &metav1.LabelSelector{MatchLabels: map[string]string{"team": "1"}})
		w.must(&AdmitPod{Pod: PodWire{Object: pod}})
		relabel := func(name, team string) {
			ns, _ := w.state.View().Namespaces.Get(name)
			next := ns.DeepCopy()
			next.Labels = map[string]string{"team": team}
			w.must(&PutNamespace{Namespace: NamespaceWire{Object: next}})
		}
		count := func() {
			for w.state.View().WorkPending() {
				w.must(&ApplyPlan{})
			}
		}
		w.bindTo(pod, "node-00000")
		if !meanwhile {
			count()
		}
		relabel("team", "2") // it has no pods
		if w.state.View().counted.Len() != 1 {
			t.Fatal("a namespace without pods makes that all is counted anew")
		}
		relabel("ns-0", "1")
		w.must(&ApplyPlan{})
		if v := w.state.View(); v.counted.Len() != 0 || v.WorkPending() {
			t.Fatalf("%d rules are counted by labels as they were, pending: %v", v.counted.Len(), v.WorkPending())
		}
		if r := w.bindTo(pod, "node-00000"); r.Reason != stillCounting {
			t.Errorf("the next decision: %+v", r)
		}
		count()
		if r := w.bindTo(pod, "node-00000"); r != (PlanRefusal{}) {
			t.Errorf("once all is counted anew: %+v", r)
		}
	}
}

// TestWhatIsCountedIsBounded: others go for what is counted.
func TestWhatIsCountedIsBounded(t *testing.T) {
	w := countedWorld(t, 10)
	tx := w.state.begin(w.index+1, 1, Header{Version: LogVersion})
	for i := range 2 * maxCountedRules {
		tx.keepCounted(fmt.Sprintf("%032x", i), &countedRules{Units: maxCounted / 100, Made: int64(i)})
	}
	if n := tx.view.counted.Len(); n < 50 || n > 100 {
		t.Errorf("%d are kept that take a hundredth each", n)
	}
	if _, ok := tx.view.counted.Get(fmt.Sprintf("%032x", 2*maxCountedRules-1)); !ok {
		t.Error("the newest is gone")
	}
	for i := range 2 * maxCountedRules {
		tx.keepCounted(fmt.Sprintf("f%031x", i), &countedRules{Units: 1, Made: int64(3*maxCountedRules + i)})
	}
	if n := tx.view.counted.Len(); n > maxCountedRules || n < maxCountedRules/2 {
		t.Errorf("%d are kept", n)
	}
	tx.keepCounted("e", &countedRules{Units: 2 * maxCounted, Made: 1e9})
	if n := tx.view.counted.Len(); n != 1 {
		t.Errorf("%d are kept beside one that is more than all may be", n)
	}
}

// TestWhoIsNotCountedForCountsAsHelped: who waits and can not be asked about is woken
// by whatever may help.
func TestWhoIsNotCountedForCountsAsHelped(t *testing.T) {
	w := countedWorld(t, 200)
	pod := w.asking("pod", 64, nil)
	w.must(&AdmitPod{Pod: PodWire{Object: pod}})
	key := PodKey(pod.Namespace, pod.Name)
	w.must(&ApplyPlan{Revision: w.state.View().Revision(), Failures: []FailDecision{{
		Pods: []PodRef{{key, string(pod.UID)}}, Diagnosis: &Diagnosis{Nodes: 10, Message: "no room"}}}})
	v := w.state.View()
	e, _ := v.Queue.Get(key)
	if _, counts := v.pending.Get(queue.PendingCount); e.State != berthv1.QueueUnschedulable || !counts {
		t.Fatalf("a failure is %s, and is counted for: %v", e.State, counts)
	}
	n, _ := v.Nodes.Get("node-00000")
	grown := n.DeepCopy()
	grown.Spec.Unschedulable = false
	grown.Labels["more"] = "1"
	w.must(&PutNode{Node: NodeWire{Object: grown}})
	now := int64(0)
	w.must(&DeletePod{Key: w.placedName(0).Key, GraceSeconds: &now})
	if e, _ := w.state.View().Queue.Get(key); e.State == berthv1.QueueUnschedulable {
		t.Error("a pod has left, and who may be helped by that sleeps on")
	}
}
