package workloads

import (
	"testing"
	"time"
)

// A DaemonSet's controller holds the clock of its back-offs against the times since
// which pods are ready: it is the state's.
func TestDaemonSetsGoByTheStatesTime(t *testing.T) {
	state := time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC)
	o := Options{Now: func() time.Time { return state }}
	b := daemonBackoffs(o.clock())
	if now := b.Clock.Now(); now != state {
		t.Errorf("it is %s by its clock", now)
	}
	if since := b.Clock.Since(state.Add(-time.Minute)); since != time.Minute {
		t.Errorf("a minute ago was %s ago", since)
	}
	b.Next("pod", b.Clock.Now())
	if !b.IsInBackOffSinceUpdate("pod", state) {
		t.Error("it does not back off by the state's time")
	}
	state = state.Add(2 * daemonBackoff)
	if b.IsInBackOffSinceUpdate("pod", b.Clock.Now()) {
		t.Error("the back-off does not pass with the state's time")
	}
}
