package raftnode

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/pki"
	"github.com/berth-dev/berth/ports"
)

// network is a cluster over TCP.
type network struct {
	t      *testing.T
	states map[string]*fsm.State
	nodes  map[string]*Node
}

// newNetwork opens servers that are one cluster, without TLS.
func newNetwork(t *testing.T, ids ...string) *network {
	return newSecuredNetwork(t, func(string) *pki.Source { return nil }, ids...)
}

// newSecuredNetwork opens servers that are one cluster, with a certificate each.
func newSecuredNetwork(t *testing.T, tls func(id string) *pki.Source, ids ...string) *network {
	w := &network{t: t, states: map[string]*fsm.State{}, nodes: map[string]*Node{}}
	t.Cleanup(func() {
		for id, n := range w.nodes {
			if err := n.Shutdown(); err != nil {
				t.Errorf("shut %s down: %v", id, err)
			}
		}
	})
	for _, id := range ids {
		w.open(id, tls(id))
	}
	w.bootstrap(ids...)
	return w
}

func (w *network) open(id string, tls *pki.Source) *Node {
	w.t.Helper()
	w.nodes[id] = w.start(id, anyAddr, tls)
	return w.nodes[id]
}

// anyAddr is an address that nobody has.
const anyAddr = "127.0.0.1:0"

// add starts a server, with an empty directory, that the network does not
// stop.
func (w *network) add(id, addr string) *Node { return w.start(id, addr, nil) }

func (w *network) start(id, addr string, tls *pki.Source) *Node {
	w.t.Helper()
	return w.startIn(w.t.TempDir(), id, addr, tls)
}

func (w *network) startIn(dir, id, addr string, tls *pki.Source) *Node {
	w.t.Helper()
	if addr == anyAddr { // and the same when it is opened again
		claim, err := ports.Free(1)
		if err != nil {
			w.t.Fatal(err)
		}
		w.t.Cleanup(claim.Release)
		addr = claim.Addr(0)
	}
	s := fsm.NewState()
	n, err := Open(Config{
		ID: id, DataDir: dir, NoFsync: true, BindAddr: addr, TLS: tls,
		Logger: testLogger().With("server", id),
	}, s)
	if err != nil {
		w.t.Fatal(err)
	}
	w.states[id] = s
	return n
}

func (w *network) leader(ids ...string) *Node {
	var leader *Node
	eventually(w.t, "a leader", func() bool {
		for _, id := range ids {
			if w.nodes[id].Leadership().Leader {
				leader = w.nodes[id]
				return true
			}
		}
		return false
	})
	return leader
}

func (w *network) bootstrap(ids ...string) {
	w.t.Helper()
	var servers []Server
	for _, id := range ids {
		servers = append(servers, Server{ID: id, Address: w.nodes[id].Addr()})
	}
	for _, id := range ids {
		if err := w.nodes[id].Bootstrap(servers); err != nil {
			w.t.Fatal(err)
		}
	}
}

// propose tries until a leader has applied commands that may be tried twice: a
// busy machine can cost a leader its office at any time.
func (w *network) propose(ps ...fsm.Proposal) (*Node, uint64) {
	w.t.Helper()
	for {
		leader := w.leader("a", "b", "c")
		_, index, err := leader.Propose(testContext(w.t), ps...)
		var elsewhere *NotLeaderError
		switch {
		case err == nil:
			return leader, index
		case !errors.Is(err, ErrUnknownOutcome) && !errors.As(err, &elsewhere):
			w.t.Fatal(err)
		}
	}
}

