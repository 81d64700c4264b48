package server

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/berth-dev/berth/controller"
	"github.com/berth-dev/berth/fsm"
)

// TestLoopsSurvive: a loop that panics is begun again until it ends by itself or its context does, each panic is counted,
// and one that is known is not told again.
func TestLoopsSurvive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var told bytes.Buffer
		p, err := newPanics(prometheus.NewRegistry(), hclog.New(&hclog.LoggerOptions{Output: &told}))
		if err != nil {
			t.Fatal(err)
		}
		runs := 0
		p.keep(t.Context(), "heartbeats", func(context.Context) {
			if runs++; runs <= 20 {
				panic("the clock fell off the wall")
			}
		})
		if got := testutil.ToFloat64(p.count.WithLabelValues("heartbeats")); runs != 21 || got != 20 {
			t.Errorf("%d runs, %g panics counted", runs, got)
		}
		if n := strings.Count(told.String(), "clock fell off"); n != 1 || !strings.Contains(told.String(), "TestLoopsSurvive") {
			t.Errorf("told %d times: %s", n, told.String())
		}
		ctx, cancel := context.WithCancel(t.Context())
		p.keep(ctx, "push", func(context.Context) {
			cancel()
			panic("at the end")
		})
	})
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
