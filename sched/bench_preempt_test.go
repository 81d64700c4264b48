package sched

import (
	"fmt"
	"testing"
	"time"

	"github.com/berth-dev/berth/api/berthv1"
	"github.com/berth-dev/berth/sched/clustertest"
)

// mixedCluster has nodes that are full of 10 to 20 pods of many sizes and three priorities, half of them under budgets
// that allow a few disruptions each.
func mixedCluster(b *testing.B, budgets bool, limit int32) *harness {
	b.Helper()
	h := newHarness()
	h.Configure(func(s *berthv1.SchedulerConfigurationSpec) { s.Preemption.SearchLimit = &limit })
	for i := range benchNodes {
		h.PutNode(clustertest.Node(fmt.Sprintf("node-%d cpu=32 mem=64Gi pods=110", i)))
		left := 32000
		for j := 0; left > 0; j++ {
			cpu := min(1000+250*((i*7+j*11)%9), left)
			if j == 19 {
				cpu = left
			}
			left -= cpu
			h.AdmitPod(clustertest.Pod(fmt.Sprintf("low-%d-%d priority=%d cpu=%dm mem=%dMi node=node-%d start=%d ready label=app=a%d", i, j,
				(i+j)%3, cpu,
				512+256*((i+j*5)%7), i, 1+(i*7+j*13)%997, (i*31+j)%1000)))
		}
	}
	if budgets {
		for a := range 500 {
			pods := 0
			if row, ok := h.State.View().Budgets.Get(fmt.Sprintf("default/b%d", a)); ok {
				pods = int(row.Status.CurrentHealthy)
			}
			h.PutBudget([]string{fmt.Sprintf("b%d", a), fmt.Sprintf("app=a%d", a), fmt.Sprintf("min=%d", max(60+a%20, pods))})
		}
	}
	return h
}

// BenchmarkPreemptMixed: what a decision costs where every node has another best choice, with budgets and without, with
// the least victims and with kube-scheduler's.
func BenchmarkPreemptMixed(b *testing.B) {
	const pods = 5000
	for _, budgets := range []bool{false, true} {
		for _, limit := range []int32{0, 1000} {
			b.Run(fmt.Sprintf("budgets=%v/limit=%d", budgets, limit), func(b *testing.B) {
				for b.Loop() {
					h := mixedCluster(b, budgets, limit)
					var specs []string
					for i := range 20 {
						specs = append(specs, fmt.Sprintf("p priority=%d cpu=%dm mem=%dMi", 100+i/2, 2000+700*(i%10), 1024+512*(i%5)))
					}
					h.admit(pods, specs...)
					slowest := h.slowest(b, 200)
					h.drive(b, pods-200, "preemptors")
					b.ReportMetric(float64(slowest.Microseconds())/1000, "slowest-ms")
				}
			})
		}
	}
}

// slowest decides count pods one by one and returns the longest time that one took.
func (h *harness) slowest(b *testing.B, count int) time.Duration {
	h.sched.followAll()
	var most time.Duration
	for range count {
		from := time.Now()
		p := h.next(1)
		most = max(most, time.Since(from))
		if p == nil {
			b.Fatal("stuck")
		}
		if refused := h.commit(p); len(refused) > 0 {
			b.Fatalf("refused: %v", refused[0])
		}
	}
	return most
}
