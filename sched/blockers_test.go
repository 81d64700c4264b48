package sched

import (
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/model"
	"github.com/berth-dev/berth/sched/clustertest"
)

// namesThem: who is in a pod's way by anti-affinity, on every node, is whom the oracle finds by asking every pod; and
// what is short is kept for those nominated pods that ask for some of it too.
func (w *world) namesThem(o *oracle, pod *corev1.Pod) {
	all := o.standing(pod, true)
	_, anti := affinityOf(pod)
	for i, verdict := range explainAll(w.State.View(), pod) {
		want := map[model.ReasonKind][]types.UID{}
		add := func(kind model.ReasonKind, s stander) {
			if !slices.Contains(want[kind], s.pod.UID) {
				want[kind] = append(want[kind], s.pod.UID)
			}
		}
		n := o.nodes[i]
		for _, s := range all {
			for _, t := range anti.RequiredDuringSchedulingIgnoredDuringExecution {
				if together(n, s.node, t.TopologyKey) && o.termMatches(pod, &t, s.pod) {
					add(model.PodAntiAffinity, s)
				}
			}
			_, carried := affinityOf(s.pod)
			for _, t := range carried.RequiredDuringSchedulingIgnoredDuringExecution {
				if together(n, s.node, t.TopologyKey) && o.termMatches(s.pod, &t, pod) {
					add(model.ExistingAntiAffinity, s)
				}
			}
		}
		for _, r := range verdict.Reasons {
			for _, nom := range o.noms {
				lacks := r.Kind == model.InsufficientResource && model.ClassOf(nom.pod).Request.Get(r.Resource) > 0 ||
					r.Kind == model.Ports && portsIn(nom.pod, pod) > 0
				if lacks && nom.node == n.Name && o.counts(nom, pod) {
					want[r.Kind] = append(want[r.Kind], nom.pod.UID)
				}
			}
			var got []types.UID
			for _, c := range r.Blockers {
				if !slices.IsSortedFunc(c.Pods, func(x, y Blocker) int { return x.Before(&y) }) || n.Labels[c.Key] != c.Value {
					w.t.Fatalf("%s on %s: blockers in disorder: %+v", pod.Name, n.Name, c)
				}
				for _, p := range c.Pods {
					if !slices.Contains(got, p.UID) {
						got = append(got, p.UID)
					}
				}
			}
			slices.Sort(got)
			slices.Sort(want[r.Kind])
			if !slices.Equal(got, want[r.Kind]) {
				w.t.Fatalf("%s on %s: %s by %v, the oracle has %v", pod.Name, n.Name, r.Text(), got, want[r.Kind])
			}
			delete(want, r.Kind)
			if r.Kind == model.TopologySpread && len(r.Skews) == 0 {
				w.t.Fatalf("%s on %s: a skew without numbers", pod.Name, n.Name)
			}
			for _, k := range r.Skews {
				if k.Pods+1 <= k.Least+k.MaxSkew && k.Pods <= k.Least+k.MaxSkew {
					w.t.Fatalf("%s on %s: no skew: %+v", pod.Name, n.Name, k)
				}
			}
		}
		if len(want) > 0 {
			w.t.Fatalf("%s on %s: kept off by %v and not told", pod.Name, n.Name, want)
		}
	}
}

// BenchmarkExplain: what a question about one pod costs where other pods keep it off all of 5,000 nodes with 20 pods
// each.
func BenchmarkExplain(b *testing.B) {
	for _, c := range []struct{ name, others, asked string }{
		{"plain", "", "cpu=40"},
		{"host", " label=app=web", "far=" + hostKey + ":app=web"},
		{"zone", " label=app=web", "far=" + zoneKey + ":app=web"},
		{"carriers", " far=" + zoneKey + ":app=new", "label=app=new"},
		{"unique-carriers", " label=pod=%d far=" + zoneKey + ":app=new", "label=app=new"},
		{"spread", " label=app=web", "label=app=web spread=" + hostKey + ":1:app=web spread=" + zoneKey + ":1:app=web"},
	} {
		for _, priority := range []int{0, 9} {
			b.Run(fmt.Sprintf("%s/priority=%d", c.name, priority), func(b *testing.B) {
				h := newHarness()
				for i := range benchNodes {
					h.PutNode(clustertest.Node(fmt.Sprintf("node-%d cpu=32 mem=64Gi pods=110 label=%s=node-%d label=%s=zone-%d", i, hostKey, i,
						zoneKey, i%10)))
					for j := range 20 {
						others := c.others
						if c.name == "unique-carriers" {
							others = fmt.Sprintf(c.others, 20*i+j)
						}
						h.AdmitPod(clustertest.Pod(fmt.Sprintf("p-%d-%d priority=5 cpu=1 node=node-%d%s", i, j, i, others)))
					}
				}
				h.AdmitPod(clustertest.Pod(fmt.Sprintf("asked priority=%d %s", priority, c.asked)))
				pod, _ := h.State.View().Pods.Get("default/asked")
				view := h.State.View()
				for b.Loop() {
					if len(explainAll(view, pod)) != benchNodes {
						b.Fatal("not all nodes were asked")
					}
				}
			})
		}
	}
}
