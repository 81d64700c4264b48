package raftnode

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

// A server that was away for longer than the log reaches back gets a snapshot,
// and waits for an index work on it although the log there is empty.
func TestLaggingServerIsSentASnapshot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, func(c *Config) {
			c.SnapshotInterval, c.SnapshotThreshold, c.TrailingLogs = 100*time.Millisecond, 10, 1
		})
		c.must(namespace())
		away := c.followers()[0]
		c.isolate(away.ID())
		for i := range 50 {
			c.must(create(fmt.Sprint(i), "1"))
		}
		// The last entry is one that the state takes no part in.
		if err := c.leader().AddNonvoter(c.ctx(), "x", "x"); err != nil {
			t.Fatal(err)
		}
		<-time.After(time.Second)
		first, err := c.leader().guard.FirstIndex()
		if err != nil || first < 40 {
			t.Fatalf("the log starts at %d (%v): there was no snapshot", first, err)
		}
		want := c.leader().AppliedIndex()
		c.heal()
		if err := away.WaitApplied(c.ctx(), want); err != nil {
			t.Fatal(err)
		}
		c.same()
	})
}

func TestLargeLogIsSnapshotted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 1, func(c *Config) { c.SnapshotLogBytes, c.TrailingLogs = 100<<10, 1 })
		c.must(namespace())
		for i := range 12 {
			c.must(create(fmt.Sprint(i), string(make([]byte, 10<<10))))
		}
		c.eventually("a snapshot", func() bool {
			first, err := c.leader().guard.FirstIndex()
			return err == nil && first > 5
		})
	})
}
