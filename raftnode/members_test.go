package raftnode

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func contextFor(d time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), d)
}

func TestAddPromoteTransferRemove(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, nil)
		c.must(namespace())
		c.start("d")
		leader := c.leader()
		if err := leader.AddNonvoter(c.ctx(), "d", "d"); err != nil {
			t.Fatal(err)
		}
		index := c.must(create("m", "1"))
		if err := c.nodes["d"].WaitApplied(c.ctx(), index); err != nil {
			t.Fatal(err)
		}
		if s, ok := leader.server("d"); !ok || !s.NonVoter {
			t.Errorf("d is %+v", s)
		}
		if err := leader.TransferLeadership(c.ctx(), "d"); err == nil {
			t.Error("a server without a vote was made leader")
		}
		if err := leader.TransferLeadership(c.ctx(), "nobody"); !errors.Is(err, ErrUnknownServer) {
			t.Error(err)
		}
		if err := leader.AddVoter(c.ctx(), "d", "d"); err != nil {
			t.Fatal(err)
		}
		if err := leader.TransferLeadership(c.ctx(), "d"); err != nil {
			t.Fatal(err)
		}
		c.eventually("d to lead", func() bool { return c.leader().ID() == "d" })
		if err := c.leader().RemoveServer(c.ctx(), "a"); err != nil {
			t.Fatal(err)
		}
		if n := len(c.leader().Configuration()); n != 3 {
			t.Errorf("%d servers after the removal", n)
		}
		c.kill("a")
		c.must(create("n", "1"))
		c.same()
	})
}

// TestTransferIsNotTriedOverAndOver: Raft would wait without end for a server that does not answer a second attempt, and refuse every write from then on as long as it leads.
func TestTransferIsNotTriedOverAndOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, nil)
		c.must(namespace())
		leader := c.leader()
		away := c.followers()[0].ID()
		c.isolate(away)
		for i := range 3 {
			c.must(create(fmt.Sprint("missed", i), "1"))
		}
		if err := leader.TransferLeadership(c.ctx(), away); err == nil || errors.Is(err, ErrTransferPending) {
			t.Fatalf("the first attempt: %v", err)
		}
		for _, to := range []string{away, ""} {
			if err := leader.TransferLeadership(c.ctx(), to); !errors.Is(err, ErrTransferPending) {
				t.Errorf("another attempt, to %q: %v", to, err)
			}
		}
		c.must(create("after", "1"))
		c.heal()
		<-time.After(transferAgain)
		if err := leader.TransferLeadership(c.ctx(), away); err != nil {
			t.Errorf("a minute later: %v", err)
		}
		c.must(create("later", "1"))
	})
	synctest.Test(t, func(t *testing.T) { // who does not wait for it does not end it
		c := newCluster(t, 3, nil)
		c.must(namespace())
		leader := c.leader()
		away := c.followers()[0].ID()
		c.isolate(away)
		c.must(create("missed", "1"))
		short, cancel := contextFor(time.Millisecond)
		defer cancel()
		if err := leader.TransferLeadership(short, away); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("the first attempt: %v", err)
		}
		if err := leader.TransferLeadership(c.ctx(), away); !errors.Is(err, ErrTransferPending) {
			t.Errorf("another attempt: %v", err)
		}
	})
}

// A leader that is to go hands over first, and the next one removes it.
func TestLeaderRemovesItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, nil)
		c.must(namespace())
		old := c.leader()
		err := old.RemoveServer(c.ctx(), old.ID())
		var elsewhere *NotLeaderError
		if !errors.As(err, &elsewhere) {
			t.Fatal(err)
		}
		c.eventually("another leader", func() bool { return c.leader() != old })
		if err := c.leader().RemoveServer(c.ctx(), old.ID()); err != nil {
			t.Fatal(err)
		}
		if err := c.leader().RemoveServer(c.ctx(), old.ID()); !errors.Is(err, ErrUnknownServer) {
			t.Error(err)
		}
	})
}

func TestLastVoterStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 1, nil)
		c.must(namespace())
		if err := c.leader().RemoveServer(c.ctx(), "a"); !errors.Is(err, ErrLastVoter) {
			t.Error(err)
		}
		if err := c.leader().DemoteVoter(c.ctx(), "a"); !errors.Is(err, ErrLastVoter) {
			t.Error(err)
		}
	})
}

func TestBootstrapOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, nil)
		c.must(namespace())
		all := []Server{{ID: "a", Address: "a"}, {ID: "b", Address: "b"}, {ID: "c", Address: "c"}}
		for id, n := range c.nodes {
			if err := n.Bootstrap(all); !errors.Is(err, ErrAlreadyBootstrapped) {
				t.Errorf("%s: %v", id, err)
			}
		}
		d := c.start("d")
		if err := d.Bootstrap(all); err == nil || errors.Is(err, ErrAlreadyBootstrapped) {
			t.Errorf("a server bootstrapped a cluster that it is no part of: %v", err)
		}
	})
}

// gossip is what a test says of the members.
type gossip struct {
	c       *cluster
	mu      sync.Mutex
	members map[string]Member
	removed []string
}

func newGossip(c *cluster, ids ...string) *gossip {
	g := &gossip{c: c, members: map[string]Member{}}
	for _, id := range ids {
		g.set(Member{ID: id, Address: id, Alive: true})
	}
	return g
}

func (g *gossip) set(m Member) {
	g.mu.Lock()
	g.members[m.ID] = m
	g.mu.Unlock()
}

func (g *gossip) forget(id string) {
	g.mu.Lock()
	delete(g.members, id)
	g.mu.Unlock()
}

func (g *gossip) Servers() (out []Member) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, m := range g.members {
		out = append(out, m)
	}
	return out
}

func (g *gossip) ServerStats(_ context.Context, ids []string) map[string]ServerStats {
	out := map[string]ServerStats{}
	for _, id := range ids {
		if n := g.c.nodes[id]; n != nil && !n.stopped.Load() {
			out[id] = n.ServerStats()
		}
	}
	return out
}

func (g *gossip) Removed(id string) {
	g.mu.Lock()
	g.removed = append(g.removed, id)
	g.mu.Unlock()
}

func (c *cluster) autopilot(g *gossip, conf AutopilotConfig) {
	for _, n := range c.nodes {
		ctx, cancel := context.WithCancel(context.Background())
		c.t.Cleanup(cancel)
		n.StartAutopilot(ctx, conf, g)
	}
}

func TestAutopilotPromotesStableServers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, nil)
		c.must(namespace())
		c.start("d")
		c.start("e")
		g := newGossip(c, "a", "b", "c", "d")
		g.set(Member{ID: "e", Address: "e", Alive: true, NonVoter: true})
		c.autopilot(g, AutopilotConfig{})
		for _, id := range []string{"d", "e"} {
			if err := c.leader().AddNonvoter(c.ctx(), id, id); err != nil {
				t.Fatal(err)
			}
		}
		c.eventually("d to be a voter", func() bool {
			s, ok := c.leader().server("d")
			return ok && !s.NonVoter
		})
		<-time.After(time.Minute)
		if s, _ := c.leader().server("e"); !s.NonVoter {
			t.Error("a server got a vote that was never to have one")
		}
	})
}

func TestAutopilotRemovesTheDead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 5, nil)
		c.must(namespace())
		g := newGossip(c, "a", "b", "c", "d", "e")
		c.autopilot(g, AutopilotConfig{RemoveDead: true, DeadAfter: time.Minute})
		dead := c.followers()[0].ID()
		g.set(Member{ID: dead, Address: dead})
		c.kill(dead)
		gone := func() bool {
			_, ok := c.leader().server(dead)
			return !ok
		}
		<-time.After(50 * time.Second)
		if gone() {
			t.Error("removed before its time")
		}
		<-time.After(40 * time.Second)
		if !gone() {
			t.Error("a dead server is still there")
		}
		// Unknown to the gossip is dead as well, after the same time.
		lost := c.followers()[0].ID()
		c.kill(lost)
		g.forget(lost)
		<-time.After(2 * time.Minute)
		if _, ok := c.leader().server(lost); ok {
			t.Error("a server that nobody knows is still there")
		}
		// Three are left, and the minimum is three.
		last := c.followers()[0].ID()
		c.kill(last)
		g.set(Member{ID: last, Address: last})
		<-time.After(5 * time.Minute)
		if _, ok := c.leader().server(last); !ok {
			t.Error("fewer voters than the minimum are left")
		}
		c.must(create("m", "1"))
	})
}
