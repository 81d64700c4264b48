package server

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/berth-dev/berth/api/operator"
	"github.com/berth-dev/berth/cluster"
	"github.com/berth-dev/berth/fsm"
)

// whoever has the gossip key can say there what it likes.
func gossiper(t *testing.T, name string, meta cluster.Meta, join ...string) *cluster.Pool {
	t.Helper()
	p, err := cluster.New(cluster.Config{
		Name: name, BindAddr: "127.0.0.1", Loopback: true, RetryInterval: 100 * time.Millisecond, Join: join, Meta: meta,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Shutdown(); err != nil {
			t.Error(err)
		}
	})
	if _, err := p.Join(t.Context(), join...); err != nil {
		t.Fatal(err)
	}
	return p
}

// deaf accepts connections and says nothing.
func deaf(t *testing.T) string {
	l, addr := listen(t)
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		var held []net.Conn
		for {
			c, err := l.Accept()
			if err != nil {
				for _, c := range held {
					_ = c.Close()
				}
				return
			}
			held = append(held, c)
		}
	}()
	return addr
}

// Members of gossip that call themselves servers change nothing, whatever they
// say: they found no cluster and prevent none, no command waits for them, nobody
// is sent to them, and they become no servers.
func TestHostileMembersOfGossip(t *testing.T) {
	c := newTestCluster(t)
	first := c.start("a", func(cfg *Config) { cfg.BootstrapExpect = 3 })
	nobody := deaf(t)
	for i, meta := range []cluster.Meta{
		{RaftAddr: nobody, RPCAddr: nobody, HTTPAddr: nobody, Bootstrapped: true},
		{RaftAddr: nobody, BootstrapExpect: 5},
		{RaftAddr: "127.0.0.1:1", RPCAddr: "127.0.0.1:1", BootstrapExpect: 3},
		{RaftAddr: "nowhere", RaftID: "b", ClusterID: "", BootstrapExpect: 3, BootstrapSet: "x"},
		{},
	} {
		meta.Role = cluster.RoleServer
		if meta.RaftID == "" {
			meta.RaftID = fmt.Sprintf("evil-%d", i)
		}
		gossiper(t, fmt.Sprintf("evil-%d", i), meta, first.GossipAddr())
	}
	for _, name := range []string{"b", "c"} {
		c.start(name, func(cfg *Config) { cfg.BootstrapExpect = 3 })
	}
	leader := c.leader()
	for _, s := range c.servers {
		eventually(t, s.Name()+" to see the members", func() bool { return len(s.pool.Servers()) == 8 })
		c.propose(s, namespace("by-way-of-"+s.Name()))
		if err := s.ReadIndex(t.Context()); err != nil {
			t.Error(err)
		}
	}
	a := &admission{server: leader, tried: map[string]attempt{}}
	a.takeIn(t.Context())
	if n := len(leader.node.Configuration()); n != 3 {
		t.Errorf("the cluster has %d servers", n)
	}
	var list operator.MemberList
	if _, body := c.call(leader, http.MethodGet, operator.PathMembers, "", true); json.Unmarshal([]byte(body), &list) != nil {
		t.Fatal(body)
	}
	for _, m := range list.Members {
		if m.Leader != (m.Name == leader.Name()) {
			t.Errorf("who leads: %+v", m)
		}
	}
	for _, addr := range leader.Servers() {
		if addr == nobody || strings.HasSuffix(addr, ":1") {
			t.Errorf("workers are sent to %s", addr)
		}
	}
	if code, body := c.call(leader, http.MethodDelete, operator.PathRaftServers+"/"+c.followers()[0].Name(), "", true); code != http.StatusConflict {
		t.Errorf("a server that is heard is removed: %d %s", code, body)
	}

	// One takes the name of a server that is gone.
	gone := c.followers()[0]
	c.stop(gone)
	meta := cluster.Meta{Role: cluster.RoleServer, RaftID: gone.Name(), RaftAddr: nobody, RPCAddr: nobody, ClusterID: leader.node.ClusterID()}
	eventually(t, "the name to be free", func() bool { m, _ := leader.pool.Get(gone.Name()); return m.Status == cluster.StatusFailed })
	gossiper(t, gone.Name(), meta, leader.GossipAddr())
	eventually(t, "the name to be taken", func() bool { m, _ := leader.pool.Get(gone.Name()); return m.RPCAddr == nobody })
	a.takeIn(t.Context())
	for _, m := range leader.node.Configuration() {
		if m.Address == nobody {
			t.Errorf("it was believed: %+v", m)
		}
	}
	eventually(t, "the server to be missed", func() bool { p, _ := leader.room.Peer(gone.Name()); return !leader.heard(&p) })
	c.propose(leader, namespace("after"))
}

