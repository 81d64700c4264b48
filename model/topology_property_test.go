package model

import (
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"
)

// twin is a Topology and the plain lists that say the same.
type twin struct {
	t     *rapid.T
	topo  *Topology
	plain *plainCluster

	preparing *corev1.Pod
}

func (w *twin) pick(what string, from ...string) string {
	return rapid.SampledFrom(from).Draw(w.t, what)
}

func (w *twin) chance(what string, percent int) bool {
	return rapid.IntRange(0, 99).Draw(w.t, what) < percent
}

func (w *twin) labels() map[string]string {
	l := map[string]string{}
	for _, key := range []string{"app", "ver"} {
		if v := w.pick(key, "", "x", "x", "y"); v != "" {
			l[key] = v
		}
	}
	return l
}

func (w *twin) selector() *metav1.LabelSelector {
	switch w.pick("selector", "app", "app", "exists", "not", "all", "none") {
	case "app":
		return &metav1.LabelSelector{MatchLabels: map[string]string{"app": w.pick("value", "x", "y")}}
	case "exists":
		return &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "ver", Operator: metav1.LabelSelectorOpExists}}}
	case "not":
		return &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "app", Operator: metav1.LabelSelectorOpNotIn, Values: []string{"x"}}}}
	case "all":
		return &metav1.LabelSelector{}
	}
	return nil
}

func (w *twin) key() string { return w.pick("key", "zone", "zone", "rack", corev1.LabelHostname) }

func (w *twin) term() corev1.PodAffinityTerm {
	t := corev1.PodAffinityTerm{TopologyKey: w.key(), LabelSelector: w.selector()}
	switch w.pick("namespaces", "", "", "list", "selector", "every") {
	case "list":
		t.Namespaces = []string{w.pick("ns", "a", "b", "c")}
	case "selector":
		t.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"team": w.pick("team", "1", "2")}}
	case "every":
		t.NamespaceSelector = &metav1.LabelSelector{}
	}
	if t.LabelSelector != nil && w.chance("match keys", 20) {
		t.MatchLabelKeys = []string{"ver"}
	} else if t.LabelSelector != nil && w.chance("mismatch keys", 20) {
		t.MismatchLabelKeys = []string{"ver"}
	}
	// What the API would refuse or has merged already.
	if s := t.LabelSelector; s != nil && slices.ContainsFunc(s.MatchExpressions, func(r metav1.LabelSelectorRequirement) bool { return r.Key == "ver" }) {
		t.MatchLabelKeys, t.MismatchLabelKeys = nil, nil
	}
	return t
}

func policy(w *twin, what string) *corev1.NodeInclusionPolicy {
	switch w.pick(what, "", "", "honor", "ignore") {
	case "honor":
		p := corev1.NodeInclusionPolicyHonor
		return &p
	case "ignore":
		p := corev1.NodeInclusionPolicyIgnore
		return &p
	}
	return nil
}

func (w *twin) constraint() corev1.TopologySpreadConstraint {
	k := corev1.TopologySpreadConstraint{
		MaxSkew: int32(rapid.IntRange(1, 3).Draw(w.t, "skew")), TopologyKey: w.key(), LabelSelector: w.selector(),
		WhenUnsatisfiable:  corev1.UnsatisfiableConstraintAction(w.pick("when", "DoNotSchedule", "ScheduleAnyway")),
		NodeAffinityPolicy: policy(w, "affinity policy"), NodeTaintsPolicy: policy(w, "taints policy"),
	}
	if k.LabelSelector != nil && w.chance("match keys", 20) {
		k.MatchLabelKeys = []string{"ver"}
	}
	if k.WhenUnsatisfiable == corev1.DoNotSchedule && w.chance("min domains", 25) {
		n := int32(rapid.IntRange(1, 4).Draw(w.t, "domains"))
		k.MinDomains = &n
	}
	return k
}

