package clock

import (
	"sync"
	"time"
)

const (
	// lean is the part of the passing time by which the state's time is let run
	// faster or slower, to come to the time of day.
	lean = 10
	// stepFrom is how far behind the state's time may be at the beginning of a
	// leadership before it is put forward at once.
	stepFrom = time.Second
)

// Clock tells the state's time. It is safe for concurrent use.
//
// On a follower it goes on from the last entry that was applied (Follow). On the
// leader it runs by itself, and what it tells never goes back.
type Clock struct {
	source Source

	mu      sync.Mutex
	state   int64         // the state's time
	at      time.Duration // the source's Elapsed of that moment
	begun   bool          // the state has a time
	leading bool
	// mayStep: this leadership has not looked yet whether the state's time is far
	// behind the time of day, as after a time without any server.
	mayStep bool
	// day is the time of day less the source's Elapsed, as the servers' majority
	// has it, if that is known. It is not kept as an offset from this machine's
	// wall clock: set after the others were asked, that would be a time of day
	// that nobody has told.
	day   int64
	known bool
}

// New makes the clock of a state that nothing has been applied to yet.
func New(source Source) *Clock {
	return &Clock{source: source, at: source().Elapsed}
}

// NowUnixNano is the state's time now, in nanoseconds since 1970.
func (c *Clock) NowUnixNano() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.advance(c.source())
}

// Time is NowUnixNano as a time.
func (c *Clock) Time() time.Time { return time.Unix(0, c.NowUnixNano()) }

// Until is how long it takes until the state's time is t, in nanoseconds since
// 1970; negative if that is past.
func (c *Clock) Until(t int64) time.Duration { return time.Duration(t - c.NowUnixNano()) }

// Ahead is by how much the state's time is ahead of the time of day, as far as
// that is known.
func (c *Clock) Ahead() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	r := c.source()
	return time.Duration(c.advance(r) - c.dayTime(r))
}

// Follow is told the state's time after an entry was applied or a state was
// restored. A leader stamps its entries by this clock, so there it changes
// nothing, but for those of its predecessors. 0 is a state without a time.
func (c *Clock) Follow(stateUnixNano int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.advance(c.source())
	if stateUnixNano != 0 && (!c.leading || stateUnixNano > now) {
		c.state, c.begun = stateUnixNano, true
	}
}

// Lead begins a leadership: from now on the clock runs by itself. If the state's
// time is behind, as after a time without any server, it is put forward once,
// to what the majority of the servers takes for the time of day (Steer). A state
// without a time yet takes this machine's.
func (c *Clock) Lead() {
	c.mu.Lock()
	defer c.mu.Unlock()
	r := c.source()
	c.advance(r)
	if !c.begun {
		c.state, c.begun = c.dayTime(r), true
	}
	c.leading, c.mayStep = true, true
	c.step(r)
}

// Resign ends a leadership.
func (c *Clock) Resign() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.advance(c.source())
	c.leading, c.mayStep = false, false
}

// Steer is told the time of day less Elapsed, in nanoseconds since 1970, as the
// majority of the voting servers has it; known is false as long as no majority
// has been asked. What this machine's wall clock shows has no part in it, so it
// may be set between the asking and the telling.
func (c *Clock) Steer(day int64, known bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	r := c.source()
	c.advance(r)
	c.day, c.known = day, known
	c.step(r)
}

// Wall reads this machine's wall clock, in nanoseconds since 1970: what other
// servers compare with their own. It is not the state's time.
func (c *Clock) Wall() int64 { return c.source().WallUnixNano }

// Elapsed is real time since a moment in the past. See Reading.
func (c *Clock) Elapsed() time.Duration { return c.source().Elapsed }

// Reading is what this machine's clocks show, both at one moment.
func (c *Clock) Reading() Reading { return c.source() }

// advance is called with mu held, as are those below.
func (c *Clock) advance(r Reading) int64 {
	passed := int64(r.Elapsed - c.at)
	if passed <= 0 {
		return c.state
	}
	c.at = r.Elapsed
	c.state += passed
	if c.leading {
		slack := passed / lean
		c.state += min(max(c.dayTime(r)-c.state, -slack), slack)
	}
	return c.state
}

// dayTime is the majority's time of day, or this machine's as long as none is known.
func (c *Clock) dayTime(r Reading) int64 {
	if c.known {
		return c.day + int64(r.Elapsed)
	}
	return r.WallUnixNano
}

func (c *Clock) step(r Reading) {
	if !c.mayStep || !c.known {
		return
	}
	c.mayStep = false
	if to := c.dayTime(r); to-c.state > int64(stepFrom) {
		c.state = to
	}
}
