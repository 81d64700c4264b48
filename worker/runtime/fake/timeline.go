package fake

import (
	"container/heap"
	"context"
	"sync"
	"time"

	"k8s.io/utils/clock"
)

// Timeline holds what is to happen, in order of time, for any number of runtimes: a million idle containers cost no
// timer and no goroutine. Either Run drives it by a clock, or a simulation calls Advance.
type Timeline struct {
	clock   clock.Clock
	mu      sync.Mutex
	entries entries
	seq     uint64
	wake    chan struct{}
}

// NewTimeline returns an empty timeline; nil stands for the real clock.
func NewTimeline(c clock.Clock) *Timeline {
	if c == nil {
		c = clock.RealClock{}
	}
	return &Timeline{clock: c, wake: make(chan struct{}, 1)}
}

type entry struct {
	at    time.Time
	seq   uint64
	fire  func(now time.Time)
	index int
}

// at arranges for f to be called at t, from Advance.
func (tl *Timeline) at(t time.Time, f func(now time.Time)) *entry {
	tl.mu.Lock()
	tl.seq++
	e := &entry{at: t, seq: tl.seq, fire: f}
	heap.Push(&tl.entries, e)
	first := e.index == 0
	tl.mu.Unlock()
	if first {
		select {
		case tl.wake <- struct{}{}:
		default:
		}
	}
	return e
}

func (tl *Timeline) cancel(e *entry) {
	if e == nil {
		return
	}
	tl.mu.Lock()
	defer tl.mu.Unlock()
	if e.index >= 0 {
		heap.Remove(&tl.entries, e.index)
	}
}

// Next returns when the next thing happens; false when nothing will.
func (tl *Timeline) Next() (time.Time, bool) {
	tl.mu.Lock()
	defer tl.mu.Unlock()
	if len(tl.entries) == 0 {
		return time.Time{}, false
	}
	return tl.entries[0].at, true
}

// Advance lets everything happen that is due at now.
func (tl *Timeline) Advance(now time.Time) {
	for {
		tl.mu.Lock()
		if len(tl.entries) == 0 || tl.entries[0].at.After(now) {
			tl.mu.Unlock()
			return
		}
		e := heap.Pop(&tl.entries).(*entry)
		tl.mu.Unlock()
		e.fire(e.at)
	}
}

// Run advances the timeline by its clock until ctx is cancelled.
func (tl *Timeline) Run(ctx context.Context) {
	for {
		tl.Advance(tl.clock.Now())
		var fired <-chan time.Time
		var timer clock.Timer
		if at, ok := tl.Next(); ok {
			timer = tl.clock.NewTimer(max(at.Sub(tl.clock.Now()), 0))
			fired = timer.C()
		}
		select {
		case <-ctx.Done():
		case <-fired:
		case <-tl.wake:
		}
		if timer != nil {
			timer.Stop()
		}
		if ctx.Err() != nil {
			return
		}
	}
}

type entries []*entry

func (h entries) Len() int { return len(h) }
func (h entries) Less(i, j int) bool {
	if !h[i].at.Equal(h[j].at) {
		return h[i].at.Before(h[j].at)
	}
	return h[i].seq < h[j].seq
}
func (h entries) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}
func (h *entries) Push(x any) {
	e := x.(*entry)
	e.index = len(*h)
	*h = append(*h, e)
}
func (h *entries) Pop() any {
	old := *h
	e := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	e.index = -1
	return e
}
