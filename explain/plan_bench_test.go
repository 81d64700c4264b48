package explain

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/sched/whatif"
)

// BenchmarkPlan is a plan about as many pods as there may be, of which few have a place; ms/piece is how long the longest part of it takes
// between two of which GoOn is asked.
func BenchmarkPlan(b *testing.B) {
	a, p := evicts(b)
	pods := make([]*corev1.Pod, 10_000)
	for i := range pods {
		one := *p
		one.Name, one.UID = "", ""
		pods[i] = &one
	}
	everything := func(string) bool { return true }
	by := Planner{Asker: whatif.Asker{User: "test", Groups: []string{"system:masters"}}, MayReadPods: everything, MayReadBudgets: everything}
	var longest, last float64
	by.GoOn = func() error {
		now := float64(b.Elapsed().Nanoseconds()) / 1e6
		longest, last = max(longest, now-last), now
		return nil
	}
	for b.Loop() {
		last = float64(b.Elapsed().Nanoseconds()) / 1e6
		if _, err := Plan(b.Context(), a.state.View(), by, nil, pods); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(longest, "ms/piece")
}
