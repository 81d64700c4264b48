package server

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/berth-dev/berth/cluster"
	"github.com/berth-dev/berth/guard"
	"github.com/berth-dev/berth/peers"
	"github.com/berth-dev/berth/raftnode"
)

// membershipInterval is how often the leader looks at the members anew, even
// if gossip has said nothing.
const membershipInterval = 5 * time.Second

// found brings this server into a cluster: it founds one with the others, or
// waits until the leader adds it.
func (s *Server) found(ctx context.Context) {
	if s.node.HasExistingState() {
		s.advertiseFounded(ctx)
		return
	}
	if s.config.BootstrapExpect > 0 {
		peers, err := s.pool.Bootstrap(ctx, func(m cluster.Member) error { return s.node.IsAt(m.RaftID, m.RaftAddr) })
		if err != nil {
			return // only the context's end
		}
		servers := make([]raftnode.Server, len(peers))
		for i, p := range peers {
			servers[i] = raftnode.Server{ID: p.RaftID, Address: p.RaftAddr}
		}
		if len(servers) > 0 {
			if err := s.node.Bootstrap(servers); err != nil && !errors.Is(err, raftnode.ErrAlreadyBootstrapped) {
				s.fail(err)
				return
			}
		}
	}
	if s.config.BootstrapExpect == 0 {
		s.log.Info("waiting for the leader of a cluster to take this server in; one that is to found a cluster needs bootstrap_expect")
	}
	s.advertiseFounded(ctx)
}

// advertiseFounded tells gossip of which cluster this server is, once it knows.
func (s *Server) advertiseFounded(ctx context.Context) {
	for !s.node.HasExistingState() {
		select {
		case <-ctx.Done():
			return
		case <-time.After(leaderPoll):
		}
	}
	err := s.pool.Advertise(ctx, func(m *cluster.Meta) {
		m.Bootstrapped, m.ClusterID = true, s.node.ClusterID()
	})
	if err != nil && ctx.Err() == nil {
		s.log.Warn("gossip was not told that this server belongs to a cluster", "error", err)
	}
}

// membershipLoop lets the leader take in the servers that gossip shows and that
// are not part of the consensus. Dead ones are autopilot's business.
func (s *Server) membershipLoop(ctx context.Context) {
	_, sub := s.pool.Subscribe()
	defer sub.Close()
	a := &admission{server: s, tried: map[string]attempt{}}
	for {
		a.takeIn(ctx)
		awaitServers(ctx, sub)
		if ctx.Err() != nil {
			return
		}
	}
}

// awaitServers returns when gossip says something of a server, or when it is
// time to look again. Ten thousand workers that join are nothing to look at.
func awaitServers(ctx context.Context, sub *cluster.Subscription) {
	ctx, cancel := context.WithTimeout(ctx, membershipInterval)
	defer cancel()
	for {
		e, err := sub.Next(ctx)
		if errors.Is(err, cluster.ErrClosed) {
			<-ctx.Done() // the server is about to stop
		}
		if err != nil || e.Kind == cluster.EventResync || e.Member.Role == cluster.RoleServer {
			return
		}
	}
}

// admission takes servers in. What gossip says of them is where they may be: each
// has to be found there first, and one that is not is not asked for a while.
type admission struct {
	server *Server
	tried  map[string]attempt // by name and address
}

// attempt is one that failed.
type attempt struct {
	failures int
	next     time.Duration // of the clock's Elapsed
}

const (
	// maxApplicants bounds who is tried in one look.
	maxApplicants = 8
	// maxAttempts bounds the memory of those who failed.
	maxAttempts = 4096
	// maxApplicantPause is the longest that one that failed is left alone.
	maxApplicantPause = 5 * time.Minute
)

// takeIn looks for servers that are in no configuration, or have moved.
func (a *admission) takeIn(ctx context.Context) {
	s := a.server
	known := map[string]peers.Peer{}
	var addrs []string
	for _, p := range s.room.Peers() {
		known[p.ID] = p
		addrs = append(addrs, s.room.Address(p.ID))
	}
	s.peers.Retain(addrs)
	now := s.node.Clock().Elapsed()
	var found []*applicant
	for _, m := range s.pool.Servers() {
		have, ok := known[m.RaftID]
		if m.RaftAddr == "" || m.RaftID != m.Name || m.Leaving || ok && (have.RaftAddr == m.RaftAddr || have.Self || s.node.Hears(m.RaftID)) {
			continue
		}
		one := &applicant{Member: m, voter: ok && have.Voter}
		if now >= a.tried[one.key()].next && len(found) < maxApplicants {
			found = append(found, one)
		}
	}
	var asking guard.Group
	for _, one := range found {
		asking.Go(func() { one.err = s.node.IsAt(one.RaftID, one.RaftAddr) })
	}
	asking.Wait()
	for _, one := range found {
		if one.err == nil {
			one.err = a.admit(ctx, one)
		}
		if one.err != nil {
			a.note(one)
			continue
		}
		delete(a.tried, one.key())
		s.log.Info("server taken in", "peer", one.Name, "address", one.RaftAddr)
	}
}

// applicant is a member that calls itself a server.
type applicant struct {
	cluster.Member
	voter bool // it is one already, at another address
	err   error
}

func (a *applicant) key() string { return a.Name + " " + a.RaftAddr }

// admit takes one in that is where gossip says. Autopilot makes it a voter when
// it has caught up, unless it asks not to.
func (a *admission) admit(ctx context.Context, m *applicant) error {
	node := a.server.node
	if m.ClusterID != "" && m.ClusterID != node.ClusterID() {
		return fmt.Errorf("it is of another cluster, %s", m.ClusterID)
	}
	if m.voter {
		return node.AddVoter(ctx, m.RaftID, m.RaftAddr)
	}
	return node.AddNonvoter(ctx, m.RaftID, m.RaftAddr)
}

func (a *admission) note(m *applicant) {
	if len(a.tried) >= maxAttempts {
		clear(a.tried) // they are tried again a little earlier
	}
	last := a.tried[m.key()]
	last.failures++
	pause := min(membershipInterval<<min(last.failures-1, 10), maxApplicantPause)
	last.next = a.server.node.Clock().Elapsed() + pause
	a.tried[m.key()] = last
	a.server.log.Warn("a server could not be taken in", "peer", m.Name, "address", m.RaftAddr, "again_in", pause, "error", m.err)
}
