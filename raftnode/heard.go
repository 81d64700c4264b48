package raftnode

import (
	"sync"

	"github.com/hashicorp/raft"
)

// heard is whom the leader's heartbeats reach.
type heard struct {
	mu      sync.Mutex
	failing map[raft.ServerID]bool
	watch   chan raft.Observation
}

func newHeard() *heard {
	return &heard{failing: map[raft.ServerID]bool{}, watch: make(chan raft.Observation, 64)}
}

// observe follows what Raft tells until the node stops. Raft waits for nobody
// here: what it can not hand over it drops, and the next heartbeat tells it again.
func (h *heard) observe(n *Node) {
	o := raft.NewObserver(h.watch, false, func(o *raft.Observation) bool {
		switch o.Data.(type) {
		case raft.FailedHeartbeatObservation, raft.ResumedHeartbeatObservation, raft.RaftState:
			return true
		}
		return false
	})
	n.raft.RegisterObserver(o)
	defer n.raft.DeregisterObserver(o)
	for {
		select {
		case o := <-h.watch:
			h.note(o)
		case <-n.closing:
			return
		}
	}
}

func (h *heard) note(o raft.Observation) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch d := o.Data.(type) {
	case raft.FailedHeartbeatObservation:
		h.failing[d.PeerID] = true
	case raft.ResumedHeartbeatObservation:
		delete(h.failing, d.PeerID)
	case raft.RaftState: // another leadership, or none
		clear(h.failing)
	}
}

// Hears reports whether this leader's heartbeats reach a server: its last one did,
// or none has failed yet. On a server that does not lead it means nothing.
func (n *Node) Hears(id string) bool {
	n.heard.mu.Lock()
	defer n.heard.mu.Unlock()
	return !n.heard.failing[raft.ServerID(id)]
}
