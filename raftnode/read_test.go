package raftnode

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
)

func TestReadIndexCoversAcknowledgedWrites(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, nil)
		c.must(namespace())
		for i := range 20 {
			want := fmt.Sprint(i)
			c.must(create("m"+want, want))
			index, err := c.leader().ReadIndex(c.ctx())
			if err != nil {
				t.Fatal(err)
			}
			for id, n := range c.nodes {
				if err := n.WaitApplied(c.ctx(), index); err != nil {
					t.Fatal(err)
				}
				if got := value(n.state, "m"+want); got != want {
					t.Errorf("%s: a linearizable read found %q, want %q", id, got, want)
				}
			}
		}
		if _, err := c.followers()[0].ReadIndex(c.ctx()); err == nil {
			t.Error("a follower confirms reads")
		}
	})
}

// A leader that others have replaced must not answer, not even within its own
// lease.
func TestReplacedLeaderDoesNotConfirmReads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, func(c *Config) { c.LeaderLeaseTimeout = c.HeartbeatTimeout })
		c.must(namespace())
		old := c.leader()
		c.isolate(old.ID())
		if index, err := old.ReadIndex(c.ctx()); err == nil {
			t.Errorf("a leader that reaches nobody confirmed index %d", index)
		} else if !errors.Is(err, ErrNoLeader) {
			t.Error(err)
		}
		c.eventually("another leader", func() bool { return c.leader() != old })
		c.must(create("m", "1"))
		c.heal()
		if index, err := old.ReadIndex(c.ctx()); err == nil {
			t.Errorf("a replaced leader confirmed index %d", index)
		}
	})
}

// One server that does not answer neither blocks reads nor gathers goroutines.
func TestReadsWithOneServerSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, nil)
		c.must(namespace())
		leader, silent := c.leader(), c.followers()[0]
		c.isolate(silent.ID())
		var wg sync.WaitGroup
		for range 200 {
			wg.Go(func() {
				if _, err := leader.ReadIndex(c.ctx()); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		leader.confirmer.mu.Lock()
		peers := len(leader.confirmer.peers)
		leader.confirmer.mu.Unlock()
		if peers != 2 {
			t.Errorf("%d peers", peers)
		}
	})
}

// Callers that come while a round is under way share the next one.
func TestReadsShareRounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		counted := &countingTransport{}
		c := newCluster(t, 3, func(c *Config) {
			if c.ID == "a" {
				counted.WithPreVoteTransport = c.Transport.(*raft.InmemTransport)
				c.Transport = counted
			}
		})
		c.must(namespace())
		if c.leader().ID() != "a" {
			if err := c.leader().TransferLeadership(c.ctx(), "a"); err != nil {
				t.Fatal(err)
			}
			c.eventually("the transfer", func() bool { return c.leader().ID() == "a" })
		}
		counted.slow(5 * time.Millisecond)
		var wg sync.WaitGroup
		for range 1000 {
			wg.Go(func() {
				if _, err := c.nodes["a"].ReadIndex(c.ctx()); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if sent := counted.sent(); sent > 20 {
			t.Errorf("1000 reads took %d heartbeats", sent)
		}
	})
}

// WithPreVoteTransport is what the in-memory transport is to Raft.
type WithPreVoteTransport interface {
	raft.Transport
	raft.WithPreVote
}

// countingTransport counts heartbeats, and can delay them.
type countingTransport struct {
	WithPreVoteTransport
	mu    sync.Mutex
	count int
	delay time.Duration
}

func (t *countingTransport) slow(delay time.Duration) {
	t.mu.Lock()
	t.delay, t.count = delay, 0
	t.mu.Unlock()
}

func (t *countingTransport) sent() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.count
}

func (t *countingTransport) AppendEntries(id raft.ServerID, target raft.ServerAddress, args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) error {
	t.mu.Lock()
	t.count++
	delay := t.delay
	t.mu.Unlock()
	if delay > 0 {
		<-time.After(delay)
	}
	return t.WithPreVoteTransport.AppendEntries(id, target, args, resp)
}

func TestWaitAppliedGivesUpCleanly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 1, nil)
		c.must(namespace())
		leader := c.leader()
		next := leader.AppliedIndex() + 5
		var wg sync.WaitGroup
		for range 10 {
			wg.Go(func() {
				ctx, cancel := contextFor(time.Second)
				defer cancel()
				if err := leader.WaitApplied(ctx, next); err == nil {
					t.Error("an entry that is not there was applied")
				}
			})
		}
		wg.Wait()
		if n := len(leader.machine.waiters); n != 0 {
			t.Errorf("%d waiters are left", n)
		}
	})
}
