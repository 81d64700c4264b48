package clock_test

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/berth-dev/berth/clock"
)

// machine is one whose clocks the test sets.
type machine struct{ r clock.Reading }

func newMachine() *machine {
	return &machine{clock.Reading{WallUnixNano: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC).UnixNano()}}
}

func (m *machine) read() clock.Reading { return m.r }

// pass lets real time pass.
func (m *machine) pass(d time.Duration) {
	m.r.Elapsed += d
	m.r.WallUnixNano += int64(d)
}

// set sets the wall clock.
func (m *machine) set(by time.Duration) { m.r.WallUnixNano += int64(by) }

// day is the time of day less Elapsed, if it is so far ahead of the wall clock.
func (m *machine) day(ahead time.Duration) int64 {
	return m.r.WallUnixNano + int64(ahead) - int64(m.r.Elapsed)
}

// majority is the counsel of servers of which none has lived with the state: the time
// of day so far ahead of the wall clock.
func (m *machine) majority(ahead time.Duration) clock.Counsel {
	return clock.Counsel{Day: m.day(ahead), DayKnown: true, Complete: true}
}

// lead is an election, after which nothing is left to be applied.
func lead(c *clock.Clock) (clock.Step, bool) {
	c.Lead()
	return c.Begin()
}

// An hour ahead for six seconds, ten minutes ahead, behind, and back: every
// second of the state's time is a second, but for a tenth.
func TestTheWallClockMovesNothing(t *testing.T) {
	for _, tt := range []struct {
		name string
		by   time.Duration
	}{
		{"an hour ahead", time.Hour}, {"ten minutes ahead", 10 * time.Minute}, {"two hours behind", -2 * time.Hour}, {"a century ahead", 876000 * time.Hour},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m := newMachine()
			c := clock.New(m.read)
			lead(c)
			for _, step := range []struct{ by, then time.Duration }{{0, time.Minute}, {tt.by, 6 * time.Second}, {-tt.by, time.Minute}} {
				before := c.NowUnixNano()
				m.set(step.by)
				if now := c.NowUnixNano(); now != before {
					t.Errorf("set by %s, the state's time jumped by %s", step.by, time.Duration(now-before))
				}
				m.pass(step.then)
				passed := time.Duration(c.NowUnixNano() - before)
				if passed < step.then-step.then/10 || passed > step.then+step.then/10 {
					t.Errorf("set by %s, %s were %s", step.by, step.then, passed)
				}
			}
		})
	}
}

// What is ahead or behind comes to the time of day, and stays there.
func TestItLeansTowardsTheTimeOfDay(t *testing.T) {
	for _, by := range []time.Duration{time.Minute, -time.Minute} {
		m := newMachine()
		c := clock.New(m.read)
		lead(c)
		m.set(by)
		m.pass(5 * time.Minute)
		if ahead := c.Ahead(); (ahead + by/2).Abs() > time.Millisecond {
			t.Errorf("after half of the time it is ahead by %s, and the clock was set by %s", ahead, by)
		}
		m.pass(time.Hour)
		if ahead := c.Ahead(); ahead != 0 {
			t.Errorf("it is ahead by %s for good", ahead)
		}
	}
}

func TestANewStateBeginsNow(t *testing.T) {
	m := newMachine()
	c := clock.New(m.read)
	m.pass(time.Second)
	c.Follow(0, true)
	m.pass(time.Second)
	lead(c)
	if got := c.NowUnixNano(); got != m.r.WallUnixNano {
		t.Errorf("a new state begins in %s", time.Unix(0, got))
	}
}

// What is in the log is applied when a leader has committed an entry of its own. That
// one is not stamped with a wall clock: the state has a time, which is not known yet.
func TestALogThatIsNotAppliedIsNoNewState(t *testing.T) {
	m := newMachine()
	c := clock.New(m.read)
	last := m.r.WallUnixNano
	m.set(time.Hour)
	c.Steer(clock.Counsel{Day: m.day(0), DayKnown: true}) // who lives with the state was not asked
	c.Lead()
	m.pass(time.Second)
	if now := c.NowUnixNano(); now != 0 {
		t.Errorf("before the log is applied it is %s", time.Unix(0, now))
	}
	c.Follow(last, false)
	if s, stepped := c.Begin(); stepped || c.NowUnixNano() != last {
		t.Errorf("it began %s after the last entry: %+v", time.Duration(c.NowUnixNano()-last), s)
	}
}

