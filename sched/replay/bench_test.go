package replay

import (
	"fmt"
	"testing"
	"time"

	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/sched"
	"github.com/berth-dev/berth/sched/clustertest"
)

// BenchmarkReplay replays a log of pods that come one by one, evict others where there is no room, and leave, on 1,000
// nodes. -benchtime=1000000x makes it a million entries.
func BenchmarkReplay(b *testing.B) {
	l := &clustertest.Log{Term: 1}
	cl := clustertest.NewLogged(l)
	s := sched.New(cl.State)
	const nodes = 1000
	for i := range nodes {
		cl.PutNode(clustertest.Node(fmt.Sprintf("n%d cpu=8 mem=32Gi label=zone=%d", i, i%5)))
	}
	sizes := []string{"cpu=1 mem=1Gi", "cpu=2 mem=2Gi", "cpu=500m mem=4Gi", "cpu=3 mem=1Gi select=zone=1"}
	var oldest []string
	var under []*sched.Plan
	for l.Last() < uint64(max(b.N, 2*nodes)) {
		n := cl.Admitted
		p := clustertest.Pod(fmt.Sprintf("p%d priority=%d %s", n, n%7, sizes[n%len(sizes)]))
		cl.AdmitPod(p)
		oldest = append(oldest, fsm.PodKey("default", p.Name))
		if n%20 == 0 {
			p := clustertest.Next(s, cl.NowUnixNano, 1024)
			if p != nil {
				under = append(under, p)
			}
			if len(under) > 2 || p == nil && len(under) > 0 { // plans are pipelined
				cl.Must(under[0].Command)
				s.Settle(under[0])
				under = under[1:]
			}
		}
		if n%100 == 0 {
			cl.Confirm()
		}
		for len(oldest) > 5*nodes {
			if _, ok := cl.State.View().Pods.Get(oldest[0]); ok {
				cl.Remove(oldest[0])
			}
			oldest = oldest[1:]
		}
		cl.NowUnixNano += int64(time.Second) / 100
	}
	b.ResetTimer()
	r := &Replayer{State: fsm.NewState(), Log: l, Keep: 5}
	if err := r.Run(l.Last()); err != nil {
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
