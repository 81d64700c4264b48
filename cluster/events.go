package cluster

import (
	"context"
	"errors"
	"sync"
)

// EventKind is what happened to a member.
type EventKind int

// The kinds of event.
const (
	// EventJoin: a member is there, for the first time or again.
	EventJoin EventKind = iota + 1
	// EventUpdate: a member's metadata or address changed.
	EventUpdate
	// EventLeave: a member has said goodbye.
	EventLeave
	// EventFail: a member has fallen silent.
	EventFail
	// EventConflict: another process uses the name of Member; Other is its
	// address. The older one stays.
	EventConflict
	// EventResync: the reader was too slow and events are lost; it calls
	// Pool.Members and goes on from there.
	EventResync
)

func (k EventKind) String() string {
	switch k {
	case EventJoin:
		return "join"
	case EventUpdate:
		return "update"
	case EventLeave:
		return "leave"
	case EventFail:
		return "fail"
	case EventConflict:
		return "conflict"
	case EventResync:
		return "resync"
	default:
		return "unknown"
	}
}

// Event is one change of the pool, as this member sees it.
type Event struct {
	Kind   EventKind
	Member Member
	Other  string // EventConflict only
}

// ErrClosed is returned once the subscription or its pool is closed.
var ErrClosed = errors.New("the gossip pool is closed")

// maxQueued bounds what a slow reader may leave unread: a pool of 10,000 that
// comes at once is a resync, which costs the reader no more.
const maxQueued = 4096

// Subscription is one reader's queue of events. Next is for one goroutine.
type Subscription struct {
	pool *Pool

	mu     sync.Mutex
	queue  []Event
	lost   bool
	closed bool
	wake   chan struct{} // capacity 1
}

// Next waits for the next event.
func (s *Subscription) Next(ctx context.Context) (Event, error) {
	for {
		if e, ok, err := s.pop(); ok || err != nil {
			return e, err
		}
		select {
		case <-s.wake:
		case <-ctx.Done():
			return Event{}, ctx.Err()
		}
	}
}

func (s *Subscription) pop() (Event, bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return Event{}, false, ErrClosed
	case s.lost:
		s.lost = false
		return Event{Kind: EventResync}, true, nil
	case len(s.queue) == 0:
		return Event{}, false, nil
	}
	e := s.queue[0]
	s.queue = s.queue[1:]
	if len(s.queue) == 0 {
		s.queue = nil
	}
	return e, true, nil
}

// push never blocks. It is called with the pool's lock held.
func (s *Subscription) push(e Event) {
	s.mu.Lock()
	if len(s.queue) >= maxQueued {
		s.queue, s.lost = nil, true
	}
	// What comes before the resync is read is part of what Members will say.
	if !s.lost && !s.closed {
		s.queue = append(s.queue, e)
	}
	s.mu.Unlock()
	s.signal()
}

func (s *Subscription) signal() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// Close ends the subscription; a waiting Next returns ErrClosed.
func (s *Subscription) Close() {
	s.pool.mu.Lock()
	delete(s.pool.subs, s)
	s.pool.mu.Unlock()
	s.finish()
}

func (s *Subscription) finish() {
	s.mu.Lock()
	s.closed, s.queue = true, nil
	s.mu.Unlock()
	s.signal()
}
