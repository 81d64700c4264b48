package peers

import (
	"slices"
	"time"

	"github.com/berth-dev/berth/clock"
)

// freshFor is how long what a clock showed is worth something: clocks drift by
// milliseconds in that time.
const freshFor = 30 * time.Second

// clocks are the offsets of the voters' wall clocks from this server's, sorted,
// its own among them if it votes, and how many voters there are.
func (r *Room) clocks(wall int64, now time.Duration) (offsets []time.Duration, voters int) {
	for _, p := range r.peersAt(wall, now) {
		if !p.Voter {
			continue
		}
		voters++
		if p.Self || p.Answer != nil && p.Compared && p.Silent < freshFor && p.Answer.WallUnixNano != 0 {
			offsets = append(offsets, p.Offset)
		}
	}
	slices.Sort(offsets)
	return offsets, voters
}

// TimeOfDay is by how much the time of day is ahead of this server's wall clock,
// as the voters have it: the median of their clocks, the earlier of two. It is not
// known until a majority of them was asked.
func (r *Room) TimeOfDay() (offset time.Duration, known bool) {
	return r.timeOfDay(r.c.Now())
}

// Day is that time of day less this server's Elapsed, in nanoseconds since 1970,
// which stays true if this server's wall clock is set.
func (r *Room) Day() (unixNano int64, known bool) {
	wall, now := r.c.Now()
	offset, known := r.timeOfDay(wall, now)
	return wall + int64(offset-now), known
}

// Counsel is what the clock of the leadership goes by. The state's time is that of who
// leads, whose it is; where nobody else does, the latest that one tells.
func (r *Room) Counsel() clock.Counsel {
	c, leads := clock.Counsel{Complete: true}, false
	c.Day, c.DayKnown = r.Day()
	for _, p := range r.Peers() {
		if p.Self {
			continue
		}
		c.Complete = c.Complete && (p.Answer != nil || p.Failures > 0)
		if p.StateTold && p.Silent < freshFor && !leads && (!c.StateKnown || p.Leader || p.State > c.State) {
			c.State, c.StateKnown, leads = p.State, true, p.Leader
		}
	}
	return c
}

func (r *Room) timeOfDay(wall int64, now time.Duration) (offset time.Duration, known bool) {
	offsets, voters := r.clocks(wall, now)
	if len(offsets) == 0 || len(offsets) < voters/2+1 {
		return 0, false
	}
	return offsets[(len(offsets)-1)/2], true
}

// Astray: a majority of the voters has a time of day that is later than this
// server's by more than the bound, or a majority one that is earlier. by is the
// nearest of theirs.
func (r *Room) Astray(bound time.Duration) (by time.Duration, astray bool) {
	later, earlier := []time.Duration{}, []time.Duration{}
	voters := 0
	for _, p := range r.Peers() {
		if !p.Voter {
			continue
		}
		voters++
		if p.Self || p.Answer == nil || p.Silent >= freshFor {
			continue
		}
		switch {
		case p.Offset-p.Uncertainty > bound:
			later = append(later, p.Offset)
		case p.Offset+p.Uncertainty < -bound:
			earlier = append(earlier, p.Offset)
		}
	}
	switch {
	case len(later) >= voters/2+1:
		return slices.Min(later), true
	case len(earlier) >= voters/2+1:
		return slices.Max(earlier), true
	}
	return 0, false
}
