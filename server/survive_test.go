package server

import (
	"bytes"
	"strings"
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/berth-dev/berth/controller"
	"github.com/berth-dev/berth/fsm"
)

// TestPanicsAreTold: a panic is counted each time, and told once, with where it was.
func TestPanicsAreTold(t *testing.T) {
	var told bytes.Buffer
	p, err := newPanics(prometheus.NewRegistry(), hclog.New(&hclog.LoggerOptions{Output: &told}))
	if err != nil {
		t.Fatal(err)
	}
	for range 20 {
		if p.try("heartbeats", func() { panic("the clock fell off the wall") }) {
			t.Error("it is said to have come to its end")
		}
	}
	if got := testutil.ToFloat64(p.count.WithLabelValues("heartbeats")); got != 20 {
		t.Errorf("%g panics counted", got)
	}
	if n := strings.Count(told.String(), "clock fell off"); n != 1 || !strings.Contains(told.String(), "TestPanicsAreTold") {
		t.Errorf("told %d times: %s", n, told.String())
	}
}

// TestControllersSurviveEachOther: what one of them panics at is not what the others want.
func TestControllersSurviveEachOther(t *testing.T) {
	p, err := newPanics(prometheus.NewRegistry(), hclog.NewNullLogger())
	if err != nil {
		t.Fatal(err)
	}
	c := &controllers{gc: controller.PodGC{Threshold: controller.TerminatedPodThreshold}}
	c.reconcile(p, fsm.NewState().View(), nil, 0, 1) // nobody's heartbeats: that of nodes cannot work without
	for _, name := range []string{"nominations", "taints", "namespaces", "pods", "events"} {
		if got := testutil.ToFloat64(p.count.WithLabelValues("controllers/" + name)); got != 0 {
			t.Errorf("%s panicked", name)
		}
	}
	var view *fsm.View // nobody can work without
	c.reconcile(p, view, nil, 0, 1)
	if got := testutil.ToFloat64(p.count.WithLabelValues("controllers/events")); got != 1 {
		t.Errorf("the last one was asked %g times", got)
	}
}
