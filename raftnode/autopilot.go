package raftnode

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/hashicorp/raft"
	autopilot "github.com/hashicorp/raft-autopilot"
)

// AutopilotConfig says what the leader does to the cluster's servers by itself.
type AutopilotConfig struct {
	// RemoveDead removes servers that are dead for DeadAfter (5 min), unless
	// fewer than MinQuorum voters (3) would be left.
	RemoveDead bool
	DeadAfter  time.Duration
	MinQuorum  int
	// A server without a vote gets one once it has been healthy for
	// StableFor (10 s): heard from the leader within MaxSilence (200 ms), and
	// not more than MaxTrailing entries (250) behind.
	StableFor, MaxSilence time.Duration
	MaxTrailing           uint64
	// Interval is the time between two looks (10 s).
	Interval time.Duration
}

func (c AutopilotConfig) withDefaults() AutopilotConfig {
	def := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	def(&c.DeadAfter, 5*time.Minute)
	def(&c.StableFor, 10*time.Second)
	def(&c.MaxSilence, 200*time.Millisecond)
	def(&c.Interval, 10*time.Second)
	if c.MinQuorum == 0 {
		c.MinQuorum = 3
	}
	if c.MaxTrailing == 0 {
		c.MaxTrailing = 250
	}
	return c
}

// Member is a server as the gossip knows it.
type Member struct {
	ID, Address, Version string
	Alive                bool
	// NonVoter: it is never to have a vote.
	NonVoter bool
}

// Members is what the autopilot needs of the rest of the server.
type Members interface {
	// Servers are all that the gossip knows, dead ones too.
	Servers() []Member
	// ServerStats asks servers for Node.ServerStats; who does not answer in
	// time is left out.
	ServerStats(ctx context.Context, ids []string) map[string]ServerStats
	// Removed is told that a dead server is no longer one of the cluster's.
	Removed(id string)
}

// StartAutopilot looks after the cluster's servers while this one leads, until
// the context ends or the node stops. It is called once.
func (n *Node) StartAutopilot(ctx context.Context, c AutopilotConfig, m Members) {
	p := &pilot{n: n, c: c.withDefaults(), members: m, deadSince: map[raft.ServerID]time.Time{}}
	ap := autopilot.New(n.raft, p,
		autopilot.WithLogger(n.logger),
		autopilot.WithPromoter(p),
		autopilot.WithUpdateInterval(p.c.Interval/5),
		autopilot.WithReconcileInterval(p.c.Interval),
	)
	ctx, cancel := context.WithCancel(ctx)
	leadership := n.WatchLeadership(ctx)
	n.tasks.Go(func() {
		defer cancel()
		for {
			select {
			case l := <-leadership:
				<-ap.Stop()
				if l.Leader {
					p.forget()
					ap.Start(ctx)
				}
			case <-ctx.Done():
				<-ap.Stop()
				return
			case <-n.closing:
				<-ap.Stop()
				return
			}
		}
	})
}

// pilot tells the library what it has to know, and holds it back where it
// would be rash.
type pilot struct {
	autopilot.StablePromoter
	n       *Node
	c       AutopilotConfig
	members Members

	mu        sync.Mutex
	deadSince map[raft.ServerID]time.Time
}

func (p *pilot) forget() {
	p.mu.Lock()
	clear(p.deadSince)
	p.mu.Unlock()
}

// AutopilotConfig implements autopilot.ApplicationIntegration.
func (p *pilot) AutopilotConfig() *autopilot.Config {
	return &autopilot.Config{
		CleanupDeadServers:      p.c.RemoveDead,
		LastContactThreshold:    p.c.MaxSilence,
		MaxTrailingLogs:         p.c.MaxTrailing,
		MinQuorum:               uint(p.c.MinQuorum),
		ServerStabilizationTime: p.c.StableFor,
	}
}

// NotifyState implements autopilot.ApplicationIntegration.
func (p *pilot) NotifyState(*autopilot.State) {}

// FetchServerStats implements autopilot.ApplicationIntegration.
func (p *pilot) FetchServerStats(ctx context.Context, servers map[raft.ServerID]*autopilot.Server) map[raft.ServerID]*autopilot.ServerStats {
	out := map[raft.ServerID]*autopilot.ServerStats{}
	keep := func(id string, s ServerStats) {
		out[raft.ServerID(id)] = &autopilot.ServerStats{LastContact: s.LastContact, LastTerm: s.LastTerm, LastIndex: s.LastIndex}
	}
	var others []string
	for id, s := range servers {
		switch {
		case string(id) == p.n.c.ID:
			keep(string(id), p.n.ServerStats())
		case s.NodeStatus == autopilot.NodeAlive:
			others = append(others, string(id))
		}
	}
	for id, s := range p.members.ServerStats(ctx, others) {
		keep(id, s)
	}
	return out
}

