package server

import (
	"context"
	"sync"
	"time"

	"github.com/vmihailenco/msgpack/v5"

	"github.com/berth-dev/berth/cluster"
	"github.com/berth-dev/berth/raftnode"
)

// statsTimeout bounds the question to the servers how far they are.
const statsTimeout = 2 * time.Second

// statsKey is where a server's own figures travel in its status.
const statsKey = "berth_stats"

// members tells the autopilot of the servers (raftnode.Members).
type members struct{ *Server }

// Servers implements raftnode.Members.
func (m members) Servers() []raftnode.Member {
	var out []raftnode.Member
	for _, one := range m.pool.Members() {
		if one.Role != cluster.RoleServer {
			continue
		}
		out = append(out, raftnode.Member{
			ID: one.RaftID, Address: one.RaftAddr, Version: one.Version,
			Alive: one.Status == cluster.StatusAlive, NonVoter: one.NonVoter,
		})
	}
	return out
}

// ServerStats implements raftnode.Members.
func (m members) ServerStats(ctx context.Context, ids []string) map[string]raftnode.ServerStats {
	ctx, cancel := context.WithTimeout(ctx, statsTimeout)
	defer cancel()
	var mu sync.Mutex
	var asking sync.WaitGroup
	out := map[string]raftnode.ServerStats{}
	for _, id := range ids {
		asking.Go(func() {
			stats, ok := m.statsOf(ctx, id)
			if !ok {
				return
			}
			mu.Lock()
			out[id] = stats
			mu.Unlock()
		})
	}
	asking.Wait()
	return out
}

func (m members) statsOf(ctx context.Context, id string) (raftnode.ServerStats, bool) {
	if id == m.config.Name {
		return m.node.ServerStats(), true
	}
	var stats raftnode.ServerStats
	addr, ok := m.serverAddr(id)
	if !ok {
		return stats, false
	}
	status, err := m.peers.Status(ctx, addr)
	if err != nil {
		return stats, false
	}
	return stats, msgpack.Unmarshal([]byte(status.Raft[statsKey]), &stats) == nil
}

// Removed implements raftnode.Members.
func (m members) Removed(id string) {
	m.log.Warn("a dead server was removed from the cluster", "server", id)
}

// withStats adds this server's own figures to what Raft says of itself.
func (s *Server) withStats() map[string]string {
	out := s.node.Stats()
	if b, err := msgpack.Marshal(s.node.ServerStats()); err == nil {
		out[statsKey] = string(b)
	}
	return out
}

func (s *Server) startAutopilot(ctx context.Context) {
	c := s.config.Autopilot
	s.node.StartAutopilot(ctx, raftnode.AutopilotConfig{
		RemoveDead: c.CleanupDeadServers, MinQuorum: c.MinQuorum, StableFor: c.ServerStabilizationTime,
		MaxSilence: c.LastContactThreshold, MaxTrailing: c.MaxTrailingLogs,
	}, members{s})
}
