package agent

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// TestStopEnds: a part that does not end keeps no process from its end, and one that needs a moment longer than it has is waited for.
func TestStopEnds(t *testing.T) {
	for name, tt := range map[string]struct {
		takes time.Duration // after it was told to end
		want  bool
	}{"in time": {time.Second, true}, "a moment later": {35 * time.Second, true}, "never": {time.Hour, false}} {
		synctest.Test(t, func(t *testing.T) {
			run, cancel := context.WithCancel(t.Context())
			a := &Agent{cancel: cancel, ended: run.Done(), fatal: make(chan error, 1)}
			a.loops.Go(func() {
				<-run.Done()
				<-time.After(tt.takes)
			})
			ctx, end := context.WithTimeout(t.Context(), 30*time.Second)
			defer end()
			began := time.Now()
			if err := a.Stop(ctx); (err == nil) != tt.want {
				t.Errorf("%s: %v", name, err)
			}
			if took := time.Since(began); took > 40*time.Second {
				t.Errorf("%s: it took %s", name, took)
			}
			<-time.After(2 * time.Hour)
		})
	}
}

// TestEventsAreShort: what a runtime answers may be long, and is no reason to lose the stream in which it would be told.
func TestEventsAreShort(t *testing.T) {
	e := newEvent(&corev1.Pod{}, "Warning", "Failed", strings.Repeat("\xffx", 1<<20), time.Now())
	if n := len(e.Message); n == 0 || n > maxEventText {
		t.Errorf("an event has %d bytes", n)
	}
}
