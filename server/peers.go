package server

import (
	"context"
	"time"

	"github.com/berth-dev/berth/cluster"
	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/peers"
	"github.com/berth-dev/berth/raftnode"
	"github.com/berth-dev/berth/rpc"
)

// openRoom makes the room where the servers are known: Raft's configuration, and
// what each of them says over RPC.
func (s *Server) openRoom() {
	s.room = peers.NewRoom(peers.Config{
		Self:          s.config.Name,
		Configuration: s.consensusServers,
		Describe:      s.describe,
		Guard:         s.guard,
		Ask:           s.askPeer,
		Addresses:     s.hintedAddresses,
		Introduce: func(id, raftAddr string) {
			if err := s.node.IsAt(id, raftAddr); err != nil {
				s.log.Debug("a server could not be asked where it is reached", "peer", id, "address", raftAddr, "error", err)
			}
		},
		Now: func() (int64, time.Duration) { now := s.node.Clock().Reading(); return now.WallUnixNano, now.Elapsed },
	})
}

func (s *Server) consensusServers() []peers.Server {
	all := s.node.Configuration()
	out := make([]peers.Server, len(all))
	for i, m := range all {
		out[i] = peers.Server{ID: m.ID, RaftAddr: m.Address, Voter: !m.NonVoter, Leader: m.Leader}
	}
	return out
}

// hintedAddresses are where a server may be reached over RPC: where it has told
// when it connected to this one, with its certificate, and then what gossip says.
func (s *Server) hintedAddresses(id string) []string {
	var out []string
	if a, ok := s.node.Introduced(id); ok {
		out = append(out, a.RPC)
	}
	if m, ok := s.pool.Get(id); ok && m.Role == cluster.RoleServer {
		out = append(out, m.RPCAddr)
	}
	return out
}

// describe is what this server says of itself.
func (s *Server) describe() peers.Answer {
	stats := s.node.ServerStats()
	leader, _ := s.node.Leader()
	state, ok := s.node.Clock().Followed()
	if !ok {
		state = 0
	}
	last := s.lastCompared()
	return peers.Answer{
		Server: s.config.Name, Cluster: s.node.ClusterID(), Version: s.config.Version, Behaviour: s.knownVersion(),
		RPCAddr: s.config.RPCAddr, HTTPAddr: s.config.HTTPAddr, NonVoter: s.config.NonVoter, Leader: leader,
		LastTerm: stats.LastTerm, LastIndex: stats.LastIndex, LastContact: stats.LastContact,
		Applied: s.state.View().Index(), WallUnixNano: s.node.Clock().Wall(), StateUnixNano: state, MaxState: s.config.MaxState,
		ComparedIndex: last.index, Unsettled: last.unsettled,
	}
}

// knownVersion is the newest version of the log's rules that this server says it
// knows: whatever it has been told to hold back is not offered to the cluster.
func (s *Server) knownVersion() int {
	if v := s.config.MaxLogVersion; v > 0 {
		return v
	}
	return fsm.LogVersion
}

// tellHeldBack says in the log that max_log_version has no effect, once it is known which version the cluster goes by. true: it was said, or never need be.
func (s *Server) tellHeldBack() bool {
	most, goes := s.config.MaxLogVersion, s.state.View().Version()
	if most == 0 {
		return true
	}
	if goes <= most {
		return false
	}
	s.log.Warn("server.max_log_version has no effect: the cluster goes by a later version of the log's rules already, and there is no way back to an earlier one; take it out",
		"max_log_version", most, "goes_by", goes)
	return true
}

func (s *Server) askPeer(ctx context.Context, addr string) (peers.Answer, error) {
	a, err := s.peers.Status(ctx, addr)
	if err != nil {
		return peers.Answer{}, err
	}
	return peers.Answer{
		Server: a.Server, Cluster: a.Cluster, Version: a.Version, Behaviour: int(a.CommandVersion),
		RPCAddr: a.RPCAddr, HTTPAddr: a.HTTPAddr, NonVoter: a.NonVoter, Leader: a.Leader,
		LastTerm: a.LastTerm, LastIndex: a.LastIndex, LastContact: time.Duration(a.LastContactNano),
		Applied: a.Index, WallUnixNano: a.WallUnixNano, StateUnixNano: a.StateUnixNano, MaxState: a.MaxState,
		ComparedIndex: a.ComparedIndex, Unsettled: a.Unsettled,
	}, nil
}

