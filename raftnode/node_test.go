package raftnode

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/berth-dev/berth/clock"
	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/store"
)

func TestElectProposeAndApplyEverywhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, nil)
		c.must(namespace())
		index := c.must(create("m", "1"))
		for id, n := range c.nodes {
			if err := n.WaitApplied(c.ctx(), index); err != nil {
				t.Fatal(err)
			}
			if got := value(n.state, "m"); got != "1" {
				t.Errorf("%s has %q", id, got)
			}
		}
		c.same()
	})
}

// What others ask for often is what Raft says of itself, and is not taken out of the table that it makes for people.
func TestFiguresAreThoseOfRaft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, nil)
		c.must(namespace())
		c.same()
		synctest.Wait()
		for id, n := range c.nodes {
			stats, mine := n.raft.Stats(), n.ServerStats()
			for name, got := range map[string]any{
				"state": n.State(), "last_log_term": mine.LastTerm, "last_log_index": mine.LastIndex,
				"commit_index": n.CommitIndex(), "latest_configuration_index": n.ConfigurationIndex(),
			} {
				if want := strings.ToLower(stats[name]); fmt.Sprint(got) != want {
					t.Errorf("%s: %s is %v, and %s as Raft says", id, name, got, want)
				}
			}
			if made := testing.AllocsPerRun(100, func() { n.ServerStats() }); made > 5 {
				t.Errorf("%s: figures take %.0f allocations", id, made)
			}
		}
	})
}

func TestFollowerNamesTheLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, nil)
		leader := c.leader()
		for _, f := range c.followers() {
			_, _, err := f.Propose(c.ctx(), namespace())
			var elsewhere *NotLeaderError
			if !errors.As(err, &elsewhere) || elsewhere.LeaderID != leader.ID() || elsewhere.LeaderAddr != leader.Addr() {
				t.Errorf("%s: %v, want a pointer to %s", f.ID(), err, leader.ID())
			}
			if errors.Is(err, ErrNoLeader) {
				t.Errorf("%s: a known leader is no leader", f.ID())
			}
		}
		c.isolate(leader.ID())
		c.eventually("the leader to resign", func() bool { return !leader.IsLeader() })
		if _, _, err := leader.Propose(c.ctx(), namespace()); !errors.Is(err, ErrNoLeader) {
			t.Errorf("without a leader: %v", err)
		}
	})
}

// A leader that was cut off can not know what became of its proposals.
func TestLostLeadershipIsAnUnknownOutcome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, nil)
		c.must(namespace())
		old := c.leader()
		c.isolate(old.ID())
		_, _, err := old.Propose(c.ctx(), create("lost", "1"))
		if !errors.Is(err, ErrUnknownOutcome) {
			t.Fatalf("proposed without a majority: %v", err)
		}
		c.eventually("another leader", func() bool { return c.leader() != old })
		c.must(create("kept", "1"))
		c.heal()
		c.same()
		if value(old.state, "lost") != "" || value(old.state, "kept") != "1" {
			t.Error("the old leader did not follow the new one")
		}
	})
}

func TestDeadlineAfterTheWriteIsAnUnknownOutcome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, nil)
		c.must(namespace())
		leader := c.leader()
		c.isolate(leader.ID())
		ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
		defer cancel()
		_, _, err := leader.Propose(ctx, create("m", "1"))
		if !errors.Is(err, ErrUnknownOutcome) || !errors.Is(err, context.DeadlineExceeded) {
			t.Fatal(err)
		}
	})
}

// While the disk is busy with one entry, a proposal that waits can still be
// withdrawn, and then it never happens.
func TestDeadlineBeforeTheEntryWithdraws(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := &slowDisk{}
		c := newCluster(t, 1, disk.conf)
		c.must(namespace())
		disk.set(time.Second)
		leader := c.leader()
		first, err := leader.ProposeAsync(create("first", "1"))
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait() // it is being written
		ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
		defer cancel()
		_, _, err = leader.Propose(ctx, create("second", "1"))
		if !errors.Is(err, ErrNotProposed) || errors.Is(err, ErrUnknownOutcome) {
			t.Fatal(err)
		}
		if _, _, err := first.Wait(c.ctx()); err != nil {
			t.Fatal(err)
		}
		if _, err := leader.barrier(c.ctx()); err != nil {
			t.Fatal(err)
		}
		if value(leader.state, "first") != "1" || value(leader.state, "second") != "" {
			t.Error("the wrong proposals were applied")
		}
	})
}

