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
	// leadership before it is put forward at once. What servers tell each other
	// differs by less.
	stepFrom = time.Second
)

// Counsel is what is known of the other servers' clocks. Times are in nanoseconds
// since 1970, less Elapsed: so they stay true as time passes, and if this machine's
// wall clock is set.
type Counsel struct {
	// Day is the time of day as the majority of the voting servers has it, and State
	// the state's time as another server tells it that has followed it; each may not
	// be known.
	Day, State           int64
	DayKnown, StateKnown bool
	// Complete: every server of the configuration has answered, or failed to.
	Complete bool
}

// Step is what a leadership put the state's time forward by at its beginning, in
// nanoseconds since 1970.
type Step struct {
	From, To int64
	// Told: to what a server told that has followed the state's time. Else no such
	// server was found, and it is the time of day of the majority.
	Told bool
}

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
	// followed: this process knows what time it is for the state, since it lives with
	// it: it was here when the last entry came, has led, or was told by one that knows.
	followed bool
	// mayStep: this leadership has not found out yet whether the state's time is
	// behind, as after a time without any server.
	mayStep bool
	counsel Counsel
}

// New makes the clock of a state that nothing has been applied to yet.
func New(source Source) *Clock {
	return &Clock{source: source, at: source().Elapsed}
}

// NowUnixNano is the state's time now, in nanoseconds since 1970; 0 as long as it has
// none.
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
// restored; 0 is a state without a time. A leader stamps its entries by this clock,
// so there it changes nothing, but for those of its predecessors.
//
// live: the entry came while this process lived, so that is when it was made. How
// long ago it was that an entry was made which lay in the log, or in a snapshot,
// nobody can tell by it.
func (c *Clock) Follow(stateUnixNano int64, live bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.advance(c.source())
	if stateUnixNano != 0 && (!c.leading || stateUnixNano > now) {
		c.state, c.begun = stateUnixNano, true
	}
	if !c.leading {
		c.followed = live && c.begun
	}
}

// Followed is the state's time now, if this process lives with it: then it counted
// the time without entries, too, and another server may go by it.
func (c *Clock) Followed() (unixNano int64, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.advance(c.source()), c.followed
}

// Lead is told that this server was elected: from now on the clock runs by itself.
// Where the state stands is known when all is applied that is in the log (Begin).
func (c *Clock) Lead() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.advance(c.source())
	c.leading = true
}

// Begin is told that all is applied that was in the log before this leadership. A
// state without a time yet, which is new, takes the time of day, or this machine's as
// long as that is not known. Where this process has lived with the state, its time
// goes on as it is. Else it may be put forward once, here or as soon as the counsel is
// there (Steer): to what another server tells that has lived with it and, only if
// there is none, to what the majority takes for the time of day.
func (c *Clock) Begin() (s Step, stepped bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	r := c.source()
	c.advance(r)
	if !c.begun {
		c.state, c.begun = c.dayTime(r), true
	}
	c.mayStep = c.leading
	return c.step(r)
}

// Resign ends a leadership.
func (c *Clock) Resign() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.advance(c.source())
	c.leading, c.mayStep = false, false
}

// Steer is told what is known by now. What this machine's wall clock shows has no
// part in it, so it may be set between the asking and the telling.
func (c *Clock) Steer(counsel Counsel) (s Step, stepped bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	r := c.source()
	c.advance(r)
	c.counsel = counsel
	if !c.leading {
		c.listen(r)
	}
	return c.step(r)
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
	if !c.begun {
		return c.state
	}
	c.state += passed
	if c.leading {
		slack := passed / lean
		c.state += min(max(c.dayTime(r)-c.state, -slack), slack)
	}
	return c.state
}

// dayTime is the majority's time of day, or this machine's as long as none is known.
func (c *Clock) dayTime(r Reading) int64 {
	if c.counsel.DayKnown {
		return c.counsel.Day + int64(r.Elapsed)
	}
	return r.WallUnixNano
}

// listen: a follower that has come late takes the state's time from who has lived
// with it, so that it knows it if it is to lead.
func (c *Clock) listen(r Reading) {
	if told := c.counsel.State + int64(r.Elapsed); c.counsel.StateKnown && (!c.followed || told-c.state > int64(stepFrom)) {
		c.state, c.begun, c.followed = max(c.state, told), true, true
	}
}

func (c *Clock) step(r Reading) (s Step, stepped bool) {
	if !c.mayStep {
		return s, false
	}
	s = Step{From: c.state, To: c.state}
	switch {
	case c.counsel.StateKnown:
		s.To, s.Told = c.counsel.State+int64(r.Elapsed), true
	case !c.counsel.Complete:
		return s, false // who has lived with it may not have been asked
	case c.followed: // and has counted the time without entries itself
	case !c.counsel.DayKnown:
		return s, false
	default:
		s.To = c.dayTime(r)
	}
	c.mayStep, c.followed = false, true
	if s.To-s.From <= int64(stepFrom) {
		return s, false
	}
	c.state = s.To
	return s, true
}