func (w *twin) pod() *corev1.Pod {
	priority := int32(rapid.IntRange(0, 2).Draw(w.t, "priority"))
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.pick("namespace", "a", "a", "b"), Name: "p", Labels: w.labels()},
		Spec:       corev1.PodSpec{Priority: &priority},
	}
	for w.chance("constraint", 35) && len(p.Spec.TopologySpreadConstraints) < 3 {
		p.Spec.TopologySpreadConstraints = append(p.Spec.TopologySpreadConstraints, w.constraint())
	}
	if w.chance("selects", 20) {
		p.Spec.NodeSelector = map[string]string{"zone": w.pick("zone", "1", "2")}
	}
	if w.chance("tolerates", 20) {
		p.Spec.Tolerations = []corev1.Toleration{{Key: "t", Operator: corev1.TolerationOpExists}}
	}
	a := &corev1.Affinity{PodAffinity: &corev1.PodAffinity{}, PodAntiAffinity: &corev1.PodAntiAffinity{}}
	for w.chance("affinity", 20) {
		a.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution = append(a.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution, w.term())
	}
	for w.chance("anti-affinity", 20) {
		a.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution = append(a.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution, w.term())
	}
	weighted := func() corev1.WeightedPodAffinityTerm {
		return corev1.WeightedPodAffinityTerm{Weight: int32(rapid.IntRange(1, 100).Draw(w.t, "weight")), PodAffinityTerm: w.term()}
	}
	for w.chance("preference", 15) {
		a.PodAffinity.PreferredDuringSchedulingIgnoredDuringExecution = append(a.PodAffinity.PreferredDuringSchedulingIgnoredDuringExecution, weighted())
	}
	for w.chance("dislike", 15) {
		a.PodAntiAffinity.PreferredDuringSchedulingIgnoredDuringExecution = append(a.PodAntiAffinity.PreferredDuringSchedulingIgnoredDuringExecution, weighted())
	}
	p.Spec.Affinity = a
	return p
}

func (w *twin) putNode() {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: w.pick("node", "n1", "n2", "n3", "n4", "n5"), Labels: map[string]string{}}}
	if v := w.pick("zone", "", "1", "1", "2", "3"); v != "" {
		n.Labels["zone"] = v
	}
	if v := w.pick("rack", "", "1", "2", "3", "4", n.Name); v != "" {
		n.Labels["rack"] = v
	}
	if v := w.pick("host", "", "twin", n.Name, n.Name, n.Name); v != "" {
		n.Labels[corev1.LabelHostname] = v
	}
	if w.chance("taint", 20) {
		n.Spec.Taints = []corev1.Taint{{Key: "t", Effect: corev1.TaintEffectNoSchedule}}
	}
	n.Spec.Unschedulable = w.chance("cordon", 10)
	w.removeNode(n.Name, false)
	w.plain.nodes = append(w.plain.nodes, n)
	w.topo.PutNode(n)
}

func (w *twin) removeNode(name string, both bool) {
	w.plain.nodes = slices.DeleteFunc(w.plain.nodes, func(n *corev1.Node) bool { return n.Name == name })
	if both {
		w.topo.RemoveNode(name)
	}
}

func (w *twin) add(q *plainPod) {
	w.plain.pods = append(w.plain.pods, q)
	if q.nominated {
		w.topo.Nominate(q.node, ClassOf(q.pod), q.priority)
	} else {
		w.topo.AddPod(q.node, ClassOf(q.pod), Terminating(q.pod))
	}
}

func (w *twin) remove(i int) *plainPod {
	q := w.plain.pods[i]
	w.plain.pods = slices.Delete(w.plain.pods, i, i+1)
	if q.nominated {
		w.topo.Unnominate(q.node, ClassOf(q.pod), q.priority)
	} else {
		w.topo.RemovePod(q.node, ClassOf(q.pod), Terminating(q.pod))
	}
	return q
}

func (w *twin) step() {
	some := func() int { return rapid.IntRange(0, len(w.plain.pods)-1).Draw(w.t, "which") }
	switch what := w.pick("step", "node", "no node", "pod", "pod", "pod", "gone", "leaving", "nominate", "relabel", "namespace"); {
	case what == "node":
		w.putNode()
	case what == "no node":
		w.removeNode(w.pick("node", "n1", "n2", "n3", "n4", "n5"), true)
	case what == "namespace":
		ns, l := w.pick("namespace", "a", "b"), map[string]string{"team": w.pick("team", "1", "2")}
		if w.chance("no labels", 20) {
			l = nil
		}
		w.plain.namespaces[ns] = l
		w.topo.PutNamespace(ns, l)
	case what == "pod", what == "nominate":
		q := &plainPod{pod: w.pod(), node: w.pick("on", "n1", "n2", "n3", "n4", "n5")}
		for range rapid.IntRange(1, 3).Draw(w.t, "times") {
			again := *q
			again.nominated = what == "nominate"
			again.priority = Priority(q.pod)
			w.add(&again)
		}
	case len(w.plain.pods) == 0:
	case what == "gone":
		w.remove(some())
	default:
		q := *w.remove(some())
		q.pod = q.pod.DeepCopy()
		if what == "relabel" {
			q.pod.Labels = w.labels()
		} else if !q.nominated {
			q.pod.DeletionTimestamp = &metav1.Time{}
		}
		w.add(&q)
	}
}

