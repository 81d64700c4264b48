package clock

import (
	"sync"
	"time"
)

// Vigil notices that this process did not run for a while: it was stopped, or
// its machine was. What was not heard meanwhile was not unsaid. It is safe for
// concurrent use.
type Vigil struct {
	clock *Clock
	bound time.Duration

	mu          sync.Mutex
	last, since int64
}

// NewVigil begins one that takes a gap above the bound between two looks for
// sleep.
func NewVigil(c *Clock, bound time.Duration) *Vigil {
	now := c.NowUnixNano()
	return &Vigil{clock: c, bound: bound, last: now, since: now}
}

// Look is told at least once every bound. It returns the state's time, that from
// which on this process has been awake, and for how long it slept if it has just
// woken up, else 0.
func (v *Vigil) Look() (now, since int64, slept time.Duration) {
	v.mu.Lock()
	defer v.mu.Unlock()
	now = v.clock.NowUnixNano()
	if gap := time.Duration(now - v.last); gap > v.bound {
		v.since, slept = now, gap
	}
	v.last = now
	return now, v.since, slept
}
