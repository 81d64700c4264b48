package raftnode

import (
	"bytes"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berth-dev/berth/store"
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

func TestSnapshotAndRestoreWholeCluster(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, nil)
		c.must(namespace())
		c.must(create("m", "old"))
		c.same()
		r, view, err := c.followers()[0].Snapshot(c.ctx())
		if err != nil {
			t.Fatal(err)
		}
		saved, err := drain(r)
		if err != nil {
			t.Fatal(err)
		}
		h, err := store.ReadSnapshotHeader(bytes.NewReader(saved))
		if err != nil || h.Revision != view.Revision() || h.Index != view.Index() {
			t.Fatalf("%+v, %v: the view has revision %d", h, err, view.Revision())
		}
		c.must(put("m", "new"), create("n", "1"))
		c.same()
		leader := c.leader()
		before := leader.state.View()

		damaged := bytes.Clone(saved)
		damaged[len(damaged)/2] ^= 1
		if err := leader.RestoreSnapshot(c.ctx(), bytes.NewReader(damaged)); !errors.Is(err, store.ErrSnapshot) {
			t.Fatalf("a damaged snapshot: %v", err)
		}
		if leader.state.View() != before {
			t.Fatal("a damaged snapshot changed the state")
		}
		if err := c.followers()[0].RestoreSnapshot(c.ctx(), bytes.NewReader(saved)); err == nil {
			t.Fatal("a follower restores the cluster")
		}

		if err := leader.RestoreSnapshot(c.ctx(), bytes.NewReader(saved)); err != nil {
			t.Fatal(err)
		}
		c.same()
		for id, n := range c.nodes {
			if got := value(n.state, "m"); got != "old" {
				t.Errorf("%s has %q", id, got)
			}
			if value(n.state, "n") != "" {
				t.Errorf("%s kept what the snapshot does not have", id)
			}
			if got := n.state.View().Revision(); got <= before.Revision() {
				t.Errorf("%s went back to revision %d from %d", id, got, before.Revision())
			}
			if _, err := n.state.Feed().After(before.Revision(), 10); !errors.Is(err, store.ErrCompacted) {
				t.Errorf("%s lets a watch go on across the restore: %v", id, err)
			}
		}
		index, err := leader.ReadIndex(c.ctx())
		if err != nil {
			t.Fatal(err)
		}
		for id, n := range c.nodes {
			if err := n.WaitApplied(c.ctx(), index); err != nil {
				t.Errorf("%s: %v", id, err)
			}
		}
		c.must(put("m", "newer"))
		c.same()
	})
}