// judge compares what the pod finds on every node, asked node by node and through groups.
func (w *twin) judge(pod *corev1.Pod, c *Class, system bool) {
	j := w.topo.Judge(c)
	var feasible []*corev1.Node
	groups := map[string]int32{}
	var numbers, nodes []int32
	for _, n := range w.plain.nodes {
		want := w.plain.fails(pod, n)
		g := j.Group(n.Name)
		groups[n.Name] = g
		for how, f := range map[string]Failures{"node": j.Fails(n.Name), "group": j.FailsGroup(g)} {
			got := map[ReasonKind]bool{}
			for _, r := range f.Reasons(c) {
				got[r.Kind] = true
			}
			if fmt.Sprint(got) != fmt.Sprint(want) {
				w.t.Fatalf("%s %s: the rules say %v, the judge %v\n%+v", how, n.Name, want, got, pod.Spec)
			}
		}
		for _, r := range j.Reasons(n.Name) {
			if r.Detail == "" || !want[r.Kind] {
				w.t.Fatalf("%s: reason %+v", n.Name, r)
			}
		}
		w.beyond(j, n.Name)
		if j.Plain() && len(want) > 0 {
			w.t.Fatalf("%s: plain, and yet %v", n.Name, want)
		}
		if len(want) == 0 {
			feasible = append(feasible, n)
			if i := slices.Index(numbers, g); i >= 0 {
				nodes[i]++
			} else {
				numbers, nodes = append(numbers, g), append(nodes, 1)
			}
		}
	}
	var scale SpreadScale
	j.Scale(&scale, numbers, nodes)
	for _, n := range feasible {
		want, wantScored := w.plain.rawSpread(pod, n, feasible, system)
		got, scored := j.RawSpread(groups[n.Name], &scale)
		if got != want || scored != wantScored {
			w.t.Fatalf("%s: spread %d %t, the judge says %d %t\n%+v", n.Name, want, wantScored, got, scored, pod.Spec)
		}
		if want, got := w.plain.rawAffinity(pod, n, 3), j.RawAffinity(groups[n.Name], 3); want != got {
			w.t.Fatalf("%s: affinity %d, the judge says %d\n%+v", n.Name, want, got, pod.Spec)
		}
	}
}

// prepare goes on with preparing what a pod has to know of others, or begins with another one: whatever happens meanwhile,
// the counters are right when it is through.
func (w *twin) prepare() {
	w.topo.fillStep = 1
	if w.preparing == nil || w.chance("another", 20) {
		w.preparing = w.pod()
	}
	c, left := ClassOf(w.preparing), rapid.IntRange(0, 6).Draw(w.t, "pieces")
	prepare := w.topo.Prepare
	if w.chance("kept", 50) {
		prepare = w.topo.PrepareKept
	}
	if prepare(c, func() bool { left--; return left < 0 }) {
		w.judge(w.preparing, c, false)
		w.preparing = nil
	}
	if w.chance("keep", 10) {
		w.topo.Keep(ClassOf(w.pod()))
	}
	if w.chance("release", 10) {
		w.topo.Release(c.Rules())
	}
	w.census(c)
}

// census asks what it takes to count for a class: as much as for one who has been told the same at once, and enough.
func (w *twin) census(c *Class) {
	fresh := NewTopology()
	for ns, l := range w.plain.namespaces {
		fresh.PutNamespace(ns, l)
	}
	for _, q := range w.plain.pods {
		if q.nominated {
			fresh.Nominate(q.node, ClassOf(q.pod), q.priority)
		} else {
			fresh.AddPod(q.node, ClassOf(q.pod), Terminating(q.pod))
		}
	}
	has := w.topo.CountFor(c)
	if want := fresh.CountFor(c); has != want {
		w.t.Fatalf("counting takes %+v, and %+v where all was told at once", has, want)
	}
	links := 0
	j := fresh.Judge(c)
	for i := range j.own {
		for _, k := range fresh.kinds {
			if j.own[i].counter.about(k.class, k.space.labels) {
				links++
			}
		}
	}
	if int(has.Counters) != len(j.own) || int(has.Kinds) < links {
		w.t.Fatalf("counting takes %+v, and %d counters count %d kinds", has, len(j.own), links)
	}
	var held int64
	for _, c := range w.topo.matching.byID {
		if c.keepers == 0 {
			held += c.held
		}
	}
	for _, e := range w.topo.eligible {
		if e.keepers == 0 {
			held += e.held
		}
		for slot, s := range w.topo.spots {
			if slot < e.looked && s.node != nil && e.ok.has(int32(slot)) != e.admits(s.node) {
				w.t.Fatalf("%s is eligible: %t, for %q", s.name, e.ok.has(int32(slot)), e.id)
			}
		}
		if e.refs == 0 {
			w.t.Fatalf("nothing goes by the eligibility %q", e.id)
		}
	}
	for id, k := range w.topo.keys {
		if k.nodes == 0 && len(k.counters) == 0 && k.needed == 0 {
			w.t.Fatalf("the key %q is kept for nothing", id)
		}
	}
	for _, j := range w.topo.judges.by {
		held += j.bytes() + j.grouped
	}
	if w.topo.judges.bytes != held {
		w.t.Fatalf("the judges hold %d bytes, and take %d for it", held, w.topo.judges.bytes)
	}
	if w.chance("sweep", 20) {
		w.topo.sweep()
	}
}