const metaNonVoter = "non-voter"

// KnownServers implements autopilot.ApplicationIntegration.
func (p *pilot) KnownServers() map[raft.ServerID]*autopilot.Server {
	_, leader := p.n.raft.LeaderWithID()
	out := map[raft.ServerID]*autopilot.Server{}
	for _, m := range p.members.Servers() {
		s := &autopilot.Server{
			ID: raft.ServerID(m.ID), Name: m.ID, Address: raft.ServerAddress(m.Address), Version: m.Version,
			NodeStatus: autopilot.NodeFailed, RaftVersion: raft.ProtocolVersionMax,
			NodeType: autopilot.NodeVoter, IsLeader: raft.ServerID(m.ID) == leader,
		}
		if m.Alive {
			s.NodeStatus = autopilot.NodeAlive
		}
		if m.NonVoter {
			s.NodeType = metaNonVoter
			s.Meta = map[string]string{metaNonVoter: "true"}
		}
		out[s.ID] = s
	}
	return out
}

// RemoveFailedServer implements autopilot.ApplicationIntegration.
func (p *pilot) RemoveFailedServer(s *autopilot.Server) {
	p.n.tasks.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), changeTimeout)
		defer cancel()
		switch err := p.n.RemoveServer(ctx, string(s.ID)); {
		case err == nil:
			p.n.logger.Warn("removed a dead server", "id", s.ID)
			p.members.Removed(string(s.ID))
		case !errors.Is(err, ErrUnknownServer):
			p.n.logger.Warn("could not remove a dead server", "id", s.ID, "error", err)
		}
	})
}

// GetNodeTypes implements autopilot.Promoter.
func (p *pilot) GetNodeTypes(_ *autopilot.Config, s *autopilot.State) map[raft.ServerID]autopilot.NodeType {
	types := map[raft.ServerID]autopilot.NodeType{}
	for id, server := range s.Servers {
		types[id] = autopilot.NodeVoter
		if server.Server.Meta[metaNonVoter] != "" {
			types[id] = metaNonVoter
		}
	}
	return types
}

// CalculatePromotionsAndDemotions implements autopilot.Promoter: a vote for
// every stable server that may have one.
func (p *pilot) CalculatePromotionsAndDemotions(c *autopilot.Config, s *autopilot.State) autopilot.RaftChanges {
	changes := p.StablePromoter.CalculatePromotionsAndDemotions(c, s)
	var allowed []raft.ServerID
	for _, id := range changes.Promotions {
		if s.Servers[id].Server.Meta[metaNonVoter] == "" {
			allowed = append(allowed, id)
		}
	}
	changes.Promotions = allowed
	return changes
}

// FilterFailedServerRemovals implements autopilot.Promoter. The library would
// remove at once whoever the gossip does not know, and after a restart of the
// whole cluster that is everybody. Here a server must have been missed for
// DeadAfter, and one voter goes at a time, only if those that are left and
// healthy are a majority without it.
func (p *pilot) FilterFailedServerRemovals(_ *autopilot.Config, s *autopilot.State, f *autopilot.FailedServers) *autopilot.FailedServers {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	missed := map[raft.ServerID]bool{}
	overdue := func(id raft.ServerID) bool {
		missed[id] = true
		since, known := p.deadSince[id]
		if !known {
			p.deadSince[id] = now
			return false
		}
		return now.Sub(since) >= p.c.DeadAfter
	}
	voters, healthy := 0, 0
	for _, server := range s.Servers {
		if server.HasVotingRights() {
			voters++
			if server.Health.Healthy {
				healthy++
			}
		}
	}
	room := 0
	if left := voters - 1; left >= p.c.MinQuorum && healthy >= left/2+1 {
		room = 1
	}
	voter := func(id raft.ServerID) bool {
		if !overdue(id) || room == 0 {
			return false
		}
		room--
		return true
	}
	out := &autopilot.FailedServers{}
	for _, id := range f.StaleNonVoters {
		if overdue(id) {
			out.StaleNonVoters = append(out.StaleNonVoters, id)
		}
	}
	for _, server := range f.FailedNonVoters {
		if overdue(server.ID) {
			out.FailedNonVoters = append(out.FailedNonVoters, server)
		}
	}
	for _, id := range f.StaleVoters {
		if voter(id) {
			out.StaleVoters = append(out.StaleVoters, id)
		}
	}
	for _, server := range f.FailedVoters {
		if voter(server.ID) {
			out.FailedVoters = append(out.FailedVoters, server)
		}
	}
	for id := range p.deadSince {
		if !missed[id] {
			delete(p.deadSince, id) // it is back
		}
	}
	return out
}
