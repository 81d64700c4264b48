package raftnode

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

// Server is a member of the consensus.
type Server struct {
	ID, Address string
	// NonVoter receives the log and has no vote.
	NonVoter bool
	// Leader is filled in by Configuration.
	Leader bool
}

func (s Server) raft() raft.Server {
	out := raft.Server{ID: raft.ServerID(s.ID), Address: raft.ServerAddress(s.Address), Suffrage: raft.Voter}
	if s.NonVoter {
		out.Suffrage = raft.Nonvoter
	}
	return out
}

func compareIDs(a, b string) int { return cmp.Compare(a, b) }

// Configuration is the servers of the cluster, by ID, as this one knows them.
func (n *Node) Configuration() []Server {
	leader, _ := n.Leader()
	var out []Server
	for _, s := range n.raft.GetConfiguration().Configuration().Servers {
		out = append(out, Server{
			ID: string(s.ID), Address: string(s.Address), NonVoter: s.Suffrage != raft.Voter, Leader: string(s.ID) == leader,
		})
	}
	slices.SortFunc(out, func(a, b Server) int { return compareIDs(a.ID, b.ID) })
	return out
}

func (n *Node) server(id string) (Server, bool) {
	for _, s := range n.Configuration() {
		if s.ID == id {
			return s, true
		}
	}
	return Server{}, false
}

// serverAt is the server that the configuration has at an address.
func (n *Node) serverAt(addr string) string {
	if !n.started.Load() {
		return ""
	}
	for _, s := range n.raft.GetConfiguration().Configuration().Servers {
		if string(s.Address) == addr {
			return string(s.ID)
		}
	}
	return ""
}

// AddVoter makes a server a voter, or changes its address. The server must run,
// and belong to this cluster or none; ErrLostData says that it is a member whose
// data are gone.
func (n *Node) AddVoter(ctx context.Context, id, addr string) error {
	if err := n.checkNewcomer(id, addr); err != nil {
		return fmt.Errorf("add voter %s: %w", id, err)
	}
	return n.change(ctx, "add voter "+id, func(timeout time.Duration) raft.Future {
		return n.raft.AddVoter(raft.ServerID(id), raft.ServerAddress(addr), 0, timeout)
	})
}

// AddNonvoter adds a server that receives the log and has no vote, or changes
// its address. It asks of the server what AddVoter does.
func (n *Node) AddNonvoter(ctx context.Context, id, addr string) error {
	if err := n.checkNewcomer(id, addr); err != nil {
		return fmt.Errorf("add non-voter %s: %w", id, err)
	}
	return n.change(ctx, "add non-voter "+id, func(timeout time.Duration) raft.Future {
		return n.raft.AddNonvoter(raft.ServerID(id), raft.ServerAddress(addr), 0, timeout)
	})
}

// Introduced are the addresses that a server has told when it connected, or was
// connected to, and had shown who it is.
func (n *Node) Introduced(id string) (Addresses, bool) {
	if n.stream == nil {
		return Addresses{}, false
	}
	n.stream.mu.Lock()
	defer n.stream.mu.Unlock()
	a, ok := n.stream.introduced[id]
	return a, ok
}

// askTimeout bounds the question who is at an address.
const askTimeout = 3 * time.Second

// IsAt makes sure that a server is at an address: it must say so and, with TLS,
// show its certificate. Two servers of one cluster tell each other their other
// addresses by it (Introduced); it commits nobody to anything.
func (n *Node) IsAt(id, addr string) error {
	if n.stream == nil {
		return nil
	}
	if _, err := n.stream.ask(addr, hello{To: id}, askTimeout); err != nil {
		return fmt.Errorf("server %s at %s: %w", id, addr, err)
	}
	return nil
}

// DemoteVoter takes a server's vote.
func (n *Node) DemoteVoter(ctx context.Context, id string) error {
	if err := n.checkRemoval(id); err != nil {
		return err
	}
	return n.change(ctx, "demote "+id, func(timeout time.Duration) raft.Future {
		return n.raft.DemoteVoter(raft.ServerID(id), 0, timeout)
	})
}

