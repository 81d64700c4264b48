package store

import (
	"context"
	"errors"
	"sync"
)

// Change is what one applied command did to one object. Old is nil for a
// creation, New is nil for a deletion; otherwise both are rows of the table
// and must not be changed.
type Change struct {
	Revision     int64
	Table        string
	Key          string
	Old, New     any
	TimeUnixNano int64 // of the entry
}

// ErrCompacted tells a reader of the feed that the changes after its revision
// are no longer, or not, there: it has to start again from a view (the API
// answers 410 Gone).
var ErrCompacted = errors.New("the changes after this revision are no longer kept")

// Feed is a bounded ring of changes by revision. It is safe for concurrent
// use. A view and the changes that led to it appear at the same moment: who
// takes a view can go on from its revision, and who reads a change finds it in
// the view.
type Feed struct {
	mu       sync.RWMutex
	ring     []Change // the change of a revision is at revision % len(ring)
	capacity int      // to which the ring grows as it fills
	first    int64    // revision of the oldest change kept
	last     int64    // revision of the newest change; first-1 when there is none
	signal   chan struct{}
}

const firstFeedCapacity = 1 << 10

// NewFeed returns a feed of so many changes that begins after a revision.
func NewFeed(capacity int, revision int64) *Feed {
	return &Feed{
		ring: make([]Change, min(capacity, firstFeedCapacity)), capacity: capacity,
		first: revision + 1, last: revision, signal: make(chan struct{}),
	}
}

// Last is the revision of the newest change.
func (f *Feed) Last() int64 {
	f.mu.RLock()
	defer f.mu.RUnlock()
	return f.last
}

// First is the oldest revision after which After can still go on.
func (f *Feed) First() int64 {
	f.mu.RLock()
	defer f.mu.RUnlock()
	return f.first - 1
}

// After returns up to max changes that follow a revision, oldest first. An
// empty answer means that the reader is up to date.
func (f *Feed) After(revision int64, max int) ([]Change, error) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	if revision < f.first-1 || revision > f.last {
		return nil, ErrCompacted
	}
	n := min(int(f.last-revision), max)
	if n == 0 {
		return nil, nil
	}
	out := make([]Change, n)
	at := int((revision + 1) % int64(len(f.ring)))
	copied := copy(out, f.ring[at:])
	copy(out[copied:], f.ring)
	return out, nil
}

// Wait returns when there are changes after the revision, or when the feed was
// reset by a restore, or with the context's error.
func (f *Feed) Wait(ctx context.Context, revision int64) error {
	for {
		f.mu.RLock()
		ready, signal := f.last != revision, f.signal
		f.mu.RUnlock()
		if ready {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-signal:
		}
	}
}

// Append adds the changes of one entry, whose revisions follow each other and
// the last one, and publishes the view that they lead to.
func (f *Feed) Append(changes []Change, publish func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	publish()
	if len(changes) == 0 {
		return
	}
	f.grow(len(changes))
	for _, c := range changes {
		f.ring[c.Revision%int64(len(f.ring))] = c
	}
	f.last = changes[len(changes)-1].Revision
	f.first = max(f.first, f.last-int64(len(f.ring))+1)
	f.wake()
}

// grow makes room for so many more changes, up to the capacity.
func (f *Feed) grow(more int) {
	size, want := len(f.ring), int(f.last-f.first)+1+more
	for size < want && size < f.capacity {
		size = min(2*size, f.capacity)
	}
	if size == len(f.ring) {
		return
	}
	ring := make([]Change, size)
	for r := f.first; r <= f.last; r++ {
		ring[r%int64(size)] = f.ring[r%int64(len(f.ring))]
	}
	f.ring = ring
}

// Reset forgets everything: the state was replaced by a snapshot at revision.
func (f *Feed) Reset(revision int64, publish func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	publish()
	clear(f.ring)
	f.first, f.last = revision+1, revision
	f.wake()
}

func (f *Feed) wake() {
	close(f.signal)
	f.signal = make(chan struct{})
}