func TestANewLeaderGoesOnWhereTheStateStands(t *testing.T) {
	m := newMachine()
	c := clock.New(m.read)
	last := m.r.WallUnixNano
	c.Follow(last, true)
	m.set(-time.Hour) // its own clock is an hour behind
	m.pass(3 * time.Second)
	lead(c)
	if got := time.Duration(c.NowUnixNano() - last); got != 3*time.Second {
		t.Errorf("3 s after the last entry it is %s after it", got)
	}
	// Entries of its predecessor that were not applied yet.
	c.Follow(last+int64(time.Minute), true)
	if got := time.Duration(c.NowUnixNano() - last); got != time.Minute {
		t.Errorf("it is behind what was applied: %s", got)
	}
	c.Follow(last, true)
	if got := time.Duration(c.NowUnixNano() - last); got != time.Minute {
		t.Errorf("a leader's clock went back: %s", got)
	}
	c.Resign()
	c.Follow(last, true)
	if got := time.Duration(c.NowUnixNano() - last); got != 0 {
		t.Errorf("a follower does not follow: %s", got)
	}
}

// After an outage of all servers the state's time is put forward, once, by what the
// majority has, and what that was is told.
func TestAStateThatStoodStillIsPutForward(t *testing.T) {
	m := newMachine()
	c := clock.New(m.read)
	last := m.r.WallUnixNano - int64(72*time.Hour)
	c.Follow(last, false)
	lead(c)
	if ahead := c.Ahead(); ahead != -72*time.Hour {
		t.Fatalf("before anybody was asked it was moved: %s", ahead)
	}
	m.set(time.Hour) // this machine is wrong, and the others say so
	partly := m.majority(-time.Hour)
	partly.Complete = false
	if s, stepped := c.Steer(partly); stepped {
		t.Fatalf("one that may have lived with it was not asked, and it was put forward: %+v", s)
	}
	if _, ok := c.Followed(); ok {
		t.Error("it tells the state's time before it knows it")
	}
	s, stepped := c.Steer(m.majority(-time.Hour))
	if ahead := c.Ahead(); ahead != 0 || !stepped || s != (clock.Step{From: last, To: last + int64(72*time.Hour)}) {
		t.Errorf("it is ahead by %s, after %+v (%v)", ahead, s, stepped)
	}
	if now, ok := c.Followed(); !ok || now != c.NowUnixNano() {
		t.Error("it does not tell others what it found")
	}
	before := c.NowUnixNano()
	again, stepped := c.Steer(m.majority(time.Hour))
	c.Resign()
	lead(c)
	if now := c.NowUnixNano(); now != before || stepped {
		t.Errorf("it was put forward twice, by %s: %+v", time.Duration(now-before), again)
	}
}

// Who has lived with the state has counted the time without entries itself. However
// many clocks show another time, its leadership goes on where the state stands.
func TestAMajorityThatIsWrongMovesNoServerThatLivedOn(t *testing.T) {
	for name, live := range map[string]func(m *machine, c *clock.Clock){
		"an entry came": func(m *machine, c *clock.Clock) {
			c.Follow(m.r.WallUnixNano-int64(time.Hour), false)
			c.Follow(m.r.WallUnixNano, true)
		},
		"it was told by one that knew": func(m *machine, c *clock.Clock) {
			c.Follow(m.r.WallUnixNano-int64(time.Hour), false)
			c.Steer(clock.Counsel{State: m.day(0), StateKnown: true})
		},
		"it has led": func(m *machine, c *clock.Clock) {
			c.Follow(m.r.WallUnixNano, false)
			lead(c)
			c.Steer(m.majority(0))
			c.Resign()
		},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMachine()
			c := clock.New(m.read)
			live(m, c)
			before := c.NowUnixNano()
			m.pass(10 * time.Minute)
			m.set(time.Hour)
			c.Steer(m.majority(0))
			s, stepped := lead(c)
			if passed := time.Duration(c.NowUnixNano() - before); passed != 10*time.Minute || stepped {
				t.Errorf("10 min without entries were %s: %+v", passed, s)
			}
			if s, stepped := c.Steer(m.majority(0)); stepped {
				t.Errorf("it was put forward afterwards: %+v", s)
			}
		})
	}
}

// A server that has lived with the state is believed, and not the majority, by one
// that has not.
func TestWhoHasLivedWithTheStateIsBelieved(t *testing.T) {
	for name, begin := range map[string]func(c *clock.Clock, told clock.Counsel) (clock.Step, bool){
		"told before":         func(c *clock.Clock, told clock.Counsel) (clock.Step, bool) { c.Steer(told); return lead(c) },
		"told while it leads": func(c *clock.Clock, told clock.Counsel) (clock.Step, bool) { lead(c); return c.Steer(told) },
	} {
		t.Run(name, func(t *testing.T) {
			m := newMachine()
			c := clock.New(m.read)
			last := m.r.WallUnixNano
			c.Follow(last, false) // made ten minutes before it began
			m.set(time.Hour)
			told := m.majority(0)
			told.State, told.StateKnown = last+int64(10*time.Minute)-int64(m.r.Elapsed), true
			begin(c, told)
			if passed := time.Duration(c.NowUnixNano() - last); passed != 10*time.Minute {
				t.Errorf("10 min were %s", passed)
			}
			if s, stepped := c.Steer(m.majority(0)); stepped {
				t.Errorf("then the majority was believed: %+v", s)
			}
		})
	}
}

