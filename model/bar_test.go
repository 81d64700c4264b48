package model

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// TestBars: which rules about other pods bar a node, and by what.
func TestBars(t *testing.T) {
	web := map[string]string{"app": "web"}
	topo := NewTopology()
	for _, n := range []*corev1.Node{labelled("n1", "zone=a"), labelled("n2", "zone=b"), labelled("n3", "zone=b"), labelled("n4")} {
		topo.PutNode(n)
	}
	placed := ClassOf(podOf("default", web, corev1.PodSpec{}))
	for range 3 {
		topo.AddPod("n1", placed, false)
	}
	topo.AddPod("n2", placed, true)
	keeper := ClassOf(podOf("default", nil, affinityTo(corev1.PodAffinityTerm{LabelSelector: appIs("web")})))
	topo.AddPod("n2", keeper, false)
	topo.Nominate("n3", keeper, 5)
	hard := corev1.TopologySpreadConstraint{MaxSkew: 1, TopologyKey: "zone", WhenUnsatisfiable: corev1.DoNotSchedule, LabelSelector: appIs("web")}
	away := ClassOf(podOf("default", nil, affinityTo(corev1.PodAffinityTerm{LabelSelector: appIs("web")})))
	for _, c := range []struct {
		class *Class
		node  string
		want  string
	}{
		{away, "n1", "[PodAntiAffinity zone=a: 3]"},
		{away, "n3", "[PodAntiAffinity zone=b shared: 1]"},
		{away, "n4", "[]"},
		{away, "gone", "[]"},
		{placed, "n3", "[ExistingAntiAffinity zone=b shared: 2 with nominated]"},
		{ClassOf(podOf("default", web, corev1.PodSpec{TopologySpreadConstraints: []corev1.TopologySpreadConstraint{hard}})), "n1", "[TopologySpread zone=a: 3, least 0, skew 1]"},
	} {
		out := []string{}
		for _, b := range topo.Judge(c.class).Bars(c.node) {
			s := map[ReasonKind]string{PodAntiAffinity: "PodAntiAffinity", ExistingAntiAffinity: "ExistingAntiAffinity", TopologySpread: "TopologySpread"}[b.Kind]
			s += " " + b.Key + "=" + b.Value
			if b.Shared {
				s += " shared"
			}
			s += fmt.Sprintf(": %d", b.Pods)
			if b.Nominated {
				s += " with nominated"
			}
			if b.Kind == TopologySpread {
				s += fmt.Sprintf(", least %d, skew %d", b.Least, b.MaxSkew)
			}
			out = append(out, s)
		}
		if got := fmt.Sprint(out); got != c.want {
			t.Errorf("%s: %s, want %s", c.node, got, c.want)
		}
	}
	// Who counts, and where.
	b := topo.Judge(placed).Bars("n3")[0]
	nodes := map[string]bool{}
	b.Nodes(func(node string) { nodes[node] = true })
	if d, ok := b.Counts("n3", keeper); !ok || d != b.Domain() || !nodes["n2"] {
		t.Errorf("the keeper counts on n3 as %d (%v), pods that do are on %v", d, ok, nodes)
	}
	if _, ok := b.Counts("n2", placed); ok {
		t.Error("a pod that keeps nobody away counts")
	}
}
