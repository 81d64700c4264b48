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
			c.Lead()
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
		c.Lead()
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
	c.Follow(0)
	m.pass(time.Second)
	c.Lead()
	if got := c.NowUnixNano(); got != m.r.WallUnixNano {
		t.Errorf("a new state begins in %s", time.Unix(0, got))
	}
}

func TestANewLeaderGoesOnWhereTheStateStands(t *testing.T) {
	m := newMachine()
	c := clock.New(m.read)
	last := m.r.WallUnixNano
	c.Follow(last)
	m.set(-time.Hour) // its own clock is an hour behind
	m.pass(3 * time.Second)
	c.Lead()
	if got := time.Duration(c.NowUnixNano() - last); got != 3*time.Second {
		t.Errorf("3 s after the last entry it is %s after it", got)
	}
	// Entries of its predecessor that were not applied yet.
	c.Follow(last + int64(time.Minute))
	if got := time.Duration(c.NowUnixNano() - last); got != time.Minute {
		t.Errorf("it is behind what was applied: %s", got)
	}
	c.Follow(last)
	if got := time.Duration(c.NowUnixNano() - last); got != time.Minute {
		t.Errorf("a leader's clock went back: %s", got)
	}
	c.Resign()
	c.Follow(last)
	if got := time.Duration(c.NowUnixNano() - last); got != 0 {
		t.Errorf("a follower does not follow: %s", got)
	}
}

// After a time without any server the state's time is put forward, once, by what
// the majority has.
func TestAStateThatStoodStillIsPutForward(t *testing.T) {
	m := newMachine()
	c := clock.New(m.read)
	c.Follow(m.r.WallUnixNano - int64(72*time.Hour))
	c.Lead()
	if ahead := c.Ahead(); ahead != -72*time.Hour {
		t.Fatalf("before anybody was asked it was moved: %s", ahead)
	}
	m.set(time.Hour) // this machine is wrong, and the others say so
	c.Steer(m.day(-time.Hour), true)
	if ahead := c.Ahead(); ahead != 0 {
		t.Errorf("it is ahead by %s", ahead)
	}
	before := c.NowUnixNano()
	c.Steer(m.day(time.Hour), true)
	if now := c.NowUnixNano(); now != before {
		t.Errorf("it was put forward twice, by %s", time.Duration(now-before))
	}
}

// A wall clock that is set after the majority was asked is not taken for what the
// majority said: neither when a leadership begins, nor when its clock is steered.
func TestAWallClockSetSinceIsNotTheMajoritys(t *testing.T) {
	for name, begin := range map[string]func(c *clock.Clock, day int64){
		"a leadership begins": func(c *clock.Clock, day int64) { c.Steer(day, true); c.Lead() },
		"it is steered":       func(c *clock.Clock, day int64) { c.Lead(); c.Steer(day, true) },
	} {
		t.Run(name, func(t *testing.T) {
			m := newMachine()
			c := clock.New(m.read)
			c.Follow(m.r.WallUnixNano)
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
		c.Follow(m.r.WallUnixNano + rapid.Int64Range(-1e15, 1e15).Draw(t, "state"))
		c.Lead()
		c.Steer(m.day(0), true) // takes the step
		begin, elapsed := c.NowUnixNano(), m.r.Elapsed
		last := begin
		for range rapid.IntRange(1, 50).Draw(t, "steps") {
			switch rapid.IntRange(0, 3).Draw(t, "what") {
			case 0:
				m.pass(time.Duration(rapid.Int64Range(0, int64(time.Hour)).Draw(t, "pass")))
			case 1:
				m.set(time.Duration(rapid.Int64Range(-1e16, 1e16).Draw(t, "set")))
			case 2:
				c.Steer(m.day(time.Duration(rapid.Int64Range(-1e16, 1e16).Draw(t, "steer"))), rapid.Bool().Draw(t, "known"))
			case 3:
				c.Follow(last - rapid.Int64Range(0, 1e15).Draw(t, "behind"))
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
	c.Lead()
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
