package model

import (
	"fmt"
	"maps"
	"runtime"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"
)

func TestTallyCounts(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var got tally
		want := map[int32]int32{}
		domains := rapid.Int32Range(0, rapid.SampledFrom([]int32{2, 20, 2000}).Draw(t, "domains"))
		for range rapid.IntRange(1, 300).Draw(t, "steps") {
			d, n := domains.Draw(t, "domain"), rapid.Int32Range(-3, 5).Draw(t, "pods")
			got.add(d, n)
			want[d] += n
			copied := got.clone()
			for d := range domains.Draw(t, "looked at") + 3 {
				if got.at(d) != want[d] || copied.at(d) != want[d] {
					t.Fatalf("domain %d has %d, its copy %d, want %d", d, got.at(d), copied.at(d), want[d])
				}
			}
		}
		if got.all == nil {
			for _, c := range got.few {
				if c.pods == 0 {
					t.Fatalf("an empty domain is kept: %v", got.few)
				}
			}
		}
	})
}

func TestHistogramFindsTheLeast(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var h histogram
		var want []int32
		for range rapid.IntRange(1, 100).Draw(t, "steps") {
			if len(want) > 0 && rapid.Bool().Draw(t, "move") {
				i := rapid.IntRange(0, len(want)-1).Draw(t, "which")
				to := rapid.Int32Range(0, 9).Draw(t, "to")
				h.move(want[i], to)
				want[i] = to
			} else if len(want) > 0 && rapid.Bool().Draw(t, "remove") {
				i := rapid.IntRange(0, len(want)-1).Draw(t, "which")
				h.remove(want[i])
				want = slices.Delete(want, i, i+1)
			} else {
				pods := rapid.SampledFrom([]int32{0, 1, 2, 1 << 30}).Draw(t, "pods")
				h.add(pods)
				want = append(want, pods)
			}
			least := int64(0)
			if len(want) > 0 {
				least = int64(slices.Min(want))
			}
			if h.least() != least {
				t.Fatalf("least of %v: %d", want, h.least())
			}
		}
	})
}

// heapOf is what a thing that is made holds in the end, in bytes.
func heapOf(made func() any) int64 {
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	kept := made()
	runtime.GC()
	runtime.ReadMemStats(&after)
	runtime.KeepAlive(kept)
	return int64(after.HeapAlloc) - int64(before.HeapAlloc)
}

// Terms that few pods are about, and keys that no node has, cost what they say and not the nodes of the cluster.
func TestTermsDoNotCostTheCluster(t *testing.T) {
	const nodes, pods, terms = 5000, 100, 64
	for name, key := range map[string]func(pod, term int) string{
		"keys that no node has": func(pod, term int) string { return fmt.Sprintf("example.com/%d-%d", pod, term) },
		"host names":            func(int, int) string { return corev1.LabelHostname },
	} {
		t.Run(name, func(t *testing.T) {
			topology := NewTopology()
			base := heapOf(func() any {
				for i := range nodes {
					name := fmt.Sprintf("n%d", i)
					topology.PutNode(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name}}})
				}
				return topology
			})
			t.Logf("%d nodes: %d kB", nodes, base>>10)
			each := heapOf(func() any {
				for i := range pods {
					pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprint(i)}}
					anti := &corev1.PodAntiAffinity{}
					for k := range terms {
						anti.RequiredDuringSchedulingIgnoredDuringExecution = append(anti.RequiredDuringSchedulingIgnoredDuringExecution, corev1.PodAffinityTerm{
							TopologyKey:   key(i, k),
							LabelSelector: &metav1.LabelSelector{MatchLabels: maps.Clone(map[string]string{"app": fmt.Sprintf("%d-%d", i, k)})},
						})
					}
					pod.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: anti}
					c := ClassOf(pod)
					topology.Judge(c)
					topology.AddPod(fmt.Sprintf("n%d", nodes-1-i), c, false)
				}
				return topology
			}) / (pods * terms)
			t.Logf("%d bytes a term", each)
			if each > 8<<10 {
				t.Errorf("a term holds %d bytes in a cluster of %d nodes", each, nodes)
			}
		})
	}
}
