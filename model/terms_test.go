package model

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

func podOf(namespace string, podLabels map[string]string, spec corev1.PodSpec) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "p", Labels: podLabels}, Spec: spec}
}

func labelled(name string, nodeLabels ...string) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{}}}
	for _, l := range nodeLabels {
		k, v, _ := strings.Cut(l, "=")
		n.Labels[k] = v
	}
	return n
}

// TestNodeAffinityOperators (AF1): every operator, on a number, a word and no label at all.
func TestNodeAffinityOperators(t *testing.T) {
	five, word, none := labelled("five", "n=5"), labelled("word", "n=many"), labelled("none")
	for _, c := range []struct {
		op     corev1.NodeSelectorOperator
		values []string
		on     [3]bool // five, word, none
	}{
		{corev1.NodeSelectorOpIn, []string{"5", "6"}, [3]bool{true, false, false}},
		{corev1.NodeSelectorOpNotIn, []string{"5", "6"}, [3]bool{false, true, true}},
		{corev1.NodeSelectorOpExists, nil, [3]bool{true, true, false}},
		{corev1.NodeSelectorOpDoesNotExist, nil, [3]bool{false, false, true}},
		{corev1.NodeSelectorOpGt, []string{"4"}, [3]bool{true, false, false}},
		{corev1.NodeSelectorOpGt, []string{"5"}, [3]bool{false, false, false}},
		{corev1.NodeSelectorOpLt, []string{"6"}, [3]bool{true, false, false}},
		{corev1.NodeSelectorOpLt, []string{"5"}, [3]bool{false, false, false}},
	} {
		class := ClassOf(podOf("default", nil, corev1.PodSpec{Affinity: &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{
				{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "n", Operator: c.op, Values: c.values}}}}}}}}))
		for i, n := range []*corev1.Node{five, word, none} {
			if got := NodeFailures(class, n) == 0; got != c.on[i] {
				t.Errorf("n %s %v on %s: %t", c.op, c.values, n.Name, got)
			}
		}
	}
}

func affinityTo(term corev1.PodAffinityTerm) corev1.PodSpec {
	term.TopologyKey = "zone"
	return corev1.PodSpec{Affinity: &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
		RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{term}}}}
}

func appIs(value string) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{"app": value}}
}

