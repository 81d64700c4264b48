package server

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/berth-dev/berth/api/operator"
	"github.com/berth-dev/berth/guard"
	"github.com/berth-dev/berth/peers"
)

// clockLoop steers the clock of the leadership by the voters' clocks, and lets
// nobody lead whose clock is far off.
func (s *Server) clockLoop(ctx context.Context) {
	watch := s.node.WatchLeadership(ctx)
	ticker := time.NewTicker(peers.DefaultInterval)
	defer ticker.Stop()
	var said time.Duration
	toldHeldBack := false
	for {
		toldHeldBack = toldHeldBack || s.tellHeldBack()
		s.patience() // takes note of a leader
		s.node.Steer(s.room.Counsel())
		by, astray := s.compareClock()
		if astray && (by-said).Abs() > time.Second {
			s.log.Error("this server's clock is far off that of the majority: set it right; it will not lead",
				"offset", -by, "bound", s.config.maxClockOffset())
		}
		said = by
		if astray && s.node.IsLeader() {
			s.handOverTo(ctx, s.bestClock())
		}
		select {
		case <-ctx.Done():
			return
		case <-watch:
			s.room.Refresh(ctx)
		case <-ticker.C:
		}
	}
}

// standing is what this server's wall clock was found to be when it was compared last.
type standing struct {
	// compared: with those of a majority of the voters. astray: it is far off theirs.
	compared, astray bool
	// day is the wall clock less Elapsed, which changes when the clock is set.
	day int64
}

// compareClock compares this server's wall clock with the voters', as they told
// theirs last: that costs no question. by is how far it is astray.
func (s *Server) compareClock() (by time.Duration, astray bool) {
	r := s.node.Clock().Reading()
	_, compared := s.room.TimeOfDay()
	by, astray = s.room.Astray(s.config.maxClockOffset())
	s.standing.Store(&standing{compared, astray, r.WallUnixNano - int64(r.Elapsed)})
	return by, astray
}

// errAstray: what goes by this server's wall clock may not write.
var errAstray = errors.New("this server's clock is far off that of the majority")

// goesAstray: the wall clock is astray, or was set since it was found not to be, by
// so much that it may be.
func (s *Server) goesAstray() bool {
	r, found := s.node.Clock().Reading(), s.standing.Load()
	if found == nil || found.astray {
		return true
	}
	set := time.Duration(r.WallUnixNano - int64(r.Elapsed) - found.day)
	return set.Abs() > s.config.maxClockOffset()
}

// clockPoll is how often it is looked whether this server's clock can be gone by.
const clockPoll = 50 * time.Millisecond

// awaitClock waits until this server's wall clock was compared with those of a
// majority of the voters, and is not astray. Servers tell each other their clocks all
// the time, so most who begin to lead do not wait.
func (s *Server) awaitClock(ctx context.Context) (ok bool) {
	ticker := time.NewTicker(clockPoll)
	defer ticker.Stop()
	for {
		s.compareClock()
		if found := s.standing.Load(); found.compared && !found.astray {
			return true
		}
		select {
		case <-ctx.Done():
			return false
		case <-ticker.C:
		}
	}
}

// whileClockIsRight runs what goes by this server's wall clock, and ends it when that
// goes astray.
func (s *Server) whileClockIsRight(ctx context.Context, run func(ctx context.Context) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	var looking sync.WaitGroup
	defer looking.Wait()
	defer cancel(nil)
	looking.Go(func() {
		s.guard.Keep(ctx, "clock/look", func(ctx context.Context) {
			guard.Every(ctx, clockPoll, func(time.Time) {
				if s.goesAstray() {
					cancel(errAstray)
				}
			})
		})
	})
	if err := run(ctx); context.Cause(ctx) == nil {
		return err
	}
	return context.Cause(ctx)
}

// clockStatus is what this server's clocks show.
func (s *Server) clockStatus() operator.Clock {
	day, known := s.room.TimeOfDay()
	_, astray := s.room.Astray(s.config.maxClockOffset())
	return operator.Clock{
		Known: known, OffsetNano: -int64(day), StateAheadNano: int64(s.node.Clock().Ahead()),
		Astray: astray, MaxOffsetNano: int64(s.config.maxClockOffset()),
	}
}

// bestClock is the voter that is furthest of those that answer and whose clocks
// agree with the majority's; "" if there is none.
func (s *Server) bestClock() string {
	day, known := s.room.TimeOfDay()
	best, index := "", uint64(0)
	for _, p := range s.room.Peers() {
		if known && p.Voter && !p.Self && p.Answers() && p.Compared && (p.Offset-day).Abs() <= s.config.maxClockOffset() && p.Answer.LastIndex > index {
			best, index = p.ID, p.Answer.LastIndex
		}
	}
	return best
}

func (s *Server) handOverTo(ctx context.Context, id string) {
	if id == "" {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, leaderWait)
	defer cancel()
	if err := s.node.TransferLeadership(ctx, id); err != nil {
		s.log.Warn("the leadership could not be handed over", "to", id, "error", err)
		return
	}
	s.log.Info("handed the leadership over, for this server's clock is far off", "to", id)
}
