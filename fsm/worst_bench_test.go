package fsm

import (
	"crypto/sha256"
	"fmt"
	"runtime"
	"runtime/debug"
	"slices"
	"testing"
	"time"
)

// The worst cases that were found, each a world and the commands that were dear
// in it. They tell the longest entry of those applied (worst-ms), of it what the
// proposer would put into one entry (paced-ms), and the time of a unit of work.
// The worlds have a tenth of the size that is the goal, unless they say
// otherwise: `-worst.plan` makes any other.

func benchmarkWorst(b *testing.B, p worstPlan, names ...string) {
	gc := debug.SetGCPercent(-1)
	defer debug.SetGCPercent(gc)
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(4 << 30))
	w := p.build(b)
	for _, c := range worstCases() {
		if !slices.Contains(names, c.name) {
			continue
		}
		b.Run(c.name, func(b *testing.B) {
			own := w.copy()
			runtime.GC()
			var worst, all worstCost
			for i := 0; b.Loop(); i++ {
				b.StopTimer()
				cs := c.make(own, i)
				b.StartTimer()
				cost := own.measure(cs)
				worst.Time, worst.Paced = max(worst.Time, cost.Time), max(worst.Paced, cost.Paced)
				all.Time, all.Work = all.Time+cost.Time, all.Work+cost.Work
			}
			b.ReportMetric(float64(worst.Time.Microseconds())/1000, "worst-ms")
			b.ReportMetric(float64(worst.Paced.Microseconds())/1000, "paced-ms")
			b.ReportMetric(float64(all.Time.Nanoseconds())/float64(max(1, all.Work)), "ns/unit")
		})
	}
}

// BenchmarkWorstRules: those who wait have rules that demand no label, so that
// each term is about all pods.
func BenchmarkWorstRules(b *testing.B) {
	benchmarkWorst(b, worstPlan{Nodes: 1000, Zones: 3, NodeLabels: 4, Placed: 5000, Kinds: 1000, Waiting: 5000, Shapes: 1000, Namespaces: 1, Labels: 2,
		Levels: 1, PlacedRules: worstRules{Anti: 2, Key: 1}, WaitingRules: worstRules{Anti: 4, About: 2}},
		"ApplyPlan/bindings", "ApplyPlan/failures", "ApplyPlan/preemptions", "DeletePod", "DeletePod/full", "PutNode/new", "UpdatePod/labels")
}

// BenchmarkWorstPriorities: a node has thousands of pods of hundreds of
// priorities.
func BenchmarkWorstPriorities(b *testing.B) {
	benchmarkWorst(b, worstPlan{Nodes: 100, Zones: 3, Placed: 1000, Kinds: 1, Crowd: 7000, Waiting: 100, Shapes: 100, Namespaces: 1, Labels: 10, Levels: 300},
		"DeletePod", "DeletePod/full", "UpdatePod/labels-full", "ReportPods/ready", "AdmitPods/named", "SetNodeHealth/lost", "ApplyPlan/preempt-all")
}

// BenchmarkWorstBudgets: hundreds of budgets demand no label, so that each of
// them covers all pods.
func BenchmarkWorstBudgets(b *testing.B) {
	benchmarkWorst(b, worstPlan{Nodes: 100, Zones: 3, Placed: 10_000, Kinds: 100, Waiting: 100, Shapes: 100, Namespaces: 1, Levels: 1, Budgets: 300, AnyBudget: true},
		"DeletePod", "EvictPod", "ReportPods/ready", "ReportPods/nodes", "PutDisruptionBudget")
}

// BenchmarkWorstShapes: thousands of shapes wait that would fit everywhere, so
// that whatever happens to a node wakes as many as an entry may.
func BenchmarkWorstShapes(b *testing.B) {
	benchmarkWorst(b, worstPlan{Nodes: 1000, Zones: 3, Placed: 1000, Kinds: 10, Waiting: 100_000, Shapes: 10_000, Namespaces: 1, Levels: 300},
		"PutNode/new", "PutNode/grow", "SetNodeHealth/many", "SetNodeHealth/back", "DeletePod", "ApplyPlan/empty", "ConfigureScheduler/budgets",
		"ConfigureScheduler/fifo", "ConfigureScheduler/profiles")
}

