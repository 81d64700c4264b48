package model

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
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
