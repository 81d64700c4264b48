package server

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/berth-dev/berth/apiserver"
)

// maxUnapplied is how many committed entries a server may still have to apply
// and be ready.
const maxUnapplied = 1024

// checks are what /readyz asks.
func (s *Server) checks() []apiserver.Check {
	return []apiserver.Check{
		{Name: "consensus", Do: s.failure},
		{Name: "leader", Do: func() error {
			if id, _ := s.node.Leader(); id == "" {
				return errors.New(s.missing())
			}
			return nil
		}},
		{Name: "caught-up", Do: func() error {
			if commit, applied := s.node.CommitIndex(), s.state.View().Index(); commit > applied+maxUnapplied {
				return fmt.Errorf("log entry %d is committed, and %d applied", commit, applied)
			}
			return nil
		}},
		{Name: "encryption", Do: func() error { return s.vault.Check(s.state.View()) }},
		{Name: "digest", Do: func() error {
			if d := s.node.Condemned(); d != nil {
				return fmt.Errorf("this server's state differs from that of the other servers %s", d)
			}
			return nil
		}},
	}
}

// missing says why nobody leads, as far as this server knows.
func (s *Server) missing() string {
	all := s.room.Peers()
	if len(all) == 0 {
		return fmt.Sprintf("server %s belongs to no cluster yet", s.config.Name)
	}
	var silent []string
	voters := 0
	for _, p := range all {
		if !p.Voter {
			continue
		}
		voters++
		if !p.Self && !p.Answers() {
			silent = append(silent, p.ID)
		}
	}
	switch {
	case s.node.Waits():
		return fmt.Sprintf("server %s lacks entries that it may have acknowledged, and waits for a leader who gives them to it", s.config.Name)
	case len(silent) == 0:
		return "the servers answer each other, and elect one"
	case len(silent) == 1:
		return fmt.Sprintf("of %d voting servers %s does not answer server %s", voters, silent[0], s.config.Name)
	}
	last := len(silent) - 1
	return fmt.Sprintf("of %d voting servers %s and %s do not answer server %s", voters, strings.Join(silent[:last], ", "), silent[last], s.config.Name)
}

// leaderless adds to an error that nobody leads why that is so.
func (s *Server) leaderless(err error) error {
	return &apiserver.NoLeaderError{Reason: s.missing(), Err: err}
}

// patience is how long a request waits for a leader. Where none has been known for
// a while it does not wait at all: whoever asks had better hear at once who is
// missing.
func (s *Server) patience() time.Duration {
	now := s.node.Clock().Elapsed()
	if id, _ := s.node.Leader(); id != "" {
		s.led.Store(int64(now))
		return leaderWait
	}
	return max(0, leaderWait-(now-time.Duration(s.led.Load())))
}
