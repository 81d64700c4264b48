package raftnode

import (
	"context"
	"fmt"
	"sync"

	"github.com/hashicorp/raft"
)

// ReadIndex returns the index of a log entry that a state must have applied for
// a read of it, begun after this call, to be linearizable: on the leader wait
// for it with WaitApplied and read; on another server do the same after the
// leader has told it.
//
// The leader does not ask the log and writes nothing. It makes sure that it
// still leads by hearing from a majority after the call began, many callers
// together. It answers only when an entry of its own term is committed, before
// which its commit index may be behind what the last leader acknowledged.
func (n *Node) ReadIndex(ctx context.Context) (uint64, error) {
	for {
		l, changed := n.office.get()
		if l.Leader {
			return n.confirmer.confirm(ctx, l.Term)
		}
		if !n.IsLeader() {
			return 0, notLeader(n.Leader)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return 0, fmt.Errorf("read index: %w", ctx.Err())
		case <-n.dead:
			return 0, ErrShutdown
		}
	}
}

// confirmer finds out whether this leader still leads.
//
// Raft's own VerifyLeader is not used, for two reasons. It counts answers to
// heartbeats that were sent before it was called: after a long pause of this
// process an answer from before the pause could vouch for a leader who was
// replaced during it. And it waits for the goroutine that writes the log. A
// round here sends its own heartbeats and counts their answers alone.
type confirmer struct {
	n *Node

	mu      sync.Mutex
	waiting *round // the next round's callers
	running bool
	closed  bool
	peers   map[raft.ServerID]*peer
}

// round is one confirmation, for everybody who asked before it began.
type round struct {
	term  uint64
	done  chan struct{}
	index uint64
	err   error

	missing, hopes int // answers still needed, and still possible
	once           sync.Once
}

// peer has one heartbeat under way at most, so that a server that does not
// answer does not gather goroutines.
type peer struct {
	busy bool
	want *round // the round to send for when the present answer is there
}

func newConfirmer(n *Node) *confirmer {
	return &confirmer{n: n, peers: map[raft.ServerID]*peer{}}
}

func (r *round) finish(err error) {
	r.once.Do(func() {
		r.err = err
		close(r.done)
	})
}

func (c *confirmer) confirm(ctx context.Context, term uint64) (uint64, error) {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return 0, ErrShutdown
	}
	if c.waiting != nil && c.waiting.term != term {
		c.waiting.finish(notLeader(c.n.Leader)) // of an older leadership
		c.waiting = nil
	}
	if c.waiting == nil {
		c.waiting = &round{term: term, done: make(chan struct{})}
	}
	r := c.waiting
	if !c.running {
		c.running = true
		c.n.tasks.Go(c.run)
	}
	c.mu.Unlock()
	select {
	case <-r.done:
		return r.index, r.err
	case <-ctx.Done():
		return 0, fmt.Errorf("read index: %w", ctx.Err())
	}
}

func (c *confirmer) close() {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
}

// run does one round after the other while somebody waits.
func (c *confirmer) run() {
	for {
		c.mu.Lock()
		r := c.waiting
		c.waiting = nil
		if r == nil {
			c.running = false
			c.mu.Unlock()
			return
		}
		c.mu.Unlock()
		c.do(r)
	}
}

func (c *confirmer) do(r *round) {
	r.index = c.n.raft.CommitIndex()
	if !c.leads(r.term) {
		r.finish(notLeader(c.n.Leader))
		return
	}
	c.ask(r)
	for {
		l, changed := c.n.office.get()
		if !l.Leader || l.Term != r.term {
			r.finish(notLeader(c.n.Leader))
		}
		select {
		case <-r.done:
			return
		case <-changed:
		case <-c.n.closing:
			r.finish(ErrShutdown)
		}
	}
}

func (c *confirmer) leads(term uint64) bool {
	return c.n.IsLeader() && c.n.raft.CurrentTerm() == term
}

// ask sends a heartbeat to every other voter.
func (c *confirmer) ask(r *round) {
	conf := c.n.raft.GetConfiguration().Configuration()
	c.mu.Lock()
	defer c.mu.Unlock()
	voters := 0
	var others []raft.Server
	self := 0
	for _, s := range conf.Servers {
		if s.Suffrage != raft.Voter {
			continue
		}
		voters++
		if s.ID == raft.ServerID(c.n.c.ID) {
			self = 1
			continue
		}
		others = append(others, s)
	}
	r.missing, r.hopes = voters/2+1-self, len(others)
	if r.missing <= 0 {
		r.finish(nil)
		return
	}
	for _, s := range others {
		p := c.peers[s.ID]
		if p == nil {
			p = &peer{}
			c.peers[s.ID] = p
		}
		if p.busy {
			p.want = r
			continue
		}
		p.busy = true
		c.n.tasks.Go(func() { c.talk(s, p, r) })
	}
}

// talk sends a peer's heartbeats until no round wants another.
func (c *confirmer) talk(s raft.Server, p *peer, r *round) {
	for r != nil {
		ok := c.heartbeat(s, r.term)
		c.mu.Lock()
		c.count(r, ok)
		r, p.want = p.want, nil
		p.busy = r != nil
		c.mu.Unlock()
	}
}

// count is called with mu held.
func (c *confirmer) count(r *round, ok bool) {
	r.hopes--
	if ok {
		r.missing--
	}
	switch {
	case r.missing <= 0:
		if !c.leads(r.term) {
			r.finish(notLeader(c.n.Leader))
			return
		}
		r.finish(nil)
	case r.missing > r.hopes:
		r.finish(fmt.Errorf("a majority of the servers does not answer: %w", ErrNoLeader))
	}
}

func (c *confirmer) heartbeat(s raft.Server, term uint64) bool {
	t := c.n.transport
	self := t.EncodePeer(raft.ServerID(c.n.c.ID), t.LocalAddr())
	req := &raft.AppendEntriesRequest{
		RPCHeader: raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax, ID: []byte(c.n.c.ID), Addr: self},
		Term:      term,
		Leader:    self,
	}
	var resp raft.AppendEntriesResponse
	err := t.AppendEntries(s.ID, s.Address, req, &resp)
	return err == nil && resp.Success && resp.Term == term
}