// RemoveServer removes a server from the cluster. A leader that is told to
// remove itself hands over first and answers with the new leader
// (*NotLeaderError): ask that one.
func (n *Node) RemoveServer(ctx context.Context, id string) error {
	if err := n.checkRemoval(id); err != nil {
		return err
	}
	if id == n.c.ID {
		if err := n.TransferLeadership(ctx, ""); err != nil {
			return fmt.Errorf("remove %s: %w", id, err)
		}
		return notLeader(n.Leader)
	}
	return n.change(ctx, "remove "+id, func(timeout time.Duration) raft.Future {
		return n.raft.RemoveServer(raft.ServerID(id), 0, timeout)
	})
}

// checkRemoval refuses what would leave nobody to vote.
func (n *Node) checkRemoval(id string) error {
	s, ok := n.server(id)
	if !ok {
		return fmt.Errorf("remove %s: %w", id, ErrUnknownServer)
	}
	if s.NonVoter {
		return nil
	}
	for _, other := range n.Configuration() {
		if other.ID != id && !other.NonVoter {
			return nil
		}
	}
	return fmt.Errorf("remove %s: %w", id, ErrLastVoter)
}

// changeTimeout bounds how long a change waits for the one before it.
const changeTimeout = 10 * time.Second

func (n *Node) change(ctx context.Context, what string, f func(timeout time.Duration) raft.Future) error {
	if !n.IsLeader() {
		return notLeader(n.Leader)
	}
	timeout := changeTimeout
	if d, ok := ctx.Deadline(); ok {
		timeout = min(timeout, max(time.Until(d), time.Millisecond))
	}
	err := n.await(ctx, f(timeout).Error)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, raft.ErrNotLeader):
		return notLeader(n.Leader)
	case errors.Is(err, raft.ErrLeadershipLost), errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return fmt.Errorf("%s: %w", what, unknown(err))
	case errors.Is(err, raft.ErrEnqueueTimeout):
		return fmt.Errorf("%s: another change is under way: %w", what, ErrBusy)
	}
	return fmt.Errorf("%s: %w", what, err)
}

// await waits for one of Raft's futures, which know no context.
func (n *Node) await(ctx context.Context, wait func() error) error {
	done := make(chan error, 1)
	go func() { done <- wait() }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	case <-n.dead:
		return raft.ErrLeadershipLost
	}
}

// TransferLeadership makes another server leader: the one given, or with "" the
// one whose log is longest. It returns once this server leads no more.
func (n *Node) TransferLeadership(ctx context.Context, id string) error {
	if !n.IsLeader() {
		return notLeader(n.Leader)
	}
	f := func() raft.Future { return n.raft.LeadershipTransfer() }
	if id != "" {
		s, ok := n.server(id)
		switch {
		case !ok:
			return fmt.Errorf("transfer leadership to %s: %w", id, ErrUnknownServer)
		case s.NonVoter:
			return fmt.Errorf("transfer leadership to %s: it has no vote", id)
		case id == n.c.ID:
			return nil
		}
		f = func() raft.Future {
			return n.raft.LeadershipTransferToServer(raft.ServerID(id), raft.ServerAddress(s.Address))
		}
	}
	ended, err := n.transfers.begin(id, n.raft.CurrentTerm())
	if err == nil {
		began := time.Now()
		err = n.await(ctx, f().Error)
		// What Raft gives up before its timeout has left nothing; what nobody waits for any more goes on.
		ended(err != nil && (ctx.Err() != nil || time.Since(began) >= n.c.ElectionTimeout))
	}
	if err != nil {
		return fmt.Errorf("transfer leadership: %w", err)
	}
	return nil
}

// transferAgain is after how long a server is asked again, in the same term, that has not come to lead in time.
const transferAgain = time.Minute

// ErrTransferPending: a server that was asked to lead has not answered, and it is too early to ask again.
var ErrTransferPending = errors.New("the last attempt to hand the leadership over has not ended yet")