// What is proposed during a write becomes one entry, in the order of the
// calls, and never a larger one than allowed.
func TestProposalsGatherDuringAWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := &slowDisk{}
		c := newCluster(t, 1, func(c *Config) {
			disk.conf(c)
			c.MaxEntryBytes = 16 << 10
		})
		c.must(namespace())
		disk.set(10 * time.Millisecond)
		leader := c.leader()
		var futures []*Future
		for i := range 500 {
			f, err := leader.ProposeAsync(put("m", fmt.Sprint(i)), put(fmt.Sprintf("m%d", i), "1"))
			if i == 0 { // the first creates what the others replace
				f, err = leader.ProposeAsync(create("m", "0"), create("m0", "1"))
			}
			if err != nil {
				t.Fatal(err)
			}
			futures = append(futures, f)
		}
		last, perEntry := uint64(0), map[uint64]int{}
		for i, f := range futures {
			rs, index, err := f.Wait(c.ctx())
			if err != nil || len(rs) != 2 {
				t.Fatalf("%d: %v, %d results", i, err, len(rs))
			}
			if index < last {
				t.Errorf("call %d is in entry %d, an earlier one in %d", i, index, last)
			}
			last = index
			perEntry[index]++
		}
		if got := value(leader.state, "m"); got != "499" {
			t.Errorf("the last call's value is %q", got)
		}
		if len(perEntry) > 20 {
			t.Errorf("500 calls took %d entries", len(perEntry))
		}
		if big := disk.largest(); big > 16<<10 {
			t.Errorf("an entry of %d bytes", big)
		}
	})
}

// A call whose commands do not fit into one entry is spread over several; a
// single larger command goes alone.
func TestLargeCallsAndCommands(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := &slowDisk{}
		c := newCluster(t, 1, func(c *Config) {
			disk.conf(c)
			c.MaxEntryBytes, c.MaxCommandBytes, c.MaxBatch = 8<<10, 64<<10, 10
		})
		c.must(namespace())
		leader := c.leader()
		var ps []fsm.Proposal
		for _, name := range names(35) {
			ps = append(ps, create(name, "1"))
		}
		c.must(ps...)
		if n := leader.state.View().Objects.Len(); n < 35 {
			t.Errorf("%d objects of 35", n)
		}
		c.must(create("large", string(make([]byte, 32<<10))))
		_, _, err := leader.Propose(c.ctx(), create("huge", string(make([]byte, 65<<10))))
		if !errors.Is(err, ErrTooLarge) {
			t.Errorf("a command beyond the limit: %v", err)
		}
	})
}

func TestFullQueueIsBusy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := &slowDisk{}
		reg := prometheus.NewRegistry()
		c := newCluster(t, 1, func(c *Config) {
			disk.conf(c)
			c.QueueLen, c.Registerer = 10, reg
		})
		c.must(namespace())
		disk.set(time.Second)
		leader := c.leader()
		var accepted []*Future
		for i := range 20 {
			f, err := leader.ProposeAsync(create(fmt.Sprint(i), "1"))
			switch {
			case err == nil:
				accepted = append(accepted, f)
			case !errors.Is(err, ErrBusy):
				t.Fatal(err)
			}
		}
		if len(accepted) != 10 {
			t.Errorf("%d accepted of a queue of 10", len(accepted))
		}
		for _, f := range accepted {
			if _, _, err := f.Wait(c.ctx()); err != nil {
				t.Error(err)
			}
		}
		c.must(create("again", "1"))
		if got := testutil.ToFloat64(leader.metrics.queueCommands); got != 0 {
			t.Errorf("the queue counts %v commands and is empty", got)
		}
		if got := testutil.ToFloat64(leader.metrics.refusedBusy); got != 10 {
			t.Errorf("%v refusals counted", got)
		}
		if n, err := testutil.GatherAndCount(reg, "berth_raft_commands_applied_total", "berth_raft_propose_seconds"); n != 2 || err != nil {
			t.Errorf("metrics: %d, %v", n, err)
		}
	})
}

// Every entry says by which rules it is carried out: the lowest that all voters
// have told, never less than before, and what is always known as long as one of
// them has said nothing.
func TestEntriesSayTheirVersion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lowest := 0
		c := newCluster(t, 3, func(c *Config) { c.MinServerVersion = func() int { return lowest } })
		at := func(want int) {
			t.Helper()
			c.must(put("m", fmt.Sprint(lowest)))
			c.same()
			for id, n := range c.nodes {
				if got := n.state.View().Version(); got != want {
					t.Errorf("%s goes by version %d, want %d", id, got, want)
				}
			}
		}
		c.must(namespace(), create("m", "1"))
		at(1)
		lowest = fsm.LogVersion + 7
		at(fsm.LogVersion)
		lowest = 0
		at(fsm.LogVersion)
		if err := c.leader().TransferLeadership(c.ctx(), ""); err != nil {
			t.Fatal(err)
		}
		at(fsm.LogVersion)
	})
}

