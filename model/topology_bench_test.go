package model

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// BenchmarkTopology: what one placement costs in a cluster of 10,000 nodes: the pod is counted, and another one judged in
// all groups of nodes.
func BenchmarkTopology(b *testing.B) {
	topo := NewTopology()
	for i := range 10_000 {
		name := fmt.Sprintf("n%05d", i)
		topo.PutNode(labelled(name, "zone="+fmt.Sprint(i%3), "host="+name))
	}
	web := map[string]string{"app": "web"}
	spread := podOf("default", web, corev1.PodSpec{TopologySpreadConstraints: []corev1.TopologySpreadConstraint{
		{MaxSkew: 5, TopologyKey: "zone", LabelSelector: appIs("web"), WhenUnsatisfiable: corev1.DoNotSchedule},
		{MaxSkew: 5, TopologyKey: "host", LabelSelector: appIs("web"), WhenUnsatisfiable: corev1.DoNotSchedule}}})
	for _, c := range []struct {
		name  string
		class *Class
	}{{"plain", ClassOf(podOf("default", web, corev1.PodSpec{}))}, {"spread", ClassOf(spread)}} {
		b.Run(c.name, func(b *testing.B) {
			groups := map[int32]bool{}
			for i := range 10_000 {
				groups[topo.Judge(c.class).Group(fmt.Sprintf("n%05d", i))] = true
			}
			names := make([]string, 3000)
			for i := range names {
				names[i] = fmt.Sprintf("n%05d", i*3)
			}
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				node := names[i%len(names)]
				topo.AddPod(node, c.class, false)
				j := topo.Judge(c.class)
				groups[j.Group(node)] = true
				for g := range groups {
					j.FailsGroup(g)
				}
				topo.RemovePod(node, c.class, false)
			}
		})
	}
}

// BenchmarkKinds: 100,000 pods with labels of their own, as jobs and stateful sets have them: what one of them costs to
// count, and what the first question by a label costs, and by a term that demands none.
func BenchmarkKinds(b *testing.B) {
	topo := NewTopology()
	for i := range 10_000 {
		name := fmt.Sprintf("n%05d", i)
		topo.PutNode(labelled(name, "zone="+fmt.Sprint(i%3), "host="+name))
	}
	class := func(i int) *Class {
		return ClassOf(podOf("default", map[string]string{"app": fmt.Sprint("app-", i%1000), "tier": "back", "team": fmt.Sprint(i % 20), "part-of": "shop",
			"uid": fmt.Sprintf("%032d", i), "pod-name": fmt.Sprint("web-", i)}, corev1.PodSpec{}))
	}
	for i := range 100_000 {
		topo.AddPod(fmt.Sprintf("n%05d", i%10_000), class(i), false)
	}
	asking := func(i int, operator metav1.LabelSelectorOperator) *Class {
		return ClassOf(podOf("default", nil, corev1.PodSpec{Affinity: &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{TopologyKey: "zone", LabelSelector: &metav1.LabelSelector{
				MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "uid", Operator: operator, Values: []string{fmt.Sprintf("%032d", i)}}}}}}}}}))
	}
	b.Run("new", func(b *testing.B) {
		fresh := make([]*Class, 20_000)
		for i := range fresh {
			fresh[i] = class(200_000 + i)
		}
		b.ReportAllocs()
		for i := 0; b.Loop(); i++ {
			topo.AddPod("n00001", fresh[i%len(fresh)], false)
			topo.RemovePod("n00001", fresh[i%len(fresh)], false)
		}
	})
	for _, operator := range []metav1.LabelSelectorOperator{metav1.LabelSelectorOpIn, metav1.LabelSelectorOpNotIn} {
		b.Run(string(operator), func(b *testing.B) {
			asked := 0
			for b.Loop() {
				asked++
				topo.Judge(asking(asked, operator))
			}
		})
	}
}

// BenchmarkDomains: what it costs, with 10,000 nodes of 24 labels each, that one gets another label; that somebody asks for
// the first time for domains by keys that nobody asked for before; and that it is worked out which nodes are eligible.
func BenchmarkDomains(b *testing.B) {
	topo, nodes := NewTopology(), make([]*corev1.Node, 10_000)
	for i := range nodes {
		name := fmt.Sprintf("n%05d", i)
		has := []string{"zone=" + fmt.Sprint(i%3), "host=" + name, "serial=" + name, "model=" + fmt.Sprint(i%40)}
		for k := range 20 {
			has = append(has, fmt.Sprintf("key-%d=%d", k, i%(k+1)))
		}
		nodes[i] = labelled(name, has...)
		topo.PutNode(nodes[i])
	}
	b.Run("relabelled", func(b *testing.B) {
		b.ReportAllocs()
		for i := 0; b.Loop(); i++ {
			n := nodes[i%len(nodes)].DeepCopy()
			n.Labels["model"] = fmt.Sprint(i % 41)
			topo.PutNode(n)
		}
	})
	b.Run("keys", func(b *testing.B) {
		var terms []corev1.PodAffinityTerm
		for k := range 20 {
			terms = append(terms, corev1.PodAffinityTerm{TopologyKey: fmt.Sprintf("key-%d", k), LabelSelector: appIs("web")})
		}
		for i := 0; b.Loop(); i++ {
			c := ClassOf(podOf("default", map[string]string{"n": fmt.Sprint(i)}, corev1.PodSpec{Affinity: &corev1.Affinity{
				PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: terms}}}))
			topo.Judge(c)
			topo.dismiss(topo.judges.newest)
		}
	})
	for _, asks := range []int{1, 512} {
		b.Run(fmt.Sprintf("eligible/%d", asks), func(b *testing.B) {
			values := make([]string, 32)
			for i := range values {
				values[i] = fmt.Sprint("v", i)
			}
			var where []corev1.NodeSelectorRequirement
			for n := 0; n < asks; n += 32 {
				where = append(where, corev1.NodeSelectorRequirement{Key: fmt.Sprintf("key-%d", n/32), Operator: corev1.NodeSelectorOpNotIn, Values: values[:min(32, asks)]})
			}
			spec := corev1.PodSpec{TopologySpreadConstraints: []corev1.TopologySpreadConstraint{
				{MaxSkew: 5, TopologyKey: "zone", LabelSelector: appIs("web"), WhenUnsatisfiable: corev1.DoNotSchedule}},
				Affinity: &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
					NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: where}}}}}}
			c := ClassOf(podOf("default", nil, spec))
			work := topo.Work()
			topo.Judge(c)
			topo.dismiss(topo.judges.newest)
			work = topo.Work() - work
			for b.Loop() {
				topo.Judge(c)
				topo.dismiss(topo.judges.newest)
			}
			b.ReportMetric(float64(work), "counts/op")
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(work), "ns/count")
		})
	}
}
