package store

import (
	"context"
	"errors"
	"sync"
	"time"
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

	heldBytes int // what Old costs whoever keeps the change, see Definition.Size
}

// ErrCompacted tells a reader of the feed that the changes after its revision
// are no longer, or not, there: it has to start again from a view (the API
// answers 410 Gone).
var ErrCompacted = errors.New("the changes after this revision are no longer kept")

// Feed is a ring of changes by revision, bounded by their number and by the
// memory that it alone keeps alive: itself and the old rows, for a new one is a row of the
// state, or the old one of a later change. It is safe for concurrent use. A view
// and the changes that led to it appear at the same moment: who takes a view can
// go on from its revision, and who reads a change finds it in the view.
type Feed struct {
	mu     sync.RWMutex
	bounds FeedBounds
	ring   []Change // the change of a revision is at revision % len(ring)
	first  int64    // revision of the oldest change kept
	last   int64    // revision of the newest change; first-1 when there is none
	bytes  int      // held
	signal chan struct{}
}

// FeedBounds say how much a feed keeps.
type FeedBounds struct {
	Changes int
	Bytes   int
	// Changes older than this, by the time of their entries, are kept only as
	// long as there are no more than QuietBytes.
	QuietBytes int
	Age        time.Duration
}

const firstFeedCapacity = 1 << 10

// changeBytes is what a change takes that holds nothing.
const changeBytes = 96

// NewFeed returns a feed that begins after a revision.
func NewFeed(bounds FeedBounds, revision int64) *Feed {
	return &Feed{
		ring: make([]Change, min(bounds.Changes, firstFeedCapacity)), bounds: bounds,
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
func (f *Feed) After(revision int64, most int) ([]Change, error) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	if revision < f.first-1 || revision > f.last {
		return nil, ErrCompacted
	}
	n := min(int(f.last-revision), most)
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
	f.fit(int(f.last-f.first) + 1 + len(changes))
	for i := range changes {
		if f.last-f.first+1 == int64(len(f.ring)) {
			f.forgetOldest()
		}
		f.last = changes[i].Revision
		f.ring[f.last%int64(len(f.ring))] = changes[i]
		f.bytes += changeBytes + changes[i].heldBytes
	}
	for f.first <= f.last && f.tooMuch(changes[len(changes)-1].TimeUnixNano) {
		f.forgetOldest()
	}
	f.fit(int(f.last-f.first) + 1)
	f.wake()
}

// tooMuch says whether the oldest change has to go.
func (f *Feed) tooMuch(nowUnixNano int64) bool {
	oldest := &f.ring[f.first%int64(len(f.ring))]
	return f.bytes > f.bounds.Bytes ||
		f.bytes > f.bounds.QuietBytes && nowUnixNano-oldest.TimeUnixNano > int64(f.bounds.Age)
}

func (f *Feed) forgetOldest() {
	oldest := &f.ring[f.first%int64(len(f.ring))]
	f.bytes -= changeBytes + oldest.heldBytes
	*oldest = Change{}
	f.first++
}

// fit gives the ring a size for so many changes: twice as large when it is full,
// up to the bound, half as large when it is hardly used.
func (f *Feed) fit(changes int) {
	size := len(f.ring)
	for size < changes && size < f.bounds.Changes {
		size = min(2*size, f.bounds.Changes)
	}
	for changes < size/4 && size > firstFeedCapacity {
		size /= 2
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
	f.ring = make([]Change, min(f.bounds.Changes, firstFeedCapacity))
	f.first, f.last, f.bytes = revision+1, revision, 0
	f.wake()
}

func (f *Feed) wake() {
	close(f.signal)
	f.signal = make(chan struct{})
}
