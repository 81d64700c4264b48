package store

import (
	"context"
	"errors"
	"sort"
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

// Feed keeps changes by revision, bounded by their number and by the
// memory that it alone keeps alive: itself and the old rows, for a new one is a row of the
// state, or the old one of a later change. It is safe for concurrent use. A view
// and the changes that led to it appear at the same moment: who takes a view can
// go on from its revision, and who reads a change finds it in the view.
type Feed struct {
	mu     sync.RWMutex
	bounds FeedBounds
	most   int     // bytes that may be held now, see SizeTo
	chunks []chunk // the oldest first; only the last is added to
	first  int64   // revision of the oldest change kept
	last   int64   // revision of the newest change; first-1 when there is none
	bytes  int     // held
	signal chan struct{}
}

// chunk is what readers share of a feed, and what it forgets at a time. Changes that are in it are never written again.
type chunk struct {
	changes []Change
	bytes   int // held
}

// FeedBounds say how much a feed keeps.
type FeedBounds struct {
	Changes int
	Bytes   int
	// LeastBytes may be held whatever the state takes; beyond that no more than it does (Feed.SizeTo).
	LeastBytes int
	// Changes older than this, by the time of their entries, are kept only as
	// long as there are no more than QuietBytes.
	QuietBytes int
	Age        time.Duration
}

// chunkShare is which part of what a feed may hold, in changes and in bytes, a chunk holds before another is begun.
const chunkShare = 64

// changeBytes is what a change takes that holds nothing.
const changeBytes = 96

// NewFeed returns a feed that begins after a revision.
func NewFeed(bounds FeedBounds, revision int64) *Feed {
	return &Feed{bounds: bounds, most: bounds.Bytes, first: revision + 1, last: revision, signal: make(chan struct{})}
}

// SizeTo lets the feed hold about as much as the state does, within its bounds, from the next Append on: whoever is
// behind by more reads less if he begins anew.
func (f *Feed) SizeTo(stateBytes int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.most = int(min(int64(f.bounds.Bytes), max(int64(f.bounds.LeastBytes), stateBytes)))
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

// After returns changes that follow a revision, oldest first: the next ones, though maybe not all that there are and never
// more than most. An empty answer means that the reader is up to date. The changes are shared and must not be written.
func (f *Feed) After(revision int64, most int) ([]Change, error) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	if revision < f.first-1 || revision > f.last {
		return nil, ErrCompacted
	}
	if revision == f.last {
		return nil, nil
	}
	later := sort.Search(len(f.chunks), func(i int) bool { return f.chunks[i].changes[0].Revision > revision+1 })
	changes := f.chunks[later-1].changes
	from := int(revision + 1 - changes[0].Revision)
	to := min(len(changes), from+most)
	return changes[from:to:to], nil
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
	f.take(changes)
	f.wake()
}

func (f *Feed) take(changes []Change) {
	for i := range changes {
		f.add(&changes[i])
	}
	for f.first <= f.last && f.tooMuch(changes[len(changes)-1].TimeUnixNano) {
		f.forgetOldest()
	}
}

func (f *Feed) add(c *Change) {
	if len(f.chunks) == 0 || f.isFull(&f.chunks[len(f.chunks)-1]) {
		room := 0 // a feed that holds little takes little
		if n := len(f.chunks); n > 0 {
			room = len(f.chunks[n-1].changes) // as many as the last one had until it was full
		}
		f.chunks = append(f.chunks, chunk{changes: make([]Change, 0, room)})
	}
	k, bytes := &f.chunks[len(f.chunks)-1], changeBytes+c.heldBytes
	k.changes, k.bytes = append(k.changes, *c), k.bytes+bytes
	f.last, f.bytes = c.Revision, f.bytes+bytes
}

func (b FeedBounds) chunkChanges() int { return max(1, b.Changes/chunkShare) }

func (f *Feed) isFull(k *chunk) bool {
	return len(k.changes) >= f.bounds.chunkChanges() || k.bytes > f.most/chunkShare
}

// tooMuch says whether the oldest changes have to go.
func (f *Feed) tooMuch(nowUnixNano int64) bool {
	oldest := f.chunks[0].changes
	return f.bytes > f.most || int(f.last-f.first) >= f.bounds.Changes ||
		f.bytes > f.bounds.QuietBytes && nowUnixNano-oldest[len(oldest)-1].TimeUnixNano > int64(f.bounds.Age)
}

func (f *Feed) forgetOldest() {
	oldest := f.chunks[0]
	f.first += int64(len(oldest.changes))
	f.bytes -= oldest.bytes
	f.chunks[0] = chunk{}
	if f.chunks = f.chunks[1:]; len(f.chunks) == 0 {
		f.chunks = nil
	}
}

// Reset forgets everything: the state was replaced by a snapshot at revision. The changes, if any, are those that an entry made
// after it has replaced the state; they and the view that they lead to appear with it.
func (f *Feed) Reset(revision int64, changes []Change, publish func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	publish()
	f.chunks, f.first, f.last, f.bytes = nil, revision+1, revision, 0
	if len(changes) > 0 {
		f.take(changes)
	}
	f.wake()
}

func (f *Feed) wake() {
	told := f.signal
	f.signal = make(chan struct{})
	close(told)
}
