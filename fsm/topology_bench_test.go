package fsm

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"testing"
)

// BenchmarkCountAll counts 100,000 pods on 10,000 nodes for the rules between
// pods: what a server does when it starts, and a what-if that meets such a rule.
func BenchmarkCountAll(b *testing.B) {
	for _, kinds := range []int{1, 1000, 100_000} {
		b.Run(fmt.Sprintf("kinds=%d", kinds), func(b *testing.B) {
			gc := debug.SetGCPercent(-1)
			defer debug.SetGCPercent(gc)
			w := worstPlan{Nodes: 10_000, Zones: 3, NodeLabels: 4, Placed: 100_000, Kinds: kinds, Namespaces: 1, Labels: 2, Levels: 1}.build(b)
			runtime.GC()
			v := w.state.View()
			from := threadTime()
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			for b.Loop() {
				v.countAll()
			}
			b.ReportMetric(float64((threadTime()-from).Microseconds())/1000/float64(b.N), "cpu-ms")
		})
	}
}
