package server

import (
	"context"
	"errors"
	"time"

	"github.com/berth-dev/berth/cluster"
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
		peers, err := s.pool.Bootstrap(ctx)
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
	for {
		s.takeIn(ctx)
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

func (s *Server) takeIn(ctx context.Context) {
	known := map[string]raftnode.Server{}
	for _, m := range s.node.Configuration() {
		known[m.ID] = m
	}
	for _, m := range s.pool.Servers() {
		have, ok := known[m.RaftID]
		if m.RaftAddr == "" || m.Leaving || ok && have.Address == m.RaftAddr {
			continue
		}
		if m.ClusterID != "" && m.ClusterID != s.node.ClusterID() {
			s.log.Warn("a server of another cluster is not taken in", "server", m.Name, "cluster", m.ClusterID)
			continue
		}
		var err error
		if ok && !have.NonVoter {
			err = s.node.AddVoter(ctx, m.RaftID, m.RaftAddr) // it has moved
		} else {
			// Autopilot makes it a voter when it has caught up, unless it asks not to.
			err = s.node.AddNonvoter(ctx, m.RaftID, m.RaftAddr)
		}
		if err != nil {
			s.log.Warn("a server could not be taken in", "server", m.Name, "address", m.RaftAddr, "error", err)
			continue
		}
		s.log.Info("server taken in", "server", m.Name, "address", m.RaftAddr)
	}
	addrs := []string{}
	for _, m := range s.pool.Servers() {
		addrs = append(addrs, m.RPCAddr)
	}
	s.peers.Retain(addrs)
}
