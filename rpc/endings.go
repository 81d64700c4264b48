package rpc

import (
	"sync"
	"time"
)

// lookAtClockEvery bounds how long it goes unnoticed that the wall clock was set.
const lookAtClockEvery = 5 * time.Second

// endings ends what may go on until a time of day. That goes by the wall clock, which may be set: a timer counts what passes, so it only
// says when to look again. It is safe for concurrent use; now must be set.
type endings struct {
	now func() time.Time // the wall clock

	mu    sync.Mutex
	open  map[*ending]struct{}
	timer *time.Timer // nil: nothing has been open yet
	look  time.Time   // when it fires, by the monotonic clock; zero: it is stopped
}

type ending struct {
	at  time.Time
	end func()
}

// add has end called, in a goroutine of its own, once it is as late as that, unless forget is called before.
func (e *endings) add(at time.Time, end func()) (forget func()) {
	one := &ending{at.Round(0), end}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.open == nil {
		e.open = map[*ending]struct{}{}
	}
	e.open[one] = struct{}{}
	e.lookIn(one.at.Sub(e.now().Round(0)))
	return func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		if delete(e.open, one); len(e.open) == 0 && e.timer != nil {
			e.timer.Stop()
			e.look = time.Time{}
		}
	}
}

// lookIn has the clock looked at no later than that. mu is held.
func (e *endings) lookIn(d time.Duration) {
	d = min(max(d, 0), lookAtClockEvery)
	at := time.Now().Add(d)
	switch {
	case e.timer == nil:
		e.timer = time.AfterFunc(d, e.endOver)
	case e.look.IsZero() || at.Before(e.look):
		e.timer.Reset(d)
	default:
		return
	}
	e.look = at
}

// endOver ends what is over by now.
func (e *endings) endOver() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.look = time.Time{}
	now, first := e.now().Round(0), lookAtClockEvery
	for one := range e.open {
		left := one.at.Sub(now)
		if left <= 0 {
			delete(e.open, one)
			time.AfterFunc(0, one.end) // it may wait for who does not read: nobody else's does
			continue
		}
		first = min(first, left)
	}
	if len(e.open) > 0 {
		e.lookIn(first)
	}
}