// Status describes this server to another one (rpc.ServerHandler).
func (h handler) Status(context.Context, *rpc.StatusRequest) (*rpc.StatusResponse, error) {
	a := h.describe()
	return &rpc.StatusResponse{
		Server: a.Server, Cluster: a.Cluster, Version: a.Version, CommandVersion: uint32(a.Behaviour),
		RPCAddr: a.RPCAddr, HTTPAddr: a.HTTPAddr, NonVoter: a.NonVoter, Leader: a.Leader,
		LastTerm: a.LastTerm, LastIndex: a.LastIndex, LastContactNano: int64(a.LastContact),
		Index: a.Applied, Revision: h.state.View().Revision(), Workers: h.rpc.Hub.Count(),
		WallUnixNano: a.WallUnixNano, StateUnixNano: a.StateUnixNano, MaxState: a.MaxState,
		ComparedIndex: a.ComparedIndex, Unsettled: a.Unsettled,
	}, nil
}

// minServerVersion is the oldest vocabulary among the servers: a leader proposes
// nothing that one of them would have to stop at. One that has not said which
// it has, since this process began, is taken for the oldest there is.
func (s *Server) minServerVersion() int {
	v, _ := s.room.LowestBehaviour()
	return max(v, 1)
}

// hearVersions waits for a while until every server has told its version, so that a
// new cluster goes by the newest rules from its first object on.
func (s *Server) hearVersions(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, versionsWait)
	defer cancel()
	for ctx.Err() == nil {
		if _, complete := s.room.LowestBehaviour(); complete {
			return
		}
		s.room.Refresh(ctx)
		select {
		case <-ctx.Done():
		case <-time.After(versionsPoll):
		}
	}
}

// versionsWait is how long a new cluster waits for those of its founders that have
// not told their version, and versionsPoll how often it asks.
const (
	versionsWait = 3 * time.Second
	versionsPoll = 50 * time.Millisecond
)

// serverAddr is the RPC address of another server.
func (s *Server) serverAddr(name string) (string, bool) {
	if name == "" || name == s.config.Name {
		return "", false
	}
	addr := s.room.Address(name)
	return addr, addr != ""
}

// httpAddr is where another server's API is reached, as it has said itself; "" if
// it has not.
func (s *Server) httpAddr(name string) string {
	if p, ok := s.room.Peer(name); ok && p.Answer != nil {
		return p.Answer.HTTPAddr
	}
	if a, ok := s.node.Introduced(name); ok {
		return a.HTTP
	}
	return ""
}

// otherServers are the RPC addresses of the other servers for which ask holds.
func (s *Server) otherServers(ask func(p *peers.Peer) bool) []string {
	var out []string
	for _, p := range s.room.Peers() {
		if addr := s.room.Address(p.ID); !p.Self && addr != "" && ask(&p) {
			out = append(out, addr)
		}
	}
	return out
}

// mayHoldWorkers are the RPC addresses of all other servers: whether one answered
// when it was last asked says nothing of a worker that has connected to it since.
func (s *Server) mayHoldWorkers() []string {
	return s.otherServers(func(*peers.Peer) bool { return true })
}

// heard: the server answers, or consensus hears it. Only the leader knows the
// latter.
func (s *Server) heard(p *peers.Peer) bool {
	return p.Self || p.Answers() || s.node.Leadership().Leader && s.node.Hears(p.ID)
}

// members tells the autopilot of the servers (raftnode.Members).
type members struct{ *Server }

// Servers implements raftnode.Members.
func (m members) Servers() []raftnode.Member {
	var out []raftnode.Member
	for _, p := range m.room.Peers() {
		one := raftnode.Member{ID: p.ID, Address: p.RaftAddr, Version: p.Version(), Alive: m.heard(&p), NonVoter: !p.Voter}
		if p.Answer != nil {
			one.NonVoter = p.Answer.NonVoter
		}
		out = append(out, one)
	}
	return out
}

// ServerStats implements raftnode.Members.
func (m members) ServerStats(ctx context.Context, ids []string) map[string]raftnode.ServerStats {
	m.room.Refresh(ctx)
	out := map[string]raftnode.ServerStats{}
	for _, id := range ids {
		if p, ok := m.room.Peer(id); ok && p.Answers() {
			out[id] = raftnode.ServerStats{LastContact: p.Answer.LastContact, LastTerm: p.Answer.LastTerm, LastIndex: p.Answer.LastIndex}
		}
	}
	return out
}

// Removed implements raftnode.Members.
func (m members) Removed(id string) {
	m.log.Warn("a dead server was removed from the cluster", "peer", id)
}

func (s *Server) startAutopilot(ctx context.Context) {
	c := s.config.Autopilot
	s.node.StartAutopilot(ctx, raftnode.AutopilotConfig{
		RemoveDead: c.CleanupDeadServers, MinQuorum: c.MinQuorum, StableFor: c.ServerStabilizationTime,
		MaxSilence: c.LastContactThreshold, MaxTrailing: c.MaxTrailingLogs,
	}, members{s})
}
