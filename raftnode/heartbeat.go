package raftnode

import (
	"sync"
	"sync/atomic"

	"github.com/hashicorp/raft"
)

// terms keeps heartbeats from setting Raft's term back.
//
// A transport hands heartbeats to Raft beside its main thread, so that they are heard while that one waits for the
// disk. But Raft takes them as it takes entries: one of another term, or one that comes while the server is a
// candidate, makes it a follower in the heartbeat's term, whatever the main thread makes of the term meanwhile. A
// server that has voted in a term, or said that it knows it, could then acknowledge entries of a leader of before.
// So only those of the term that Raft is in pass, and while one does, no other term begins.
type terms struct {
	turn sync.RWMutex  // held for reading while a heartbeat is in Raft's hands
	term atomic.Uint64 // changes only while turn is held
}

// begin is called before Raft keeps a term: it is in it, or about to be. A heartbeat's own term is the one that Raft
// is in, so it does not wait for itself.
func (t *terms) begin(term uint64) {
	if t.term.Load() == term {
		return
	}
	t.turn.Lock()
	defer t.turn.Unlock()
	t.term.Store(term)
}

// during hands something over that is of a term, if it is the one that Raft is in.
func (t *terms) during(term uint64, hand func()) bool {
	t.turn.RLock()
	defer t.turn.RUnlock()
	if t.term.Load() != term {
		return false
	}
	hand()
	return true
}

// SetHeartbeatHandler implements raft.Transport. A heartbeat of another term than Raft's waits for the main thread.
func (g *gate) SetHeartbeatHandler(handle func(raft.RPC)) {
	if handle == nil {
		g.Transport.SetHeartbeatHandler(nil)
		return
	}
	g.Transport.SetHeartbeatHandler(func(rpc raft.RPC) {
		if c, ok := rpc.Command.(*raft.AppendEntriesRequest); ok && g.terms.during(c.Term, func() { handle(rpc) }) {
			return
		}
		select {
		case g.requests <- rpc:
		case <-g.done:
			rpc.Respond(nil, raft.ErrTransportShutdown)
		}
	})
}
