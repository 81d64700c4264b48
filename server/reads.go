package server

import (
	"context"
	"sync"
	"time"

	"github.com/berth-dev/berth/apiserver"
)

// shared lets callers that come while one round is under way share the next
// one: a thousand linearizable reads at a time cost one question to the leader.
// A caller never gets the answer to a question that was asked before it came.
type shared struct {
	ask func(ctx context.Context) error

	base   context.Context // of the rounds, which belong to no caller
	cancel context.CancelFunc
	rounds sync.WaitGroup

	mu      sync.Mutex
	running bool
	closed  bool
	next    *round
}

type round struct {
	done chan struct{}
	err  error
}

// sharedTimeout bounds a round, whose callers may have longer or no deadlines.
const sharedTimeout = 10 * time.Second

func newShared(ask func(ctx context.Context) error) *shared {
	s := &shared{ask: ask}
	s.base, s.cancel = context.WithCancel(context.Background())
	return s
}

// do returns the outcome of a round that began after the call.
func (s *shared) do(ctx context.Context) error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return apiserver.ErrNoLeader
	}
	if s.next == nil {
		s.next = &round{done: make(chan struct{})}
	}
	mine := s.next
	if !s.running {
		s.running = true
		s.rounds.Go(s.run)
	}
	s.mu.Unlock()
	select {
	case <-mine.done:
		return mine.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s *shared) run() {
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
		ctx, cancel := context.WithTimeout(s.base, sharedTimeout)
		now.err = s.ask(ctx)
		cancel()
		close(now.done)
	}
}

// close ends the rounds under way and returns when there are none any more.
func (s *shared) close() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.cancel()
	s.rounds.Wait()
}