// What lay in a log, or in a snapshot, says nothing of when it was made: so one that
// was restored while it followed does not know the time any more.
func TestARestoredStateIsNotFollowed(t *testing.T) {
	m := newMachine()
	c := clock.New(m.read)
	c.Follow(m.r.WallUnixNano, true)
	if _, ok := c.Followed(); !ok {
		t.Fatal("an entry came, and it does not know when it was made")
	}
	c.Follow(m.r.WallUnixNano-int64(time.Hour), false)
	if _, ok := c.Followed(); ok {
		t.Error("it tells the time of a snapshot")
	}
}

// A wall clock that is set after the majority was asked is not taken for what the
// majority said: neither when a leadership begins, nor when its clock is steered.
func TestAWallClockSetSinceIsNotTheMajoritys(t *testing.T) {
	for name, begin := range map[string]func(c *clock.Clock, day int64){
		"a leadership begins": func(c *clock.Clock, day int64) {
			c.Steer(clock.Counsel{Day: day, DayKnown: true, Complete: true})
			lead(c)
		},
		"it is steered": func(c *clock.Clock, day int64) {
			lead(c)
			c.Steer(clock.Counsel{Day: day, DayKnown: true, Complete: true})
		},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMachine()
			c := clock.New(m.read)
			c.Follow(m.r.WallUnixNano, false)
			before, asked := c.NowUnixNano(), m.day(0)
			m.set(time.Hour)
			begin(c, asked)
			if moved := time.Duration(c.NowUnixNano() - before); moved != 0 {
				t.Errorf("the state's time jumped by %s", moved)
			}
			m.pass(time.Minute)
			if passed := time.Duration(c.NowUnixNano() - before); passed != time.Minute {
				t.Errorf("a minute was %s", passed)
			}
		})
	}
}

// Whatever is set, said and led: a leader's time never goes back, and runs as real
// time does but for a tenth.
func TestTimeOfALeadership(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := newMachine()
		c := clock.New(m.read)
		c.Follow(m.r.WallUnixNano+rapid.Int64Range(-1e15, 1e15).Draw(t, "state"), rapid.Bool().Draw(t, "live"))
		lead(c)
		c.Steer(m.majority(0)) // takes the step
		begin, elapsed := c.NowUnixNano(), m.r.Elapsed
		last := begin
		for range rapid.IntRange(1, 50).Draw(t, "steps") {
			switch rapid.IntRange(0, 3).Draw(t, "what") {
			case 0:
				m.pass(time.Duration(rapid.Int64Range(0, int64(time.Hour)).Draw(t, "pass")))
			case 1:
				m.set(time.Duration(rapid.Int64Range(-1e16, 1e16).Draw(t, "set")))
			case 2:
				day, state := rapid.Int64Range(-1e16, 1e16).Draw(t, "steer"), rapid.Int64Range(-1e16, 1e16).Draw(t, "told")
				c.Steer(clock.Counsel{
					Day: m.day(time.Duration(day)), DayKnown: rapid.Bool().Draw(t, "known"),
					State: m.day(time.Duration(state)), StateKnown: rapid.Bool().Draw(t, "state is known"), Complete: true,
				})
			case 3:
				c.Follow(last-rapid.Int64Range(0, 1e15).Draw(t, "behind"), true)
			}
			now := c.NowUnixNano()
			if now < last {
				t.Fatalf("time went back by %s", time.Duration(last-now))
			}
			last = now
			passed, told := m.r.Elapsed-elapsed, time.Duration(now-begin)
			if (told - passed).Abs() > passed/10 {
				t.Fatalf("%s were told to be %s", passed, told)
			}
		}
	})
}

func TestVigil(t *testing.T) {
	m := newMachine()
	c := clock.New(m.read)
	lead(c)
	v := clock.NewVigil(c, 5*time.Second)
	_, began, _ := v.Look()
	for range 10 {
		m.pass(5 * time.Second)
		if now, since, slept := v.Look(); slept != 0 || since != began || now != c.NowUnixNano() {
			t.Fatalf("awake, and it slept for %s", slept)
		}
	}
	m.pass(264 * time.Second)
	now, since, slept := v.Look()
	if slept != 264*time.Second || since != now {
		t.Errorf("it slept for %s, and is awake since %s before now", slept, time.Duration(now-since))
	}
	m.pass(time.Second)
	if _, again, slept := v.Look(); again != since || slept != 0 {
		t.Errorf("a second later it slept again for %s", slept)
	}
}
