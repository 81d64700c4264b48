package raftnode

import (
	"errors"
	"fmt"
	"net"
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
}

// TestPutBackToWhenItWasAlone: a server whose whole directory is of the time when it had the only vote would elect itself with it, and finds nothing
// amiss. From when it is told on it does not, or ends and waits at its next start, and has everything from the others.
func TestPutBackToWhenItWasAlone(t *testing.T) {
	remind := func(t *testing.T, n *testNode, had position, others bool) {
		t.Helper()
		s := &stream{self: "a", id: n.id, promises: n.promises, servers: n.servers, reweigh: n.reweigh, logger: n.logger}
		must(t, s.remind(&reached{n.id.record().Incarnation, had, others}))
	}
	again := func(t *testing.T, c *cluster, n *testNode) *testNode {
		t.Helper()
		if err := <-n.Fatal(); !errors.Is(err, errNoVote) {
			t.Errorf("it ends with %v", err)
		}
		c.kill("a")
		return c.start("a")
	}
	for name, told := range map[string]func(t *testing.T, c *cluster, n *testNode, had position) *testNode{
		"before it leads": func(t *testing.T, c *cluster, n *testNode, had position) *testNode {
			remind(t, n, had, true)
			return n
		},
		"before it leads, and it stands all the same": func(t *testing.T, c *cluster, n *testNode, had position) *testNode {
			must(t, n.promises.admit(had, true))
			before := n.Term()
			c.eventually("it to stand twice", func() bool { return n.Term() > before+1 })
			if n.IsLeader() {
				t.Error("it leads")
			}
			n.reweigh()
			return n
		},
		"when it leads": func(t *testing.T, c *cluster, n *testNode, had position) *testNode {
			c.eventually("it to lead", n.IsLeader)
			remind(t, n, had, true)
			return again(t, c, n)
		},
		"when it leads, and it is told of by what it writes": func(t *testing.T, c *cluster, n *testNode, had position) *testNode {
			c.eventually("it to lead", n.IsLeader)
			must(t, n.promises.admit(position{n.Term(), had.Index}, true))
			if _, _, err := n.Propose(c.ctx(), create("alone", "1")); err == nil {
				t.Error("it has written something of its own")
			}
			return again(t, c, n)
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			synctest.Test(t, func(t *testing.T) {
				c, had := putBack(t, dir)
				n := told(t, c, c.start("a"), had)
				<-time.After(time.Minute)
				if n.IsLeader() || n.promises.mayVote() == nil || n.promises.record().Alone {
					t.Fatalf("it leads: %v; %v; alone: %v", n.IsLeader(), n.promises.mayVote(), n.promises.record().Alone)
				}
				c.heal()
				c.eventually("it to have everything", func() bool { return n.promises.mayVote() == nil }) // its term may be a later one than the leader's
				c.must(create("after", "1"))
				c.same()
				if value(n.state, "new") != "1" {
					t.Error("what was acknowledged is gone")
				}
				c.eventually("it to stand in time", func() bool { return !n.Waits() })
				if conf := n.raft.ReloadableConfig(); conf.HeartbeatTimeout != n.c.HeartbeatTimeout {
					t.Errorf("it stands after %s", conf.HeartbeatTimeout)
				}
			})
		})
	}
	t.Run("an operator has gone on without what it had", func(t *testing.T) {
		dir := t.TempDir()
		synctest.Test(t, func(t *testing.T) {
			c, had := putBack(t, dir)
			n := c.start("a")
			must(t, n.promises.admit(had, true))
			must(t, n.promises.resign(true))
			c.eventually("it to lead", n.IsLeader)
			remind(t, n, had, true)
			must(t, n.promises.mayVote())
			if _, _, err := n.Propose(c.ctx(), create("alone", "1")); err != nil {
				t.Error(err)
			}
		})
	})
	t.Run("the others have no vote", func(t *testing.T) {
		dir := t.TempDir()
		synctest.Test(t, func(t *testing.T) {
			c, had := putBack(t, dir)
			n := c.start("a")
			c.eventually("it to lead", n.IsLeader)
			remind(t, n, had, false)
			told := <-n.Fatal()
			c.kill("a")
			_, err := c.open("a")
			for _, err := range []error{told, err} {
				if err == nil || !strings.Contains(err.Error(), "the only one of its cluster that has a vote") {
					t.Errorf("told: %v", err)
				}
			}
		})
	})
}

// putBack puts a's directory back to when it was alone, and cuts it off; it gives what a had acknowledged since.
func putBack(t *testing.T, dir string) (*cluster, position) {
	t.Helper()
	c := newCluster(t, 1, onDisk(dir))
	c.must(namespace())
	its, then := filepath.Join(dir, "a"), filepath.Join(dir, "then")
	c.kill("a")
	must(t, os.CopyFS(then, os.DirFS(its)))
	c.start("a")
	for _, id := range []string{"b", "c"} {
		c.start(id)
		must(t, c.leader().AddNonvoter(c.ctx(), id, id))
		must(t, c.leader().AddVoter(c.ctx(), id, id))
	}
	c.must(create("new", "1"))
	c.same()
	had := c.nodes["a"].promises.record().Acknowledged
	c.kill("a")
	must(t, errors.Join(os.RemoveAll(its), os.CopyFS(its, os.DirFS(then))))
	c.isolate("a")
	return c, had
}

// TestNobodyElseTakesIn: a server that follows one leader is not made one of another's, whose data may be of an earlier time; and that one hears what it has
// acknowledged though it is refused.
func TestNobodyElseTakesIn(t *testing.T) {
	of := func(name string) *stream {
		p, err := openPromises(atomicfile.Files{Disk: disk.OS{}}, "", name, true, true)
		must(t, err)
		id := &identity{file: identityRecord{Server: name, Cluster: "x", copyOf: copyOf{Incarnation: "of " + name}, Peers: map[string]copyOf{}}}
		s := withoutNode(id, p, newReach(id), name)
		s.leader = func() string { return "c" }
		return s
	}
	a, b := of("a"), of("b")
	must(t, b.id.meet("a", a.id.record().copyOf))
	b.reach.note("a", position{3, 100})
	at, accepted := &position{4, 22}, make(chan error, 1)
	mine, theirs := net.Pipe()
	go func() {
		_, err := b.answer(theirs)
		accepted <- errors.Join(err, theirs.Close())
	}()
	refused := a.greet(mine, "b", at)
	if err := <-accepted; err == nil || refused == nil || !strings.Contains(refused.Error(), `follows server "c"`) {
		t.Errorf("it is taken in: %v, %v", err, refused)
	}
	if got := b.promises.record().Acknowledged; got != (position{}) {
		t.Errorf("it may have acknowledged up to %s now", got)
	}
	if err := a.promises.mayVote(); !errors.Is(err, errNoVote) {
		t.Errorf("who would have taken it in has heard nothing: %v", err)
	}
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