// A server that is told to hold back says that it knows no newer rules, and one that does
// not know what it is told to go by says so.
func TestMaxLogVersion(t *testing.T) {
	c := newTestCluster(t)
	s := c.start("a", func(cfg *Config) { cfg.BootstrapExpect, cfg.MaxLogVersion = 1, fsm.LogVersion-1 })
	c.leader()
	c.propose(s, namespace("held-back"))
	if got := s.View().Version(); got != fsm.LogVersion-1 {
		t.Errorf("the log goes by version %d of the rules, want %d", got, fsm.LogVersion-1)
	}
	// Once the cluster goes by later rules it is too late, and the server says so.
	c.stop(s)
	s = c.again(s, func(cfg *Config) { cfg.MaxLogVersion = 0 })
	await(t, s, "the newest rules", func(v *fsm.View) bool { return v.Version() == fsm.LogVersion })
	c.stop(s)
	late := new(lockedBuffer)
	s = c.again(s, func(cfg *Config) {
		cfg.MaxLogVersion, cfg.Logger = fsm.LogVersion-1, hclog.New(&hclog.LoggerOptions{Output: late})
	})
	eventually(t, "the option to be told of", func() bool { return strings.Contains(late.String(), "server.max_log_version has no effect") })
	c.stop(s)
	_, err := Start(t.Context(), Config{Name: "b", DataDir: t.TempDir(), MaxLogVersion: fsm.LogVersion + 1})
	if want := fmt.Sprintf("server.max_log_version: this version of Berth knows the log's rules up to version %d, and not %d", fsm.LogVersion, fsm.LogVersion+1); err == nil ||
		!strings.Contains(err.Error(), want) {
		t.Errorf("%v, want %s", err, want)
	}
}

// Servers find each other without gossip: who connects for consensus tells where
// else it is reached.
func TestServersFindEachOtherWithoutGossip(t *testing.T) {
	c := newTestCluster(t)
	for _, name := range []string{"a", "b", "c"} {
		c.start(name, func(cfg *Config) { cfg.BootstrapExpect = 3 })
	}
	follower := c.followers()[0]
	c.stop(follower)
	before := c.servers
	c.servers = nil // nobody is joined
	back := c.again(follower, func(*Config) {})
	c.servers = append(before, back)
	if n := len(back.pool.Members()); n != 1 {
		t.Fatalf("gossip shows it %d members", n)
	}
	c.propose(back, namespace("without-gossip"))
	if err := back.ReadIndex(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestListPeers(t *testing.T) {
	c := newTestCluster(t)
	for _, name := range []string{"a", "b", "c"} {
		c.start(name, func(cfg *Config) { cfg.BootstrapExpect = 3 })
	}
	leader := c.leader()
	list := func(s *Server) (out operator.RaftConfiguration) {
		code, body := c.call(s, http.MethodGet, operator.PathRaftConfiguration, "", true)
		if code != http.StatusOK || json.Unmarshal([]byte(body), &out) != nil {
			t.Fatalf("%d %s", code, body)
		}
		return out
	}
	for _, s := range c.servers {
		eventually(t, "every server to be told of whole", func() bool {
			for _, p := range list(s).Servers {
				if p.LastIndex < leader.View().Index()/2 || p.Version != "test" || p.Healthy == nil || !*p.Healthy || p.ClockOffsetNano == nil && p.ID != s.Name() {
					return false
				}
			}
			return len(list(s).Servers) == 3
		})
	}
	down := c.followers()[0]
	c.stop(down)
	eventually(t, "one that does not answer to be told of, with the reason", func() bool {
		for _, p := range list(leader).Servers {
			if p.ID == down.Name() {
				return !*p.Healthy && p.Message != "" && p.LastIndex > 0
			}
		}
		return false
	})
	others := c.servers
	c.servers = nil // nobody is joined
	empty := c.start("d", nil)
	c.servers = append(others, empty)
	if out := list(empty); len(out.Servers) != 0 || !strings.Contains(out.Message, "server d has no data") {
		t.Errorf("a server without data says %+v", out)
	}
}

// A server whose clock is far off does not lead, and deadlines do not move with it.
func TestAServerWhoseClockIsFarOffDoesNotLead(t *testing.T) {
	c := newTestCluster(t)
	clocks := map[string]*testClocks{}
	for _, name := range []string{"a", "b", "c"} {
		clocks[name] = newTestClocks()
		c.start(name, func(cfg *Config) { cfg.BootstrapExpect, cfg.Clock = 3, clocks[name].read })
	}
	wrong := c.leader()
	eventually(t, "the clocks to be compared", func() bool { return wrong.Status().Clock.Known })
	before := wrong.NowUnixNano()
	clocks[wrong.Name()].set(time.Hour)
	eventually(t, "another leader", func() bool { return c.leader() != wrong })
	next := c.leader()
	c.propose(wrong, namespace("later"))
	if passed := time.Duration(next.View().TimeUnixNano() - before); passed < 0 || passed > 10*time.Minute {
		t.Errorf("meanwhile the state's time went on by %s", passed)
	}
	if clock := wrong.Status().Clock; !clock.Astray || time.Duration(clock.OffsetNano) < 59*time.Minute {
		t.Errorf("its clock is told as %+v", clock)
	}
	// It is made leader all the same, and gives it back.
	if err := next.node.TransferLeadership(t.Context(), wrong.Name()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the leadership to be given back", func() bool { return c.leader() != wrong })
	clocks[wrong.Name()].set(-time.Hour)
	eventually(t, "the clock to be right again", func() bool { return !wrong.Status().Clock.Astray })
	await(t, wrong, "the writes", func(v *fsm.View) bool { _, ok := v.Namespaces.Get("later"); return ok })
}
