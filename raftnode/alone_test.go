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

	"github.com/hashicorp/raft"

	"github.com/berth-dev/berth/atomicfile"
	"github.com/berth-dev/berth/disk"
)

// TestServerThatWasAloneOnce: what is left of a log may be of a time when this server had the only vote, and would elect itself with it. It does not
// lead, nor do the others lose what was acknowledged since.
func TestServerThatWasAloneOnce(t *testing.T) {
	// alone begins with one server and a snapshot of that time, if the log is short, and lets others come.
	alone := func(t *testing.T, dir string, threshold uint64, others ...string) *cluster {
		t.Helper()
		c := newCluster(t, 1, onDiskWithSnapshots(dir, threshold, 1, 1<<20))
		c.must(namespace())
		for i := range 20 {
			c.must(create(fmt.Sprint("old", i), "1"))
		}
		<-time.After(time.Second)
		for _, id := range others {
			c.start(id)
			must(t, c.leader().AddNonvoter(c.ctx(), id, id))
		}
		return c
	}

	for name, of := range map[string]struct {
		threshold uint64
		lose      func(t *testing.T, dir string)
	}{
		"its snapshot is of then": {20, func(t *testing.T, dir string) { must(t, os.RemoveAll(filepath.Join(dir, raftDir, logDir))) }},
		"its log is of then":      {1000, func(t *testing.T, dir string) { cutLog(t, dir, 6) }},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			synctest.Test(t, func(t *testing.T) {
				c := alone(t, dir, of.threshold, "b", "c")
				for _, id := range []string{"b", "c"} {
					must(t, c.leader().AddVoter(c.ctx(), id, id))
				}
				for i := range 5 {
					c.must(create(fmt.Sprint("new", i), "1"))
				}
				c.same()
				c.kill("a")
				of.lose(t, filepath.Join(dir, "a"))
				c.isolate("a")
				lost := c.start("a")
				if c := lost.raft.GetConfiguration().Configuration(); !votesAlone(c, "a") {
					t.Fatalf("what is left is not of the time when it was alone: %v", c.Servers)
				}
				term := lost.Term()
				<-time.After(time.Minute)
				if lost.Leadership().Leader || lost.Term() != term {
					t.Fatalf("it leads, or stands, in term %d after %d", lost.Term(), term)
				}
				c.heal()
				c.must(create("after", "1"))
				c.same()
				for i := range 5 {
					if value(lost.state, fmt.Sprint("new", i)) != "1" {
						t.Errorf("new%d was acknowledged and is gone", i)
					}
				}
				must(t, lost.promises.mayVote())
				// It stands again, and in time.
				for _, id := range []string{"b", "c"} {
					c.kill(id)
				}
				c.start("b")
				c.must(create("without c", "1"))
				if conf := lost.raft.ReloadableConfig(); conf.HeartbeatTimeout != lost.c.HeartbeatTimeout || conf.ElectionTimeout != lost.c.ElectionTimeout {
					t.Errorf("it has everything again, and stands after %s", conf.HeartbeatTimeout)
				}
			})
		})
	}
	t.Run("the others have no vote", func(t *testing.T) {
		dir := t.TempDir()
		synctest.Test(t, func(t *testing.T) {
			c := alone(t, dir, 1000, "b")
			index := c.must(create("new", "1"))
			c.kill("a")
			cutLog(t, filepath.Join(dir, "a"), index)
			_, err := c.open("a")
			if err == nil || !strings.Contains(err.Error(), "the only one of its cluster that has a vote") {
				t.Fatalf("started: %v", err)
			}
		})
	})
	t.Run("it leads already when others tell it", func(t *testing.T) {
		dir := t.TempDir()
		synctest.Test(t, func(t *testing.T) {
			c := alone(t, dir, 1000)
			n := c.leader()
			must(t, n.promises.admit(position{n.Term(), 1000}))
			n.reminded()
			if err := <-n.Fatal(); !errors.Is(err, errNoVote) {
				t.Errorf("it ends with %v", err)
			}
			<-time.After(time.Minute)
		})
	})
}

// TestServersThatComeBack: a configuration that comes back with a log that was lost does not say that nobody else has a vote.
func TestServersThatComeBack(t *testing.T) {
	p, err := openPromises(atomicfile.Files{Disk: disk.OS{}}, "", "a", true, true)
	must(t, err)
	alone := raft.Configuration{Servers: []raft.Server{{ID: "a"}, {ID: "b", Suffrage: raft.Nonvoter}}}
	for _, at := range []struct {
		index uint64
		c     raft.Configuration
		alone bool
	}{
		{10, alone, true},
		{20, raft.Configuration{Servers: []raft.Server{{ID: "a"}, {ID: "b"}}}, false},
		{10, alone, false},
		{30, alone, true},
	} {
		must(t, p.acknowledge([]*raft.Log{{Term: 2, Index: at.index, Type: raft.LogConfiguration, Data: raft.EncodeConfiguration(at.c)}}))
		if got := p.record().Alone; got != at.alone {
			t.Errorf("entry %d: alone: %v", at.index, got)
		}
	}
}
