package server

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
)

// Servers whose states differ without a majority that agrees all serve on: none
// of them can be known to be wrong, and to stop them all would stop the cluster.
// What a leader has found is part of what it says of itself, so every server
// knows it and shows it, until a later comparison has another outcome.

// compared is the outcome of the last comparison that this server made as the
// leader and that told something.
type compared struct {
	index     uint64
	unsettled string // comparison.unsettled
}

// unsettled says that the states differ and nobody knows who is right, and what to
// do; "" if they do not differ, or a majority has the same.
func (c *comparison) unsettled() string {
	if _, known := c.majority(); known || c.agree() {
		return ""
	}
	where := "in what their revision, time or version is"
	if tables := c.differing(); len(tables) > 0 {
		where = "in " + strings.Join(tables, ", ")
	}
	remedy := "let one that is right lead (berth operator transfer-leader), and let another one be filled anew by it: stop that one, " +
		"remove everything in its data_dir/server and start it; of two servers, add a third instead"
	if silent := slices.Sorted(maps.Keys(c.missing)); len(silent) > 0 {
		remedy = "start " + strings.Join(silent, " and ") + ", which may settle it; if not, " + remedy
	}
	return fmt.Sprintf("at log entry %d the servers' states differ %s, and no majority of the voters has the same: %s. "+
		"Nobody can say which is wrong, so all serve on. Remedy: %s", c.index, where, c, remedy)
}

// differing are the tables in which not all who have answered have the same.
func (c *comparison) differing() []string {
	tables := map[string]bool{}
	for _, one := range c.digests {
		for _, other := range c.digests {
			for _, table := range one.Differing(other) {
				tables[table] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(tables))
}

// notSettled keeps what a comparison without a majority has found. Where too few have answered to find anything, what was
// found before stays.
func (s *Server) notSettled(c *comparison) {
	found := c.unsettled()
	if found == "" {
		if s.unsettled() == "" {
			s.metrics.differing.Set(0)
		}
		return
	}
	s.outcome.Store(&compared{c.index, found})
	s.metrics.differing.Set(float64(len(c.digests)))
	s.log.Error("the servers' states differ, and it is not known who is right", "difference", found)
}

// lastCompared is what this server says of its last comparison.
func (s *Server) lastCompared() compared {
	if c := s.outcome.Load(); c != nil {
		return *c
	}
	return compared{}
}

// unsettled is what the latest comparison of any leader has found that is for an operator to settle; "": nothing.
func (s *Server) unsettled() string { return s.latestCompared().unsettled }

// latestCompared is the latest comparison of any leader that is known.
func (s *Server) latestCompared() compared {
	latest := s.lastCompared()
	for _, p := range s.room.Peers() {
		if p.Answer != nil && p.Answer.ComparedIndex > latest.index {
			latest = compared{p.Answer.ComparedIndex, p.Answer.Unsettled}
		}
	}
	return latest
}

// keepFound has a new leader say itself what the one before found: that one may be the next that is filled anew.
func (s *Server) keepFound() {
	if latest := s.latestCompared(); latest.unsettled != "" {
		s.outcome.Store(&latest)
	}
}

// unsettledGauge shows it.
func (s *Server) unsettledGauge() prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "berth_state_unsettled_difference", Help: "1: the servers' states differ, and no majority of them has the same.",
	}, func() float64 {
		if s.unsettled() != "" {
			return 1
		}
		return 0
	})
}