// TestAffinityTermsMatch (AF2): which pods a term is about: namespaces by name and by selector, the keys that are to be
// equal or different, merged already or not.
func TestAffinityTermsMatch(t *testing.T) {
	merged := appIs("web")
	merged.MatchExpressions = []metav1.LabelSelectorRequirement{{Key: "hash", Operator: metav1.LabelSelectorOpIn, Values: []string{"old"}}}
	team := &metav1.LabelSelector{MatchLabels: map[string]string{"team": "1"}}
	web1 := map[string]string{"app": "web", "hash": "1"}
	for _, c := range []struct {
		name      string
		term      corev1.PodAffinityTerm
		namespace string
		labels    map[string]string
		matches   bool
	}{
		{"own namespace", corev1.PodAffinityTerm{LabelSelector: appIs("web")}, "own", web1, true},
		{"another namespace", corev1.PodAffinityTerm{LabelSelector: appIs("web")}, "team1", web1, false},
		{"named namespace", corev1.PodAffinityTerm{LabelSelector: appIs("web"), Namespaces: []string{"other", "team1"}}, "team1", web1, true},
		{"not named, so not the own", corev1.PodAffinityTerm{LabelSelector: appIs("web"), Namespaces: []string{"other"}}, "own", web1, false},
		{"chosen namespace", corev1.PodAffinityTerm{LabelSelector: appIs("web"), NamespaceSelector: team}, "team1", web1, true},
		{"namespace not chosen", corev1.PodAffinityTerm{LabelSelector: appIs("web"), NamespaceSelector: team}, "own", web1, false},
		{"chosen or named", corev1.PodAffinityTerm{LabelSelector: appIs("web"), NamespaceSelector: team, Namespaces: []string{"own"}}, "own", web1, true},
		{"every namespace", corev1.PodAffinityTerm{LabelSelector: appIs("web"), NamespaceSelector: &metav1.LabelSelector{}}, "other", web1, true},
		{"no selector", corev1.PodAffinityTerm{}, "own", web1, false},
		{"empty selector", corev1.PodAffinityTerm{LabelSelector: &metav1.LabelSelector{}}, "own", nil, true},
		{"equal key", corev1.PodAffinityTerm{LabelSelector: appIs("web"), MatchLabelKeys: []string{"hash"}}, "own", map[string]string{"app": "web", "hash": "mine"}, true},
		{"key that should be equal", corev1.PodAffinityTerm{LabelSelector: appIs("web"), MatchLabelKeys: []string{"hash"}}, "own", web1, false},
		{"different key", corev1.PodAffinityTerm{LabelSelector: appIs("web"), MismatchLabelKeys: []string{"hash"}}, "own", web1, true},
		{"key that should differ", corev1.PodAffinityTerm{LabelSelector: appIs("web"), MismatchLabelKeys: []string{"hash"}}, "own", map[string]string{"app": "web", "hash": "mine"}, false},
		{"key that the pod has not", corev1.PodAffinityTerm{LabelSelector: appIs("web"), MatchLabelKeys: []string{"none"}}, "own", web1, true},
		{"merged when it was created", corev1.PodAffinityTerm{LabelSelector: merged, MatchLabelKeys: []string{"hash"}}, "own", map[string]string{"app": "web", "hash": "old"}, true},
	} {
		topo := NewTopology()
		topo.PutNode(labelled("n1", "zone=a"))
		topo.PutNode(labelled("n2", "zone=a"))
		topo.PutNamespace("team1", map[string]string{"team": "1"})
		topo.PutNamespace("own", map[string]string{"team": "2"})
		topo.AddPod("n2", ClassOf(podOf(c.namespace, c.labels, corev1.PodSpec{})), false)
		class := ClassOf(podOf("own", map[string]string{"hash": "mine"}, affinityTo(c.term)))
		if got := topo.Judge(class).Fails("n1") == failPodAntiAffinity; got != c.matches {
			t.Errorf("%s: matches %t", c.name, got)
		}
		// The same for the term of a pod that is placed.
		topo = NewTopology()
		topo.PutNode(labelled("n1", "zone=a"))
		topo.PutNode(labelled("n2", "zone=a"))
		topo.AddPod("n2", class, false)
		topo.PutNamespace("team1", map[string]string{"team": "1"})
		topo.PutNamespace("own", map[string]string{"team": "2"})
		if got := topo.Judge(ClassOf(podOf(c.namespace, c.labels, corev1.PodSpec{}))).Fails("n1") == failExistingAntiAffinity; got != c.matches {
			t.Errorf("%s, carried: matches %t", c.name, got)
		}
	}
}

