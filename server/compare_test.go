package server

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

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
	name, addr := bad.Name(), bad.config.RaftAddr
	c.stop(bad)
	c.start(name, func(cfg *Config) { // where the others look for it
		_ = cfg.Raft.Close()
		var err error
		if cfg.Raft, err = net.Listen("tcp", addr); err != nil {
			t.Fatal(err)
		}
		cfg.RaftAddr = addr
	})
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
