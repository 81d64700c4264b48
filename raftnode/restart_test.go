package raftnode

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berth-dev/berth/store"
)

// onDisk keeps every server's data under one directory of the test.
func onDisk(dir string) func(*Config) {
	return func(c *Config) {
		c.InMemory, c.NoFsync = false, true
		c.DataDir = filepath.Join(dir, c.ID)
	}
}

// onDiskWithSnapshots keeps everything in dir too, and takes a snapshot after so many
// entries, of which it keeps so many beside it, in files of the log of so many bytes.
func onDiskWithSnapshots(dir string, threshold, trailing uint64, segmentBytes int64) func(*Config) {
	return func(c *Config) {
		onDisk(dir)(c)
		c.SnapshotInterval, c.SnapshotThreshold, c.TrailingLogs, c.segmentBytes = 50*time.Millisecond, threshold, trailing, segmentBytes
	}
}

func TestRestartFromDisk(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, func(c *Config) {
			onDisk(dir)(c)
			c.SnapshotInterval, c.SnapshotThreshold, c.TrailingLogs = 50*time.Millisecond, 20, 5
		})
		c.must(namespace())
		for i := range 30 {
			c.must(create(fmt.Sprint(i), "1"))
		}
		<-time.After(time.Second) // a snapshot
		c.must(create("last", "1"))
		want := c.leader().state.View().Digest()
		name := c.nodes["a"].ClusterID()
		for _, id := range []string{"a", "b", "c"} {
			c.kill(id)
		}
		for _, id := range []string{"a", "b", "c"} {
			n := c.start(id)
			if !n.HasExistingState() {
				t.Errorf("%s has forgotten that it is in a cluster", id)
			}
		}
		if got := c.nodes["a"].ClusterID(); got == "" || got != name {
			t.Errorf("the founder woke up in cluster %q, was in %q", got, name)
		}
		c.same()
		// The digest has the state's time in it, which a new leader's first
		// entry moves.
		if value(c.leader().state, "last") != "1" || c.leader().state.View().Objects.Len() < 31 {
			t.Errorf("something was lost: was %s", want)
		}
		c.must(create("more", "1"))
		c.same()
	})
}

func TestRollingRestartLosesNothing(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, onDisk(dir))
		c.must(namespace())
		for round, id := range []string{"a", "b", "c"} {
			c.kill(id)
			for i := range 10 {
				c.must(create(fmt.Sprintf("%d-%d", round, i), "1"))
			}
			c.start(id)
			c.same()
		}
		for round := range 3 {
			for i := range 10 {
				if value(c.leader().state, fmt.Sprintf("%d-%d", round, i)) != "1" {
					t.Errorf("%d-%d was lost", round, i)
				}
			}
		}
	})
}

func TestDataOfAnotherServerIsRefused(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 1, onDisk(dir))
		c.must(namespace())
		_, err := Open(c.nodes["a"].c, c.nodes["a"].state)
		if err == nil || !strings.Contains(err.Error(), "in use") {
			t.Errorf("a directory in use was opened: %v", err)
		}
		c.kill("a")
		c.conf = func(conf *Config) {
			onDisk(dir)(conf)
			conf.DataDir = filepath.Join(dir, "a")
		}
		_, err = c.open("b")
		var foreign *ForeignDataError
		if !errors.As(err, &foreign) || foreign.Has != "a" || foreign.Want != "b" || foreign.What != "server" {
			t.Errorf("a's directory opened as b: %v", err)
		}
		if err := os.Remove(filepath.Join(dir, "a", identityFile)); err != nil {
			t.Fatal(err)
		}
		if _, err := c.open("a"); err == nil {
			t.Error("a log of nobody was opened")
		}
	})
}

func TestDamagedDataIsRefused(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 1, onDiskWithSnapshots(dir, 10, 1, 1000))
		c.must(namespace())
		for i := range 40 {
			c.must(create(fmt.Sprint(i), "1"))
		}
		<-time.After(time.Second)
		c.kill("a")
		snapshots := filepath.Join(dir, "a", raftDir, "snapshots")
		if err := os.RemoveAll(snapshots); err != nil {
			t.Fatal(err)
		}
		_, err := c.open("a")
		if err == nil || !strings.Contains(err.Error(), "damaged") {
			t.Errorf("a log whose beginning is missing was opened: %v", err)
		}
		file := filepath.Join(dir, "a", identityFile)
		if err := os.WriteFile(file, []byte("{"), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := c.open("a"); err == nil {
			t.Error("a damaged identity was taken")
		}
	})
}

// Two of three servers are lost for good. An operator tells the third that it
// is alone; nothing that was acknowledged is lost, and servers can be added.
func TestRecoverFromLostQuorum(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, onDisk(dir))
		c.must(namespace())
		for i := range 20 {
			c.must(create(fmt.Sprint(i), "1"))
		}
		c.same()
		survivor := c.followers()[0].ID()
		// What the survivor does not hear of is acknowledged all the same, and lost.
		c.isolate(survivor)
		for i := range 5 {
			c.must(create("lost"+fmt.Sprint(i), "1"))
		}
		given := c.leader().state.View().Revision()
		for _, id := range []string{"a", "b", "c"} {
			c.kill(id)
		}
		peers := filepath.Join(dir, survivor, raftDir, "peers.json")
		write := func(s string) {
			if err := os.WriteFile(peers, []byte(s), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		for _, bad := range []string{`{`, `[]`, `[{"id": "other", "address": "other"}]`} {
			write(bad)
			if _, err := c.open(survivor); err == nil {
				t.Errorf("recovered from %s", bad)
			}
		}
		write(fmt.Sprintf(`[{"id": %q, "address": %q}]`, survivor, survivor))
		n := c.start(survivor)
		c.eventually("the survivor to lead", func() bool { return n.Leadership().Leader })
		if got := n.Configuration(); len(got) != 1 {
			t.Errorf("the cluster is %+v", got)
		}
		if got := n.state.View().Revision(); got <= given {
			t.Errorf("goes on at revision %d, and %d was given out", got, given)
		}
		if _, err := n.state.Feed().After(given, 1); !errors.Is(err, store.ErrCompacted) {
			t.Errorf("a watch goes on from a revision that was lost: %v", err)
		}
		for i := range 20 {
			if value(n.state, fmt.Sprint(i)) != "1" {
				t.Errorf("%d was lost", i)
			}
		}
		if _, err := os.Stat(peers); !os.IsNotExist(err) {
			t.Error("peers.json would be applied again")
		}
		c.start("new")
		if err := n.AddVoter(c.ctx(), "new", "new"); err != nil {
			t.Fatal(err)
		}
		c.must(create("after", "1"))
		c.same()
		c.kill(survivor)
		c.start(survivor)
		c.same()
	})
}