// beyond compares on how many other nodes those in the way of a node are.
func (w *twin) beyond(j *Judge, node string) {
	obstacles, _ := j.Obstacles(node)
	for _, o := range append(obstacles, j.Kin()...) {
		others := map[string]bool{}
		for _, q := range w.plain.pods {
			if !q.nominated && !Terminating(q.pod) && q.node != node && o.Counts(q.node, ClassOf(q.pod)) {
				others[q.node] = true
			}
		}
		for most := range 3 {
			if is, _ := o.Beyond(most, node); is != (len(others) > most) {
				w.t.Fatalf("%s: on more than %d nodes beside: %t; they are on %v", node, most, is, others)
			}
		}
	}
}

// TestJudgeAgainstTheRules (TS1–TS11, TS15, AF2, NM4): whatever happened, every class finds on every node what the rules
// say, and nodes of one group are alike.
func TestJudgeAgainstTheRules(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := &twin{t: t, topo: NewTopology(), plain: &plainCluster{namespaces: map[string]map[string]string{}}}
		var known []*corev1.Pod
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			w.step()
			pod := w.pod()
			if len(known) > 0 && w.chance("known", 60) {
				pod = rapid.SampledFrom(known).Draw(t, "judged")
			} else {
				known = append(known, pod)
			}
			w.prepare()
			w.judge(pod, ClassOf(pod), false)
			if len(pod.Spec.TopologySpreadConstraints) == 0 {
				w.defaults(pod)
			}
		}
	})
}

// defaults compares the cluster's default constraints with the same as a pod's own.
func (w *twin) defaults(pod *corev1.Pod) {
	system := w.chance("system", 50)
	var constraints []corev1.TopologySpreadConstraint
	as := pod.DeepCopy()
	for range rapid.IntRange(1, 2).Draw(w.t, "defaults") {
		k := corev1.TopologySpreadConstraint{MaxSkew: 3, TopologyKey: w.key(), WhenUnsatisfiable: corev1.ScheduleAnyway}
		constraints = append(constraints, k)
		k.LabelSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "x"}}
		as.Spec.TopologySpreadConstraints = append(as.Spec.TopologySpreadConstraints, k)
	}
	selector := plainSelector(&metav1.LabelSelector{MatchLabels: map[string]string{"app": "x"}})
	w.judge(as, ClassOf(pod).WithSpread(constraints, selector, system), system)
}

// TestGroupsStay: a node that is not touched keeps its group for as long as the layout does, whatever happens elsewhere.
func TestGroupsStay(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := &twin{t: t, topo: NewTopology(), plain: &plainCluster{namespaces: map[string]map[string]string{}}}
		w.putNode()
		pod := w.pod()
		c := ClassOf(pod)
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			j := w.topo.Judge(c)
			layout := j.Layout()
			before, look := map[string]int32{}, map[string]string{}
			for _, n := range w.plain.nodes {
				before[n.Name] = j.Group(n.Name)
				look[n.Name] = w.lookOf(n.Name)
			}
			w.step()
			j = w.topo.Judge(c)
			if j.Layout() != layout {
				continue
			}
			for _, n := range w.plain.nodes {
				if g, ok := before[n.Name]; ok && look[n.Name] == w.lookOf(n.Name) && j.Group(n.Name) != g {
					t.Fatalf("%s was not touched and changed its group", n.Name)
				}
			}
		}
	})
}

// lookOf writes down what is there of a node and on it.
func (w *twin) lookOf(name string) string {
	out := fmt.Sprintf("%+v", w.plain.node(name))
	for _, q := range w.plain.pods {
		if q.node == name {
			out += fmt.Sprintf("%p %t;", q, q.nominated)
		}
	}
	return out
}
