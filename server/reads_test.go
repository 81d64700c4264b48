package server

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/berth-dev/berth/apiserver"
)

// An answer is never older than the call: whatever was true before a call is
// seen by the round that answers it.
func TestSharedIsNeverOlderThanTheCall(t *testing.T) {
	var written atomic.Int64
	var mu sync.Mutex
	var asked atomic.Int64
	last := int64(-1)
	s := newShared(func(context.Context) error {
		mu.Lock()
		defer mu.Unlock()
		last = written.Load()
		asked.Add(1)
		return nil
	})
	defer s.close()
	var callers sync.WaitGroup
	for range 16 {
		callers.Go(func() {
			for range 200 {
				before := written.Add(1)
				if err := s.do(t.Context()); err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				saw := last
				mu.Unlock()
				if saw < before {
					t.Errorf("the answer is of %d, and %d was written before the call", saw, before)
				}
			}
		})
	}
	callers.Wait()
	if n := asked.Load(); n > 16*200 {
		t.Errorf("%d questions for %d calls", n, 16*200)
	}
}

// Callers that come while a round is under way share the next one.
func TestSharedRoundsAreShared(t *testing.T) {
	started, proceed := make(chan struct{}), make(chan struct{})
	var asked atomic.Int64
	s := newShared(func(context.Context) error {
		asked.Add(1)
		started <- struct{}{}
		<-proceed
		return nil
	})
	defer s.close()
	var callers sync.WaitGroup
	call := func() {
		callers.Go(func() {
			if err := s.do(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	call()
	<-started
	for range 100 {
		call()
	}
	go func() {
		close(proceed)
		for range started { // however many rounds there are
		}
	}()
	callers.Wait()
	s.close()
	close(started)
	// The first round, and as many more as callers came late to share one.
	if n := asked.Load(); n < 2 || n > 101 {
		t.Errorf("%d rounds for 101 calls", n)
	}
}

func TestSharedCallerGivesUp(t *testing.T) {
	s := newShared(func(ctx context.Context) error {
		<-ctx.Done()
		return ctx.Err()
	})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.do(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want the caller's own end", err)
	}
	waiting := make(chan error)
	go func() { waiting <- s.do(context.Background()) }()
	s.close() // ends the round under way
	if err := <-waiting; err == nil {
		t.Error("a round ended well that was never answered")
	}
	if err := s.do(t.Context()); !errors.Is(err, apiserver.ErrNoLeader) {
		t.Errorf("after the end: %v, want ErrNoLeader", err)
	}
}

// Who waits for an entry while the server stops is told that nothing was done, not
// of a fault of the server's.
func TestReadWhileTheServerStops(t *testing.T) {
	c := newTestCluster(t)
	s := c.start("a", nil)
	waited := make(chan error)
	go func() { waited <- s.awaitApplied(context.Background(), 1<<40) }()
	c.stop(s)
	if err := <-waited; !errors.Is(err, apiserver.ErrNoLeader) {
		t.Errorf("it was told %v", err)
	}
}
