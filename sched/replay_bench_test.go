package sched

import (
	"fmt"
	"testing"

	"github.com/berth-dev/berth/fsm"
)

// BenchmarkReplay replays a log of pods that come one by one, evict others where there is no room, and leave, on 1,000
// nodes. -benchtime=1000000x makes it a million entries.
func BenchmarkReplay(b *testing.B) {
	l := &memoryLog{term: 1}
	h := newHarnessOn(l)
	const nodes = 1000
	for i := range nodes {
		h.node(mkNode(fmt.Sprintf("n%d cpu=8 mem=32Gi label=zone=%d", i, i%5)))
	}
	sizes := []string{"cpu=1 mem=1Gi", "cpu=2 mem=2Gi", "cpu=500m mem=4Gi", "cpu=3 mem=1Gi select=zone=1"}
	var oldest []string
	var under []*Plan
	for len(l.entries) < max(b.N, 2*nodes) {
		n := h.pods
		p := mkPod(fmt.Sprintf("p%d priority=%d %s", n, n%7, sizes[n%len(sizes)]))
		h.pod(p)
		oldest = append(oldest, fsm.PodKey("default", p.Name))
		if n%20 == 0 {
			p := h.next(1024)
			if p != nil {
				under = append(under, p)
			}
			if len(under) > 2 || p == nil && len(under) > 0 { // plans are pipelined
				h.must(under[0].Command)
				h.sched.Settle(under[0])
				under = under[1:]
			}
		}
		if n%100 == 0 {
			h.confirm()
		}
		for len(oldest) > 5*nodes {
			if _, ok := h.state.View().Pods.Get(oldest[0]); ok {
				h.remove(oldest[0])
			}
			oldest = oldest[1:]
		}
		h.now += second / 100
	}
	b.ResetTimer()
	r := &Replay{State: fsm.NewState(), Log: l, Keep: 5}
	if err := r.Run(uint64(len(l.entries))); err != nil {
		b.Fatal(err)
	}
	b.StopTimer()
	if r.Report.Different > 0 || r.Report.SkippedUnknown+r.Report.SkippedAtStart > 0 {
		b.Fatalf("%+v", r.Report)
	}
	b.ReportMetric(float64(r.Report.Entries)/b.Elapsed().Seconds(), "entries/s")
	b.ReportMetric(float64(r.Report.Decisions), "decisions")
	b.ReportMetric(float64(r.Report.Preemptions), "preemptions")
}
