package server

import (
	"context"
	"sync"
	"time"

	"github.com/berth-dev/berth/guard"
)

const (
	// reportInterval is how often a server tells the leader whose streams it
	// holds.
	reportInterval = 2 * time.Second
	// heardWithin: a worker that has been silent for longer is not reported.
	heardWithin = 12 * time.Second
)

// heartbeats is what the leader knows of the workers' streams, wherever they
// end. It is a memory of hints, never replicated (see controller.NodeLifecycle).
type heartbeats struct {
	mu   sync.Mutex
	seen map[string]int64
}

func (h *heartbeats) note(nodes []string, nowUnixNano int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.seen == nil {
		h.seen = map[string]int64{}
	}
	for _, n := range nodes {
		h.seen[n] = nowUnixNano
	}
}

// LastSeenUnixNano implements controller.Heartbeats.
func (h *heartbeats) LastSeenUnixNano(node string) (int64, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	at, ok := h.seen[node]
	return at, ok
}

// forget drops the nodes that are not kept.
func (h *heartbeats) forget(keep func(node string) bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for n := range h.seen {
		if !keep(n) {
			delete(h.seen, n)
		}
	}
}

// reportLoop tells the leader, every now and then, which workers this server
// hears.
func (s *Server) reportLoop(ctx context.Context) {
	guard.Every(ctx, reportInterval, func(time.Time) { s.reportStreams(ctx) })
}

func (s *Server) reportStreams(ctx context.Context) {
	held := s.rpc.Hub.Held(heardWithin)
	id, _ := s.node.Leader()
	if id == s.config.Name {
		s.beats.note(held, s.node.Clock().NowUnixNano())
		return
	}
	addr, ok := s.serverAddr(id)
	if !ok {
		return // nobody leads: the next leader counts silence from its own beginning
	}
	ctx, cancel := context.WithTimeout(ctx, reportInterval)
	defer cancel()
	if err := s.peers.ReportStreams(ctx, addr, held); err != nil {
		s.log.Debug("the leader did not take the report of workers", "leader", id, "error", err)
	}
}
