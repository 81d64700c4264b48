package server

import (
	"context"
	"time"

	"github.com/berth-dev/berth/api/operator"
	"github.com/berth-dev/berth/peers"
)

// clockLoop steers the clock of the leadership by the voters' clocks, and lets
// nobody lead whose clock is far off.
func (s *Server) clockLoop(ctx context.Context) {
	watch := s.node.WatchLeadership(ctx)
	ticker := time.NewTicker(peers.DefaultInterval)
	defer ticker.Stop()
	var said time.Duration
	for {
		s.patience() // takes note of a leader
		s.node.Steer(s.room.Counsel())
		by, astray := s.room.Astray(s.config.maxClockOffset())
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