// BenchmarkWorstKinds: thousands of kinds of pods are placed and wait, each with
// rules about its own kind by a zone and with priorities of its own.
func BenchmarkWorstKinds(b *testing.B) {
	benchmarkWorst(b, worstPlan{Nodes: 1000, Zones: 3, NodeLabels: 4, Placed: 10_000, Kinds: 10_000, Waiting: 10_000, Shapes: 10_000, Namespaces: 1, Labels: 10,
		Levels: 300, PlacedRules: worstRules{Anti: 1, Key: 1}, WaitingRules: worstRules{Anti: 1, Affinity: 1, Spread: 2, Key: 1}},
		"PutNode/grow", "DeletePod", "UpdatePod/labels", "ApplyPlan/bindings", "ApplyPlan/failures")
}

// BenchmarkWorstCounting: the first pod, with as many terms as it may have, about
// 100,000 pods that have labels of their own each, and what counts them.
func BenchmarkWorstCounting(b *testing.B) {
	benchmarkWorst(b, worstPlan{Nodes: 10_000, Zones: 3, NodeLabels: 4, Placed: 100_000, Kinds: 100_000, Namespaces: 1, Labels: 4, Levels: 1},
		"AdmitPod/first-rules", "AdmitPod/wide-rule", "AdmitPod/counting")
}

// BenchmarkWorstRestore: a snapshot of 10,000 nodes and 100,000 pods becomes the
// state, in one entry.
func BenchmarkWorstRestore(b *testing.B) {
	w := worstPlan{Nodes: 10_000, Zones: 3, NodeLabels: 4, Placed: 100_000, Kinds: 1000, Namespaces: 1, Labels: 2, Levels: 1}.build(b)
	whole := deflated(b, w.state.View())
	sum := sha256.Sum256(whole)
	var worst time.Duration
	for i := 0; b.Loop(); i++ {
		b.StopTimer()
		own, id := w.copy(), fmt.Sprint(i)
		own.must(&StageSnapshot{ID: id, Data: whole})
		b.StartTimer()
		worst = max(worst, own.measure([]Command{&RestoreSnapshot{ID: id, Bytes: int64(len(whole)), SHA256: sum[:]}}).Time)
	}
	b.ReportMetric(float64(worst.Microseconds())/1000, "worst-ms")
}

// BenchmarkWorstAsks: waiting pods have as large a node affinity as they may.
func BenchmarkWorstAsks(b *testing.B) {
	benchmarkWorst(b, worstPlan{Nodes: 1000, Zones: 3, Placed: 1000, Kinds: 10, Waiting: 2000, Shapes: 1000, Namespaces: 1, Levels: 3, Where: 500},
		"UpdatePod/waiting", "UpdatePod/waiting-full", "PutNode/grow", "ApplyPlan/bindings")
}

// BenchmarkWorstTerms: waiting pods have as many terms about other pods as they may.
func BenchmarkWorstTerms(b *testing.B) {
	benchmarkWorst(b, worstPlan{Nodes: 1000, NodeLabels: 64, Zones: 3, Placed: 1000, Kinds: 10, Waiting: 2000, Shapes: 1000, Namespaces: 1, Levels: 3,
		WaitingRules: worstRules{Anti: 64, Key: 2}}, "AdmitPod/full", "UpdatePod/waiting-full")
}

// BenchmarkWorstVolumes: waiting pods have as many claims as they may, each of which can be given any of thousands of volumes: of
// hosts and of zones, and, with demands of their own, of two hosts each; or have volumes with long node affinities.
func BenchmarkWorstVolumes(b *testing.B) {
	for _, v := range []struct {
		name    string
		volumes worstVolumes
	}{
		{"hosts", worstVolumes{Free: 10_000, Claims: 256}}, {"one", worstVolumes{Free: 10_000, Claims: 1}},
		{"zones", worstVolumes{Free: 10_000, At: 1, Claims: 256}}, {"demands", worstVolumes{Free: 10_000, At: 3, Claims: 256, Demands: 256}},
		{"bound", worstVolumes{Free: 1, Claims: 256, Bound: true}},
	} {
		b.Run(v.name, func(b *testing.B) {
			benchmarkWorst(b, worstPlan{Nodes: 1000, Zones: 3, Placed: 1000, Kinds: 10, Waiting: 1000, Shapes: 1000, Namespaces: 1, Levels: 1, Volumes: v.volumes},
				"ApplyPlan/bindings", "ApplyPlan/one-binding", "ApplyPlan/failures", "ApplyPlan/preemptions", "PutNode/grow", "PutObject/volume")
		})
	}
}
