package worker

import (
	"bytes"
	"strings"
	"testing"

	"github.com/hashicorp/go-hclog"

	"github.com/berth-dev/berth/worker/eviction"
)

// TestWhatIsShortIsToldNowAndThen: with its unit and its threshold, and not at every look.
func TestWhatIsShortIsToldNowAndThen(t *testing.T) {
	var out bytes.Buffer
	clock := newStepClock()
	a := &Agent{clock: clock, log: hclog.New(&hclog.LoggerOptions{Output: &out})}
	short := &eviction.Threshold{Signal: eviction.MemoryAvailable, Least: eviction.Amount{Absolute: 100 << 20}}
	for range 3 {
		a.tellShort(short, eviction.Observed{Available: 50 << 20, Capacity: 1 << 30})
	}
	if n := strings.Count(out.String(), "the node runs short"); n != 1 || !strings.Contains(out.String(), "available=50Mi threshold=100Mi") {
		t.Errorf("it is told %d times: %s", n, out.String())
	}
	clock.Step(shortPause)
	a.tellShort(short, eviction.Observed{Available: 50 << 20, Capacity: 1 << 30})
	if n := strings.Count(out.String(), "the node runs short"); n != 2 {
		t.Errorf("after %s it is told %d times in all", shortPause, n)
	}
}
