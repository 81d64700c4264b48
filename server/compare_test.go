package server

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/raftnode"
	"github.com/berth-dev/berth/store"
)

// TestDifferingServer: a server whose memory is not what the log has made of it
// is found by the leader, stops and says where it differs, and is filled anew by
// the others when it comes back.
func TestDifferingServer(t *testing.T) {
	c := newTestCluster(t)
	for _, name := range []string{"a", "b", "c"} {
		c.start(name, func(cfg *Config) { cfg.BootstrapExpect = 3 })
	}
	leader := c.leader()
	c.propose(leader, namespace("ns"))
	revision := leader.View().Revision()
	equalAt := map[string]uint64{}
	if err := leader.compare(t.Context(), equalAt); err != nil {
		t.Fatal(err)
	}
	if len(equalAt) != 3 {
		t.Fatalf("equal are %v", equalAt)
	}
	before := equalAt[leader.Name()]

	bad := c.followers()[0]
	await(t, bad, "the namespace", func(v *fsm.View) bool { return v.Revision() >= revision })
	row, _ := bad.View().Namespaces.Get("ns")
	row.Labels = map[string]string{"rotten": "yes"} // what a row must never have happen to it
	if err := leader.compare(t.Context(), equalAt); err != nil {
		t.Fatal(err)
	}
	err := <-bad.Fatal()
	if err == nil || !strings.Contains(err.Error(), "in table namespaces") || strings.Contains(err.Error(), "\n") {
		t.Fatalf("it stopped because of %v", err)
	}
	for _, s := range c.servers {
		for _, check := range s.checks() {
			if err := check.Do(); check.Name == "digest" && (err != nil) != (s == bad) {
				t.Errorf("%s: /readyz says of the digest: %v", s.Name(), err)
			}
		}
	}
	if equalAt[bad.Name()] != before || equalAt[leader.Name()] == before {
		t.Errorf("equal at %v", equalAt)
	}
	for _, s := range c.servers {
		if s != bad && s.failure() != nil {
			t.Errorf("%s stopped too: %v", s.Name(), s.failure())
		}
	}
	name := bad.Name()
	c.stop(bad)
	c.again(bad, func(*Config) {})
	eventually(t, "the server to be as the others are", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		v, err := leader.Verify(ctx)
		return err == nil && v.Equal && len(v.Servers) == 3
	})
	aside, err := filepath.Glob(filepath.Join(c.dir, name, "set-aside-*"))
	if err != nil || len(aside) != 1 {
		t.Errorf("set aside: %v, %v", aside, err)
	}
	if _, err := os.Stat(filepath.Join(c.dir, name, "differs.json")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("it would be set aside again: %v", err)
	}
}

// TestUnsettledDifference: where no majority has the same everybody serves on and
// says so, with the remedy; and the remedy helps.
func TestUnsettledDifference(t *testing.T) {
	c := newTestCluster(t)
	for _, name := range []string{"a", "b", "c"} {
		c.start(name, func(cfg *Config) {
			cfg.BootstrapExpect, cfg.Autopilot.ServerStabilizationTime = 3, time.Millisecond
		})
	}
	leader := c.leader()
	c.propose(leader, namespace("ns"))
	revision := leader.View().Revision()
	for _, s := range c.servers {
		await(t, s, "the namespace", func(v *fsm.View) bool { return v.Revision() >= revision })
		if row, _ := s.View().Namespaces.Get("ns"); s != leader { // who is right: the log says so, too
			row.Labels = map[string]string{"rotten": s.Name()} // what a row must never have happen to it
		}
	}
	equalAt := map[string]uint64{}
	if err := leader.compare(t.Context(), equalAt); err != nil {
		t.Fatal(err)
	}
	for _, s := range c.servers {
		eventually(t, s.Name()+" to say so", func() bool { return s.Status().Unsettled != "" })
		if said := s.Status().Unsettled; !strings.Contains(said, "differ in namespaces, ") || !strings.Contains(said, "Remedy: let one that is right lead") {
			t.Errorf("%s says %q", s.Name(), said)
		}
		if code, body := c.call(s, "GET", "/metrics", "", true); !strings.Contains(body, "\nberth_state_unsettled_difference 1\n") {
			t.Errorf("metrics of %s: %d, without it", s.Name(), code)
		}
		if s.failure() != nil {
			t.Errorf("%s stopped: %v", s.Name(), s.failure())
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if v, err := leader.Verify(ctx); err != nil || v.Equal || v.Message == "" {
		t.Errorf("verified: %+v, %v", v, err)
	}

	others := c.followers()
	c.refill(others[0])
	eventually(t, "a majority to be known", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second) // who is just coming up does not answer
		defer cancel()
		if err := leader.compare(ctx, equalAt); err != nil {
			t.Log(err)
		}
		return leader.Status().Unsettled == ""
	})
	if err := <-others[1].Fatal(); err == nil || !strings.Contains(err.Error(), "in table namespaces") {
		t.Errorf("the other one stopped because of %v", err)
	}
}