// TestReasonsTell: the detail of a reason names the domain, what is there and what is allowed.
func TestReasonsTell(t *testing.T) {
	hard := corev1.TopologySpreadConstraint{MaxSkew: 1, TopologyKey: "zone", LabelSelector: appIs("web"), WhenUnsatisfiable: corev1.DoNotSchedule}
	five := int32(5)
	domains := hard
	domains.MinDomains = &five
	web := map[string]string{"app": "web"}
	topo := NewTopology()
	for _, n := range []*corev1.Node{labelled("n1", "zone=a"), labelled("n2", "zone=b"), labelled("n3")} {
		topo.PutNode(n)
	}
	for range 3 {
		topo.AddPod("n1", ClassOf(podOf("default", web, corev1.PodSpec{})), false)
	}
	topo.AddPod("n2", ClassOf(podOf("default", web, corev1.PodSpec{})), false)
	topo.AddPod("n2", ClassOf(podOf("default", nil, affinityTo(corev1.PodAffinityTerm{LabelSelector: appIs("web")}))), false)
	near := corev1.PodSpec{Affinity: &corev1.Affinity{PodAffinity: &corev1.PodAffinity{
		RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{TopologyKey: "zone", LabelSelector: appIs("db")}}}}}
	priority := int32(5)
	low := ClassOf(podOf("default", nil, affinityTo(corev1.PodAffinityTerm{LabelSelector: appIs("job")})))
	for _, c := range []struct {
		class      *Class
		node       string
		want       string
		resolvable bool
	}{
		{ClassOf(podOf("default", web, corev1.PodSpec{TopologySpreadConstraints: []corev1.TopologySpreadConstraint{hard}})), "n1",
			"node(s) didn't match pod topology spread constraints: zone=a has 3, at most 1 more than the least (1)", true},
		{ClassOf(podOf("default", web, corev1.PodSpec{TopologySpreadConstraints: []corev1.TopologySpreadConstraint{domains}})), "n1",
			"node(s) didn't match pod topology spread constraints: zone=a has 3, at most 1 more than the least (0) while there are fewer than 5 domains", true},
		{ClassOf(podOf("default", web, corev1.PodSpec{TopologySpreadConstraints: []corev1.TopologySpreadConstraint{hard}})), "n3",
			"node(s) didn't match pod topology spread constraints (missing required label): the node has no label zone", false},
		{ClassOf(podOf("default", nil, near)), "n1", "node(s) didn't match pod affinity rules: zone=a has no pod that matches app=db", false},
		{ClassOf(podOf("default", nil, near)), "n3", "node(s) didn't match pod affinity rules: the node has no label zone", false},
		{ClassOf(podOf("default", nil, affinityTo(corev1.PodAffinityTerm{LabelSelector: appIs("web")}))), "n1",
			"node(s) didn't match pod anti-affinity rules: zone=a has 3 that match app=web", true},
		{ClassOf(podOf("default", web, corev1.PodSpec{})), "n2",
			"node(s) didn't satisfy existing pods anti-affinity rules: zone=b has 1 that keep away app=web", true},
	} {
		reasons := topo.Judge(c.class).Reasons(c.node)
		if len(reasons) != 1 || reasons[0].Explain() != c.want {
			t.Errorf("%s: %v, want %s", c.node, reasons, c.want)
		}
		if got := topo.Judge(c.class).Fails(c.node).Resolvable(); got != c.resolvable || reasons[0].Kind.Resolvable() != c.resolvable {
			t.Errorf("%s: resolvable %t", c.want, got)
		}
	}
	// NM4: nominated pods of at least the priority count.
	topo.Nominate("n1", low, priority)
	job := ClassOf(podOf("default", map[string]string{"app": "job"}, corev1.PodSpec{}))
	want := "node(s) didn't satisfy existing pods anti-affinity rules: zone=a has 1 with nominated pods that keep away app=job"
	if r := topo.Judge(job).Reasons("n1"); len(r) != 1 || r[0].Explain() != want {
		t.Errorf("%v, want %s", r, want)
	}
	higher := podOf("default", map[string]string{"app": "job"}, corev1.PodSpec{})
	six := int32(6)
	higher.Spec.Priority = &six
	if r := topo.Judge(ClassOf(higher)).Reasons("n1"); r != nil {
		t.Errorf("a pod of higher priority sees a nomination: %v", r)
	}
}

// TestDefaultConstraints (TS12): they are for classes without constraints of their own, and make another class.
func TestDefaultConstraints(t *testing.T) {
	defaults := []corev1.TopologySpreadConstraint{{MaxSkew: 1, TopologyKey: "zone", WhenUnsatisfiable: corev1.DoNotSchedule}}
	selector := labels.SelectorFromSet(map[string]string{"app": "web"})
	plain := ClassOf(podOf("default", map[string]string{"app": "web"}, corev1.PodSpec{}))
	own := ClassOf(podOf("default", map[string]string{"app": "web"}, corev1.PodSpec{TopologySpreadConstraints: []corev1.TopologySpreadConstraint{
		{MaxSkew: 1, TopologyKey: "host", WhenUnsatisfiable: corev1.ScheduleAnyway}}}))
	if own.WithSpread(defaults, selector, false) != own || plain.WithSpread(defaults, labels.Everything(), false) != plain || plain.WithSpread(nil, selector, true) != plain {
		t.Error("a class that the defaults are not for was changed")
	}
	spread := plain.WithSpread(defaults, selector, false)
	if spread.Signature == plain.Signature || spread.Shape == plain.Shape || plain.HasTopology() || !spread.HasHardTopology() {
		t.Error("the class with the defaults is like the one without")
	}
	if again := plain.WithSpread(defaults, selector, false); again.Signature != spread.Signature {
		t.Error("the same defaults made another class")
	}
	if system := plain.WithSpread(defaults, selector, true); system.Signature == spread.Signature {
		t.Error("the built-in defaults score otherwise than a list, and make the same class")
	}
}