// transfers are attempts to hand leadership over that have failed. Each leaves a note for the goroutine which sends entries to that server, and there is room for one:
// if that goroutine does not come back, and the leadership ends, a second attempt never does. Raft would refuse every write when this server leads again.
type transfers struct {
	mu     sync.Mutex
	term   uint64
	failed map[string]time.Time // when, by server; "": one that Raft has chosen
}

// begin says why an attempt must not be made, or gives what is told when it has ended, and whether it has left a note.
func (t *transfers) begin(to string, term uint64) (ended func(left bool), err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.term != term {
		t.term, t.failed = term, map[string]time.Time{}
	}
	for server, at := range t.failed { // their order does not matter
		if (server == to || server == "" || to == "") && time.Since(at) < transferAgain {
			return nil, fmt.Errorf("%w: try again in %s", ErrTransferPending, (transferAgain - time.Since(at)).Round(time.Second))
		}
	}
	t.failed[to] = time.Now() // until it has ended
	return func(left bool) {
		t.mu.Lock()
		defer t.mu.Unlock()
		switch {
		case t.term != term:
		case left:
			t.failed[to] = time.Now()
		default:
			delete(t.failed, to)
		}
	}, nil
}

// handOver makes another server start an election now, when this one can not
// go on: the cluster need not wait until it misses this server. One that lacks an
// entry that was acknowledged can not win; then the next is tried.
func (n *Node) handOver() {
	self := n.transport.EncodePeer(raft.ServerID(n.c.ID), n.transport.LocalAddr())
	req := &raft.TimeoutNowRequest{
		RPCHeader: raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax, ID: []byte(n.c.ID), Addr: self},
	}
	for _, s := range n.raft.GetConfiguration().Configuration().Servers {
		if s.Suffrage != raft.Voter || string(s.ID) == n.c.ID {
			continue
		}
		if err := n.transport.TimeoutNow(s.ID, s.Address, req, &raft.TimeoutNowResponse{}); err != nil {
			continue
		}
		if n.guard.hung.Load() {
			return // Raft hears of no other leader any more: one that wins would be asked to make room for the next
		}
		if n.anotherLeads(n.c.ElectionTimeout / 4) {
			_, id := n.raft.LeaderWithID()
			n.logger.Info("handed the leadership over", "to", id)
			return
		}
	}
}

// anotherLeads waits a while until this server hears from another leader.
func (n *Node) anotherLeads(atMost time.Duration) bool {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for end := time.After(atMost); ; {
		if _, id := n.raft.LeaderWithID(); id != "" && string(id) != n.c.ID {
			return true
		}
		select {
		case <-tick.C:
		case <-end:
			return false
		}
	}
}

// ServerStats is what an autopilot asks of every server (see Autopilot).
type ServerStats struct {
	// LastContact is how long ago the server heard from the leader: 0 on the
	// leader, negative if never.
	LastContact         time.Duration
	LastTerm, LastIndex uint64 // of the log
}

// ServerStats are this server's. They are asked for often: Raft's own figures, all of which are texts, only where the newest entry is
// not at hand.
func (n *Node) ServerStats() ServerStats {
	term, index, ok := n.log.newest()
	if !ok {
		stats := n.raft.Stats()
		term, _ = strconv.ParseUint(stats["last_log_term"], 10, 64)   // Raft formats it
		index, _ = strconv.ParseUint(stats["last_log_index"], 10, 64) // as a number
	}
	contact := time.Duration(0)
	if last := n.raft.LastContact(); !n.IsLeader() {
		contact = time.Since(last)
		if last.IsZero() {
			contact = -1
		}
	}
	return ServerStats{LastContact: contact, LastTerm: term, LastIndex: index}
}

// votesAlone tells whether a server is the only one that has a vote.
func votesAlone(c raft.Configuration, id string) bool {
	return !othersVote(c, id) && slices.ContainsFunc(c.Servers, func(s raft.Server) bool { return s.Suffrage == raft.Voter })
}

// othersVote tells whether another server than one has a vote.
func othersVote(c raft.Configuration, id string) bool {
	return slices.ContainsFunc(c.Servers, func(s raft.Server) bool { return s.Suffrage == raft.Voter && string(s.ID) != id })
}
