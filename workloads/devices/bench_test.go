package devices

import (
	"fmt"
	"testing"
)

// BenchmarkGive is a pod with a claim of one device, from when it waits to when it has one, among so many nodes of eight.
func BenchmarkGive(b *testing.B) {
	for _, nodes := range []int{100, 1000, 10_000} {
		b.Run(fmt.Sprint(nodes, " nodes"), func(b *testing.B) {
			w := newWorld(b)
			for i := range nodes {
				name := fmt.Sprint("n", i)
				w.kubelet(name + " cpu=64 mem=64Gi pods=110")
				w.gpus(name, "big", "big", "big", "big", "small", "small", "small", "small")
			}
			w.a.pass(b.Context())
			b.ResetTimer()
			for i := range b.N {
				b.StopTimer()
				name := fmt.Sprint("p", i)
				w.claim(name, request(1, "big"))
				w.pod(name+" cpu=1", name)
				b.StartTimer()
				w.a.pass(b.Context())
				b.StopTimer()
				w.decide()
				if w.nodeOf(name) == "" {
					b.Fatalf("%s has no node: %s", name, w.DescribeQueue())
				}
				b.StartTimer()
			}
		})
	}
}
