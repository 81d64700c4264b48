package sched

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/api/berthv1"
	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/sched/clustertest"
)

// The benchmarks tell what the scheduler alone costs: Step, Settle and following the feed. Applying the plans happens
// between, off the clock, and is told as apply-s.

const benchNodes = 5000

func benchCluster(b *testing.B, fill string) *harness {
	b.Helper()
	h := newHarness()
	for i := range benchNodes {
		h.PutNode(clustertest.Node(fmt.Sprintf("node-%d cpu=32 mem=64Gi pods=110 label=kubernetes.io/hostname=node-%d", i, i)))
		if fill == "" {
			continue
		}
		for j := range 4 {
			h.AdmitPod(clustertest.Pod(fmt.Sprintf("low-%d-%d %s node=node-%d start=%d", i, j, fill, i, 1+(i*7+j*13)%997)))
		}
	}
	return h
}

// admit creates count pods from the specs in turn.
func (h *harness) admit(count int, specs ...string) {
	pods := make([]*corev1.Pod, len(specs))
	for i, spec := range specs {
		pods[i] = clustertest.Pod(spec)
		if p := pods[i].Spec.Priority; p != nil {
			pods[i].Spec.PriorityClassName = h.Class(*p, nil)
		}
	}
	for i := range count {
		p := *pods[i%len(pods)]
		p.Namespace, p.Name = "default", fmt.Sprintf("pod-%d", i)
		p.UID = types.UID(fmt.Sprintf("1b4e28ba-2fa1-11d2-883f-%012x", i))
		h.Must(&fsm.AdmitPod{Pod: fsm.PodWire{Object: &p}})
	}
}

// drive steps until count pods are decided and reports how many a second.
func (h *harness) drive(b *testing.B, count int, unit string) {
	h.sched.followAll() // a leader's view is there before its first pod
	decided := 0
	var inSched, inApply time.Duration
	for decided < count {
		from := time.Now()
		p := h.next(1024)
		inSched += time.Since(from)
		if p == nil {
			b.Fatalf("stuck after %d of %d", decided, count)
		}
		decided += p.Decisions
		from = time.Now()
		r := h.Must(p.Command)
		inApply += time.Since(from)
		if len(r.Plan.Refused) > 0 {
			b.Fatalf("refused: %v", r.Plan.Refused[0])
		}
		from = time.Now()
		h.sched.Settle(p)
		inSched += time.Since(from)
	}
	b.ReportMetric(float64(count)/inSched.Seconds(), unit+"/s")
	b.ReportMetric(inApply.Seconds(), "apply-s")
}

func BenchmarkPlace(b *testing.B) {
	const pods = 30_000
	for _, classes := range []int{1, 100} {
		b.Run(fmt.Sprintf("classes=%d", classes), func(b *testing.B) {
			for b.Loop() {
				h := benchCluster(b, "")
				var specs []string
				for i := range classes {
					specs = append(specs, fmt.Sprintf("p cpu=%dm mem=%dMi", 100+10*i, 128+8*i))
				}
				h.admit(pods, specs...)
				h.drive(b, pods, "placements")
			}
		})
	}
}

func BenchmarkPreempt(b *testing.B) {
	const pods = 5000
	for _, classes := range []int{1, 50} {
		b.Run(fmt.Sprintf("classes=%d", classes), func(b *testing.B) {
			for b.Loop() {
				h := benchCluster(b, "priority=1 cpu=8 mem=8Gi")
				var specs []string
				for i := range classes {
					specs = append(specs, fmt.Sprintf("p priority=%d cpu=%d mem=4Gi", 100+i/2, 6+i%2))
				}
				h.admit(pods, specs...)
				h.drive(b, pods, "preemptors")
			}
		})
	}
}

// BenchmarkUnschedulable: pods that fit nowhere are decided once for their class.
func BenchmarkUnschedulable(b *testing.B) {
	const pods = 30_000
	for b.Loop() {
		h := benchCluster(b, "")
		h.admit(pods, "p cpu=100 mem=1Gi", "p cpu=200 mem=1Gi")
		h.drive(b, pods, "failures")
	}
}

// BenchmarkBesideHopeless: a step while pods that no node can ever take have waited for long enough for a reservation.
func BenchmarkBesideHopeless(b *testing.B) {
	h := benchCluster(b, "priority=1 cpu=8 mem=8Gi")
	after := int32(1)
	h.Configure(func(spec *berthv1.SchedulerConfigurationSpec) { spec.Reservation.AfterSeconds = &after })
	for i := range maxBlocked {
		h.AdmitPod(clustertest.Pod(fmt.Sprintf("hopeless%d cpu=%dm select=pool=none", i, 25000+i)))
	}
	for p := h.next(1024); p != nil; p = h.next(1024) {
		h.commit(p)
	}
	h.NowUnixNano += 100 * second
	var inSched time.Duration
	for i := 0; b.Loop(); i++ {
		h.AdmitPod(clustertest.Pod(fmt.Sprintf("small%d priority=1 cpu=1m", i)))
		from := time.Now()
		p := h.next(1024)
		inSched += time.Since(from)
		h.commit(p)
	}
	b.ReportMetric(float64(inSched.Microseconds())/float64(b.N), "µs/step")
}

// BenchmarkLoad: a new leader builds its view.
func BenchmarkLoad(b *testing.B) {
	h := benchCluster(b, "priority=1 cpu=8 mem=8Gi")
	for b.Loop() {
		s := New(h.State)
		s.followAll()
	}
	b.ReportMetric(float64(benchNodes*4), "pods")
}
