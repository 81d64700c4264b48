package server

import (
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/clock"
	"github.com/berth-dev/berth/fsm"
)

// testClocks are a machine's clocks, which a test can put forward.
type testClocks struct {
	process clock.Source

	mu            sync.Mutex
	wall, elapsed time.Duration
}

func newTestClocks() *testClocks { return &testClocks{process: clock.Process()} }

func (c *testClocks) read() clock.Reading {
	r := c.process()
	c.mu.Lock()
	defer c.mu.Unlock()
	r.WallUnixNano += int64(c.wall)
	r.Elapsed += c.elapsed
	return r
}

// sleep is what a server finds that did not run for so long.
func (c *testClocks) sleep(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.wall += d
	c.elapsed += d
}

// set sets the wall clock.
func (c *testClocks) set(by time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.wall += by
}

func readyCondition(v *fsm.View, node string) (out corev1.NodeCondition) {
	n, ok := v.Nodes.Get(node)
	if !ok {
		return out
	}
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			out = c
		}
	}
	return out
}

// A server that slept counts its own sleep, and not the workers' silence: nobody
// is taken for lost, not even for a moment.
func TestASleepIsNotTheWorkersSilence(t *testing.T) {
	clocks := newTestClocks()
	c := newTestCluster(t)
	s := c.start("a", func(cfg *Config) { cfg.BootstrapExpect, cfg.Clock = 1, clocks.read })
	c.leader()
	_, stop := connect(t, "w", s)
	defer stop()
	heardSince := func(unixNano int64) func() bool {
		return func() bool {
			at, ok := s.beats.LastSeenUnixNano("w")
			return ok && at >= unixNano
		}
	}
	eventually(t, "the worker's stream to be reported", heardSince(0))
	before := readyCondition(s.View(), "w")
	for range 2 {
		clocks.sleep(264 * time.Second)
		awake := s.NowUnixNano()
		eventually(t, "the worker to be heard again", heardSince(awake))
	}
	// The entries since then are stamped with the time after the sleep.
	c.propose(s, namespace("after"))
	after := readyCondition(s.View(), "w")
	if after.Status != corev1.ConditionTrue || !after.LastTransitionTime.Equal(&before.LastTransitionTime) {
		t.Errorf("the node was %v, and is %v: it was taken for lost", before, after)
	}
	since := metav1.NewTime(time.Unix(0, s.View().TimeUnixNano()))
	if passed := since.Sub(before.LastTransitionTime.Time); passed < 2*264*time.Second {
		t.Errorf("the state's time did not pass with the sleep: %s", passed)
	}
}