// A server that gets an entry of rules that it does not know stops, and says so
// in one sentence.
func TestNewerRulesStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 1, nil)
		c.must(namespace())
		entry, err := store.JoinEntry(fsm.Header{Version: fsm.LogVersion + 1}, nil)
		if err != nil {
			t.Fatal(err)
		}
		leader := c.leader() // it leads no longer once it has stopped
		if err := leader.raft.Apply(entry, 0).Error(); err != nil {
			t.Fatal(err)
		}
		err = <-leader.Fatal()
		if !errors.Is(err, store.ErrNewerVersion) || strings.Contains(err.Error(), "\n") {
			t.Errorf("stopped because of %v", err)
		}
	})
}

// Entries are stamped by the clock of the leadership: the wall clock may be set as
// it will, the state's time runs on.
func TestTheStatesTimeRunsOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		set, process := time.Duration(0), clock.Process()
		c := newCluster(t, 1, func(c *Config) {
			c.Clock = func() clock.Reading {
				r := process()
				r.WallUnixNano += int64(set)
				return r
			}
		})
		c.must(namespace())
		state := c.leader().state
		at := state.View().TimeUnixNano()
		for i, step := range []time.Duration{-time.Hour, 2 * time.Hour, -time.Hour} {
			set += step
			time.Sleep(10 * time.Second)
			c.must(create(fmt.Sprint(i), "1"))
			now := state.View().TimeUnixNano()
			if passed := time.Duration(now - at); passed < 9*time.Second || passed > 11*time.Second {
				t.Errorf("after the wall clock was set by %s, 10 s were %s", step, passed)
			}
			at = now
		}
	})
}

func TestLeadershipIsAnnouncedWithItsTerm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, nil)
		c.must(namespace())
		old := c.leader()
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		watch := old.WatchLeadership(ctx)
		first := <-watch
		if !first.Leader || first.Term == 0 {
			t.Fatalf("the leader is told %+v", first)
		}
		next := c.followers()[0]
		if err := old.TransferLeadership(c.ctx(), next.ID()); err != nil {
			t.Fatal(err)
		}
		if l := <-watch; l.Leader {
			t.Errorf("after the transfer: %+v", l)
		}
		c.eventually("the transfer", func() bool { return c.leader() == next })
		if l := next.Leadership(); l.Term <= first.Term || l.Index == 0 {
			t.Errorf("the new leader has %+v, after term %d", l, first.Term)
		}
		// Ready means: it has applied what was acknowledged before.
		if value(next.state, "m") != value(old.state, "m") {
			t.Error("a ready leader lacks an acknowledged write")
		}
	})
}

func TestShutdownAnswersEverybody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := &slowDisk{}
		c := newCluster(t, 1, disk.conf)
		c.must(namespace())
		disk.set(50 * time.Millisecond)
		leader := c.leader()
		var wg sync.WaitGroup
		for i := range 50 {
			wg.Go(func() {
				_, _, err := leader.Propose(c.ctx(), create(fmt.Sprint(i), "1"))
				if err != nil && !errors.Is(err, ErrShutdown) && !errors.Is(err, ErrUnknownOutcome) {
					t.Error(err)
				}
			})
		}
		synctest.Wait()
		c.kill("a")
		wg.Wait()
		if _, _, err := leader.Propose(c.ctx(), namespace()); err == nil {
			t.Error("a stopped node proposes")
		}
		if err := leader.WaitApplied(c.ctx(), 1<<40); !errors.Is(err, ErrShutdown) {
			t.Error(err)
		}
		if _, err := leader.ReadIndex(c.ctx()); err == nil {
			t.Error("a stopped node answers reads")
		}
	})
}

// Who was there when an entry came lives with the state; who has only read its log does not.
func TestWhoLivesWithTheState(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, onDisk(dir))
		c.must(namespace())
		c.same()
		f := c.followers()[0]
		if _, ok := f.Clock().Followed(); !ok {
			t.Error("a follower that entries came to does not know when")
		}
		last := f.AppliedIndex()
		c.kill(f.c.ID)
		back := c.start(f.c.ID)
		if err := back.WaitApplied(c.ctx(), last); err != nil {
			t.Fatal(err)
		}
		if _, ok := back.Clock().Followed(); ok {
			t.Error("one that has read its log knows how old it is")
		}
		c.must(create("after", "1"))
		c.same()
		if _, ok := back.Clock().Followed(); !ok {
			t.Error("an entry came, and it does not know when")
		}
	})
}