// refill stops a server and starts it where it was, without its data.
func (c *testCluster) refill(s *Server) {
	c.t.Helper()
	c.stop(s)
	if err := os.RemoveAll(filepath.Join(c.dir, s.Name())); err != nil {
		c.t.Fatal(err)
	}
	c.again(s, func(*Config) {})
}

// TestCompareDue: states are compared by what was written, and soon again where a difference is not settled.
func TestCompareDue(t *testing.T) {
	for _, tt := range []struct {
		waited    time.Duration
		entries   uint64
		unsettled bool
		due       bool
	}{
		{0, compareEntries, false, true}, {compareEvery, 0, false, false}, {compareEvery, 1, false, true},
		{compareEvery - 1, compareEntries - 1, false, false}, {compareAgain, 0, true, true}, {compareAgain - 1, 1, true, false},
	} {
		if due := compareDue(tt.waited, tt.entries, tt.unsettled); due != tt.due {
			t.Errorf("%+v: %t", tt, due)
		}
	}
}

// TestStillUnsettled: when one that differs falls silent, the difference is no more settled than before.
func TestStillUnsettled(t *testing.T) {
	c := newTestCluster(t)
	s := c.start("a", func(cfg *Config) { cfg.BootstrapExpect = 1 })
	three := []raftnode.Server{{ID: "a"}, {ID: "b"}, {ID: "c"}}
	differ := &comparison{index: 5, servers: three, digests: map[string]store.Digests{"a": {Whole: "1"}, "b": {Whole: "2"}},
		missing: map[string]error{"c": errors.New("away")}}
	alone := &comparison{index: 6, servers: three, digests: map[string]store.Digests{"a": {Whole: "1"}}}
	s.notSettled(alone)
	if said := s.unsettled(); said != "" {
		t.Errorf("nothing is known, and said is %q", said)
	}
	s.notSettled(differ)
	s.notSettled(alone)
	if said := s.unsettled(); !strings.Contains(said, "at log entry 5 ") || !strings.Contains(said, "Remedy: start c, which may settle it") {
		t.Errorf("said is %q", said)
	}
	if differing := testutil.ToFloat64(s.metrics.differing); differing != 2 {
		t.Errorf("%g differ", differing)
	}
	found := s.lastCompared()
	s.outcome.Store(&compared{index: 1})
	if s.keepFound(); s.lastCompared().index != 1 {
		t.Errorf("kept %+v, and nobody has found anything", s.lastCompared())
	}
	s.outcome.Store(&found)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	s.compareLoop(ended)
	if differing := testutil.ToFloat64(s.metrics.differing); differing != 0 {
		t.Errorf("%g differ, as one says that leads no more", differing)
	}
}

// TestMajority: who is right is what more than half of the voters have, and
// nobody else.
func TestMajority(t *testing.T) {
	three := []raftnode.Server{{ID: "a"}, {ID: "b"}, {ID: "c"}}
	for name, tt := range map[string]struct {
		servers []raftnode.Server
		digests map[string]string
		right   string
		agree   bool
	}{
		"all":                     {three, map[string]string{"a": "1", "b": "1", "c": "1"}, "1", true},
		"one differs":             {three, map[string]string{"a": "2", "b": "1", "c": "1"}, "1", false},
		"one is silent":           {three, map[string]string{"a": "1", "b": "1"}, "1", true},
		"one differs, one silent": {three, map[string]string{"a": "1", "b": "2"}, "", false},
		"two are silent":          {three, map[string]string{"a": "1"}, "", true},
		"each its own":            {three, map[string]string{"a": "1", "b": "2", "c": "3"}, "", false},
		"two of two":              {three[:2], map[string]string{"a": "1", "b": "2"}, "", false},
		"learners have no say": {append([]raftnode.Server{{ID: "x", NonVoter: true}, {ID: "y", NonVoter: true}}, three[:1]...),
			map[string]string{"x": "2", "y": "2", "a": "1"}, "1", false},
	} {
		c := comparison{servers: tt.servers, digests: map[string]store.Digests{}}
		for s, d := range tt.digests {
			c.digests[s] = store.Digests{Whole: d}
		}
		right, known := c.majority()
		if known != (tt.right != "") || right.Whole != tt.right || c.agree() != tt.agree {
			t.Errorf("%s: %q, %t, agree %t", name, right.Whole, known, c.agree())
		}
	}
}
