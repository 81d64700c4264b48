package raftnode

import (
	"errors"
	"fmt"
	"sync"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
)

// gate stands between Raft and the other servers. It lets no entry in whose seal
// is wrong, and keeps a server from voting, and from asking for votes, that lacks
// something it has promised to keep (standing). Heartbeats pass beside the others where they can do no harm (terms).
// Everything else passes.
type gate struct {
	raft.Transport
	logger hclog.Logger
	// mayVote is nil, or why this server has no vote.
	mayVote func() error
	terms   *terms
	// reach is told who holds which entries.
	reach *reach

	requests chan raft.RPC
	done     chan struct{}
	once     sync.Once
}

var (
	_ raft.WithPreVote = (*gate)(nil)
	_ raft.WithClose   = (*gate)(nil)
)

func newGate(t raft.Transport, p *promises, r *reach, logger hclog.Logger) *gate {
	g := &gate{Transport: t, logger: logger, mayVote: p.mayVote, terms: &p.terms, reach: r, requests: make(chan raft.RPC), done: make(chan struct{})}
	go g.run(t.Consumer())
	return g
}

// Consumer implements raft.Transport.
func (g *gate) Consumer() <-chan raft.RPC { return g.requests }

// Close implements raft.WithClose.
func (g *gate) Close() error {
	g.once.Do(func() { close(g.done) })
	return closeTransport(g.Transport)
}

func (g *gate) run(from <-chan raft.RPC) {
	for {
		select {
		case rpc := <-from:
			if resp, err := g.refuse(rpc.Command); err != nil {
				g.logger.Warn("refused a request of another server", "error", err)
				rpc.Respond(resp, err)
				continue
			}
			if c, ok := rpc.Command.(*raft.AppendEntriesRequest); ok {
				g.reach.noteEntries(string(c.ID), c)
			}
			select {
			case g.requests <- rpc:
			case <-g.done:
				return
			}
		case <-g.done:
			return
		}
	}
}

// refuse says why a request must not reach Raft, and what is answered instead.
func (g *gate) refuse(command any) (resp any, err error) {
	switch c := command.(type) {
	case *raft.AppendEntriesRequest:
		if err := checkSeals(c.Entries); err != nil {
			return &raft.AppendEntriesResponse{}, fmt.Errorf("entries from %s are not taken: %w", c.ID, err)
		}
	case *raft.RequestVoteRequest:
		return &raft.RequestVoteResponse{}, g.mayVote()
	case *raft.RequestPreVoteRequest:
		return &raft.RequestPreVoteResponse{}, g.mayVote()
	case *raft.TimeoutNowRequest:
		return &raft.TimeoutNowResponse{}, g.mayVote()
	}
	return nil, nil
}

// AppendEntries implements raft.Transport. Heartbeats end with the transport, also those of a Raft that cannot be stopped: its disk hangs.
func (g *gate) AppendEntries(id raft.ServerID, to raft.ServerAddress, req *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) error {
	select {
	case <-g.done:
		return raft.ErrTransportShutdown
	default:
	}
	err := g.Transport.AppendEntries(id, to, req, resp)
	if err == nil && resp.Success {
		g.reach.noteEntries(string(id), req)
	}
	return err
}

// RequestVote implements raft.Transport.
func (g *gate) RequestVote(id raft.ServerID, to raft.ServerAddress, req *raft.RequestVoteRequest, resp *raft.RequestVoteResponse) error {
	if err := g.mayVote(); err != nil {
		return err
	}
	return g.Transport.RequestVote(id, to, req, resp)
}

// RequestPreVote implements raft.WithPreVote.
func (g *gate) RequestPreVote(id raft.ServerID, to raft.ServerAddress, req *raft.RequestPreVoteRequest, resp *raft.RequestPreVoteResponse) error {
	if err := g.mayVote(); err != nil {
		return err
	}
	if t, ok := g.Transport.(raft.WithPreVote); ok {
		return t.RequestPreVote(id, to, req, resp)
	}
	return errors.New("the transport knows no pre-votes")
}
