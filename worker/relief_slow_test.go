package worker

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/worker/eviction"
	"github.com/berth-dev/berth/worker/runtime/fake"
)

// Who has so many files that they are not counted in time goes first; the others are not waited for in vain.
func TestWhoCannotBeMeasuredGoes(t *testing.T) {
	r := newRelieved(t, eviction.NodeFSInodes, using("a", 0, "0"), using("endless", 10, "0"), using("z", 0, "0"))
	r.measured.mu.Lock()
	r.inodes = map[types.UID]int64{"a": 1000, "z": 1000}
	r.endless = map[types.UID]bool{"endless": true}
	r.available = 50
	r.measured.mu.Unlock()
	r.await(t, "it to go", func() bool {
		r.clock.Step(time.Second)
		return r.failed() == "endless"
	})
}

// stuck is a runtime that does not come back from removing what no pod needs.
type stuck struct {
	*measured
	asked chan struct{}
}

func (s *stuck) Reclaim(ctx context.Context) error {
	select {
	case s.asked <- struct{}{}:
	default:
	}
	<-ctx.Done()
	return ctx.Err()
}

// While a disk is being freed, what the node is short of is measured and told, and a pod goes for something else.
func TestReliefThatTakesLong(t *testing.T) {
	s, clk := newServers(), newStepClock()
	rt := &stuck{measured: &measured{Runtime: fake.New(runTimeline(t)), uses: map[types.UID]int64{"a": 60}}, asked: make(chan struct{}, 1)}
	var mu sync.Mutex
	memory := int64(100)
	run(t, Options{
		Node: testNode(t), Uplink: s, Runtime: rt, Clock: clk,
		Eviction: eviction.Config{Thresholds: []eviction.Threshold{
			{Signal: eviction.MemoryAvailable, Least: eviction.Amount{Absolute: 100}}, {Signal: eviction.NodeFSAvailable, Least: eviction.Amount{Absolute: 100}}}},
		Observe: func(context.Context) (eviction.Observations, error) {
			mu.Lock()
			defer mu.Unlock()
			return eviction.Observations{eviction.MemoryAvailable: {Available: memory, Capacity: 1000}, eviction.NodeFSAvailable: {Available: 50, Capacity: 1000}}, nil
		},
	})
	s.assignments <- Assignment{Full: true, Pods: []*corev1.Pod{using("a", 0, "0")}}
	asked := false
	s.await(t, "a disk to be freed while the pod runs", func() bool {
		clk.Step(time.Second)
		select {
		case <-rt.asked:
			asked = true
		default:
		}
		return asked && s.pods["a"].Status.Phase == corev1.PodRunning
	})
	mu.Lock()
	memory = 50
	mu.Unlock()
	s.await(t, "both to be told, and the pod to go for want of memory", func() bool {
		clk.Step(time.Second)
		return s.pods["a"].Status.Reason == evicted && slices.ContainsFunc(s.nodes, func(n *corev1.NodeStatus) bool {
			return slices.ContainsFunc(n.Conditions, func(c corev1.NodeCondition) bool {
				return c.Type == corev1.NodeMemoryPressure && c.Status == corev1.ConditionTrue
			})
		})
	})
}
