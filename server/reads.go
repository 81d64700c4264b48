package server

import (
	"context"
	"sync"
	"time"
)

// shared lets callers that come while one round is under way share the next
// one: a thousand linearizable reads at a time cost one question to the leader.
// A caller never gets the answer to a question that was asked before it came.
type shared struct {
	mu      sync.Mutex
	running bool
	next    *round
}

type round struct {
	done chan struct{}
	err  error
}

// sharedTimeout bounds a round, whose callers may have longer or no deadlines.
const sharedTimeout = 10 * time.Second

// do returns the outcome of a round that began after the call.
func (s *shared) do(ctx context.Context, ask func(context.Context) error) error {
	s.mu.Lock()
	if s.next == nil {
		s.next = &round{done: make(chan struct{})}
	}
	mine := s.next
	if !s.running {
		s.running = true
		go s.run(ask)
	}
	s.mu.Unlock()
	select {
	case <-mine.done:
		return mine.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s *shared) run(ask func(context.Context) error) {
	for {
		s.mu.Lock()
		now := s.next
		s.next = nil
		if now == nil {
			s.running = false
			s.mu.Unlock()
			return
		}
		s.mu.Unlock()
		ctx, cancel := context.WithTimeout(context.Background(), sharedTimeout)
		now.err = ask(ctx)
		cancel()
		close(now.done)
	}
}