func authority(t *testing.T) func(kind pki.Kind, name string) *pki.Source {
	ca, err := pki.NewCA(time.Now(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	return func(kind pki.Kind, name string) *pki.Source {
		pair, err := ca.Issue(time.Now(), pki.Request{Kind: kind, Name: name, Validity: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		s, err := pki.FromPEM(ca.CertPEM(), pair)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
}

func TestClusterOverTCP(t *testing.T) { testNetwork(t, func(string) *pki.Source { return nil }) }
func TestClusterOverTLS(t *testing.T) {
	issue := authority(t)
	testNetwork(t, func(id string) *pki.Source { return issue(pki.Server, id) })
}

func testNetwork(t *testing.T, tls func(id string) *pki.Source) {
	w := newSecuredNetwork(t, tls, "a", "b", "c")
	ctx := testContext(t)
	leader, index := w.propose(namespace(), create("m", "1"))
	eventually(t, "a confirmed read", func() bool {
		_, err := w.leader("a", "b", "c").ReadIndex(ctx)
		return err == nil
	})
	for id, n := range w.nodes {
		if err := n.WaitApplied(ctx, index); err != nil {
			t.Fatal(err)
		}
		if value(w.states[id], "m") != "1" {
			t.Errorf("%s lacks the write", id)
		}
		if n.ClusterID() == "" || n.ClusterID() != leader.ClusterID() {
			t.Errorf("%s is in cluster %q, the leader in %q", id, n.ClusterID(), leader.ClusterID())
		}
	}
}

// Servers of two clusters refuse each other before Raft says a word.
func TestServersOfTwoClustersRefuseEachOther(t *testing.T) {
	w := newNetwork(t)
	w.open("a", nil)
	w.open("b", nil)
	w.bootstrap("a")
	w.bootstrap("b")
	a, b := w.leader("a"), w.leader("b")
	if a.ClusterID() == b.ClusterID() {
		t.Fatal("two clusters have one ID")
	}
	before := b.Term()
	for _, add := range []func(context.Context, string, string) error{a.AddNonvoter, a.AddVoter} {
		if err := add(testContext(t), "b", b.Addr()); err == nil || !strings.Contains(err.Error(), "belongs to cluster") {
			t.Errorf("a server of another cluster was added: %v", err)
		}
	}
	if len(a.Configuration()) != 1 || !b.IsLeader() || b.Term() != before {
		t.Error("one cluster has changed the other")
	}
	if err := a.AddVoter(testContext(t), "c", b.Addr()); err == nil || !strings.Contains(err.Error(), "was asked for") {
		t.Errorf("a server was added under another name: %v", err)
	}
}

// A server that comes back without its data must not vote as the one that it
// was. It is taken in again as a newcomer.
func TestServerThatLostItsData(t *testing.T) {
	w := newNetwork(t, "a", "b", "c")
	ctx := testContext(t)
	leader, index := w.propose(namespace(), create("m", "1"))
	id := "c"
	if leader.ID() == id {
		id = "b"
	}
	if err := w.nodes[id].WaitApplied(ctx, index); err != nil {
		t.Fatal(err)
	}
	addr := w.nodes[id].Addr()
	// Somebody else under its name, elsewhere, does not take its place.
	double := w.add(id, anyAddr)
	if err := leader.AddVoter(ctx, id, double.Addr()); !errors.Is(err, ErrLostData) {
		t.Errorf("another server of the same name was let in: %v", err)
	}
	for _, n := range []*Node{double, w.nodes[id]} {
		if err := n.Shutdown(); err != nil {
			t.Fatal(err)
		}
	}
	delete(w.nodes, id)
	w.nodes[id] = w.add(id, addr) // with an empty directory
	eventually(t, "the server to be a newcomer", func() bool {
		s, ok := leader.server(id)
		return ok && s.NonVoter
	})
	if err := w.nodes[id].WaitApplied(ctx, index); err != nil {
		t.Fatal(err)
	}
	if value(w.states[id], "m") != "1" {
		t.Error("the server did not get its data back")
	}
}

// TestServerThatIsPutBack: one whose whole directory is of an earlier time has no vote, as long as somebody runs who has heard of
// more, and until it has that.
func TestServerThatIsPutBack(t *testing.T) {
	w := newNetwork(t, "a", "b", "c")
	ctx := testContext(t)
	leader, index := w.propose(namespace(), create("m", "1"))
	back, away := "a", "b"
	if leader.ID() == back {
		back, away = away, "c"
	} else if leader.ID() == away {
		away = "c"
	}
	for _, n := range w.nodes {
		must(t, n.WaitApplied(ctx, index))
	}
	dir, addr := map[string]string{}, map[string]string{}
	stop := func(id string) {
		t.Helper()
		dir[id], addr[id] = w.nodes[id].c.DataDir, w.nodes[id].Addr()
		must(t, w.nodes[id].Shutdown())
	}
	start := func(id string) {
		t.Helper()
		w.nodes[id] = w.startIn(dir[id], id, addr[id], nil)
	}
	stop(back)
	early := filepath.Join(t.TempDir(), "early")
	must(t, os.CopyFS(early, os.DirFS(dir[back])))
	start(back)
	stop(away)
	_, index = w.propose(create("n", "1"))
	must(t, w.nodes[back].WaitApplied(ctx, index))
	stop(back)
	eventually(t, "nobody to lead who could give it the rest", func() bool { return !leader.IsLeader() })
	must(t, os.RemoveAll(dir[back]))
	must(t, os.CopyFS(dir[back], os.DirFS(early)))
	start(back)
	eventually(t, "the server to hear what it had acknowledged", func() bool { return w.nodes[back].promises.mayVote() != nil })
	start(away)
	must(t, w.nodes[back].WaitApplied(ctx, index))
	eventually(t, "its vote", func() bool { return w.nodes[back].promises.mayVote() == nil })
	if value(w.states[back], "n") != "1" {
		t.Error("the server did not get its data back")
	}
}

func TestGreetings(t *testing.T) {
	issue := authority(t)
	w := newNetwork(t, "a")
	a := w.leader("a")
	secured := w.open("s", issue(pki.Server, "s"))
	w.bootstrap("s")
	w.leader("s")

	peer := func(name, cluster, to string, tls *pki.Source) *stream {
		id := &identity{file: identityRecord{Server: name, Cluster: cluster, copyOf: copyOf{Incarnation: "of " + name}}}
		s := withoutNode(id, new(promises), newReach(id), name)
		s.listener, s.tls, s.nameOf, s.conns = tcpListener{}, tls, func(string) string { return to }, map[net.Conn]struct{}{}
		s.admission, s.lost = func(string) *position { return nil }, func(string) {}
		return s
	}
	for name, c := range map[string]struct {
		from *stream
		to   *Node
		want string // in the error; empty: welcome
	}{
		"welcome":             {peer("x", a.ClusterID(), "a", nil), a, ""},
		"address not known":   {peer("x", a.ClusterID(), "", nil), a, ""},
		"another cluster":     {peer("x", "other", "", nil), a, "belongs to cluster"},
		"no cluster":          {peer("x", "", "", nil), a, "no cluster"},
		"another server":      {peer("x", a.ClusterID(), "b", nil), a, `"b" was asked for`},
		"one name twice":      {peer("a", a.ClusterID(), "", nil), a, "must not have one name"},
		"TLS":                 {peer("x", secured.ClusterID(), "", issue(pki.Server, "x")), secured, ""},
		"no TLS":              {peer("x", secured.ClusterID(), "", nil), secured, "does not speak"},
		"a worker":            {peer("x", secured.ClusterID(), "", issue(pki.Worker, "x")), secured, "does not speak"},
		"a user":              {peer("x", secured.ClusterID(), "", issue(pki.Client, "x")), secured, "does not speak"},
		"another's name":      {peer("y", secured.ClusterID(), "", issue(pki.Server, "x")), secured, "does not speak"},
		"another authority":   {peer("x", secured.ClusterID(), "", authority(t)(pki.Server, "x")), secured, "certificate"},
		"TLS to plain server": {peer("x", a.ClusterID(), "", issue(pki.Server, "x")), a, "server at"},
	} {
		conn, err := c.from.Dial(raft.ServerAddress(c.to.Addr()), 5*time.Second)
		if err == nil {
			err = errors.Join(conn.Close())
		} else if c.want == "" {
			t.Errorf("%s: %v", name, err)
		}
		if c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v, want something of %q", name, err, c.want)
		}
	}
}

// Bytes of somebody else end the connection and nothing more.
func TestStrangersOnThePort(t *testing.T) {
	w := newNetwork(t, "a")
	a := w.leader("a")
	for _, bytes := range []string{"GET / HTTP/1.1\r\n\r\n" + strings.Repeat("x", 100), helloMagic + "\xff\xff" + strings.Repeat("x", 100), helloMagic + "\x00\x02{]"} {
		conn, err := net.Dial("tcp", a.Addr())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(conn, bytes); err != nil {
			t.Fatal(err)
		}
		if err := conn.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
			t.Fatal(err)
		}
		if b, err := io.ReadAll(conn); len(b) > 0 || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("a stranger was answered %q, %v", b, err)
		}
		_ = conn.Close()
	}
	if _, err := a.ReadIndex(testContext(t)); err != nil {
		t.Error(err)
	}
}

func TestWildcardNeedsAnAdvertisedAddress(t *testing.T) {
	c := Config{ID: "a", InMemory: true, BindAddr: "0.0.0.0:0"}
	if _, err := Open(c, fsm.NewState()); err == nil || !strings.Contains(err.Error(), "advertise") {
		t.Errorf("%v", err)
	}
	c.AdvertiseAddr = "server-a.example:4647"
	n, err := Open(c, fsm.NewState())
	if err != nil {
		t.Fatal(err)
	}
	if n.Addr() != "server-a.example:4647" {
		t.Errorf("advertises %s", n.Addr())
	}
	if err := n.Shutdown(); err != nil {
		t.Error(err)
	}
}

func TestPortInUse(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	dir := t.TempDir()
	for range 2 { // the first failure must leave nothing locked
		_, err = Open(Config{ID: "a", DataDir: dir, BindAddr: l.Addr().String()}, fsm.NewState())
		if err == nil || !strings.Contains(err.Error(), "address already in use") {
			t.Errorf("%v", err)
		}
	}
}
