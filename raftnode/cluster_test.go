package raftnode

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/fsm"
)

// cluster is several nodes over an in-memory network that can be cut. It is
// meant for a synctest bubble: waiting costs nothing there.
type cluster struct {
	t     testing.TB
	conf  func(*Config)
	nodes map[string]*testNode
	// cut holds the pairs that can not reach each other.
	cut map[[2]string]bool
}

type testNode struct {
	*Node
	state     *fsm.State
	transport *raft.InmemTransport
	stopped   atomic.Bool
}

func testLogger() hclog.Logger {
	level := hclog.Off
	if testing.Verbose() {
		level = hclog.Warn
	}
	return hclog.New(&hclog.LoggerOptions{Level: level, Output: hclog.DefaultOutput})
}

// newCluster starts n bootstrapped nodes a, b, c, …
func newCluster(t testing.TB, n int, conf func(*Config)) *cluster {
	c := &cluster{t: t, conf: conf, nodes: map[string]*testNode{}, cut: map[[2]string]bool{}}
	var servers []Server
	for i := range n {
		id := string(rune('a' + i))
		c.start(id)
		servers = append(servers, Server{ID: id, Address: id})
	}
	for _, s := range servers {
		if err := c.nodes[s.ID].Bootstrap(servers); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(c.stop)
	return c
}

func (c *cluster) start(id string) *testNode {
	c.t.Helper()
	node, err := c.open(id)
	if err != nil {
		c.t.Fatal(err)
	}
	return node
}

func (c *cluster) open(id string) (*testNode, error) {
	_, transport := raft.NewInmemTransportWithTimeout(raft.ServerAddress(id), 200*time.Millisecond)
	conf := Config{ID: id, InMemory: true, Transport: transport, Logger: testLogger().With("server", id)}
	if c.conf != nil {
		c.conf(&conf)
	}
	state := fsm.NewState()
	n, err := Open(conf, state)
	if err != nil {
		return nil, err
	}
	c.nodes[id] = &testNode{Node: n, state: state, transport: transport}
	c.connect()
	return c.nodes[id], nil
}

// connect makes the network what cut and stopped say.
func (c *cluster) connect() {
	for a, from := range c.nodes {
		for b, to := range c.nodes {
			if a == b {
				continue
			}
			if c.cut[[2]string{a, b}] || c.cut[[2]string{b, a}] || from.stopped.Load() || to.stopped.Load() {
				from.transport.Disconnect(raft.ServerAddress(b))
			} else {
				from.transport.Connect(raft.ServerAddress(b), to.transport)
			}
		}
	}
}

// isolate cuts a node off from all others; heal undoes every cut.
func (c *cluster) isolate(id string) {
	for other := range c.nodes {
		c.cut[[2]string{id, other}] = true
	}
	c.connect()
}

func (c *cluster) heal() {
	clear(c.cut)
	c.connect()
}

func (c *cluster) kill(id string) {
	c.t.Helper()
	n := c.nodes[id]
	n.stopped.Store(true)
	c.connect()
	if err := n.Shutdown(); err != nil {
		c.t.Errorf("shut %s down: %v", id, err)
	}
}

func (c *cluster) stop() {
	for id, n := range c.nodes {
		if !n.stopped.Load() {
			c.kill(id)
		}
	}
}

// leader waits for a ready leader that a majority follows.
func (c *cluster) leader() *testNode {
	c.t.Helper()
	var found *testNode
	c.eventually("a leader", func() bool {
		for _, n := range c.nodes {
			if n.stopped.Load() || !n.Leadership().Leader {
				continue
			}
			followers := 0
			for _, o := range c.nodes {
				if id, _ := o.Leader(); !o.stopped.Load() && id == n.ID() && o.Term() == n.Term() {
					followers++
				}
			}
			if followers > len(n.Configuration())/2 {
				found = n
				return true
			}
		}
		return false
	})
	return found
}

func (c *cluster) followers() []*testNode {
	leader := c.leader()
	var out []*testNode
	for _, n := range c.nodes {
		if n != leader && !n.stopped.Load() {
			out = append(out, n)
		}
	}
	slices.SortFunc(out, func(a, b *testNode) int { return compareIDs(a.ID(), b.ID()) })
	return out
}

func (c *cluster) eventually(what string, ok func() bool) { eventually(c.t, what, ok) }

func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !ok(); {
		if time.Now().After(deadline) {
			t.Fatalf("gave up waiting for %s", what)
		}
		<-time.After(5 * time.Millisecond)
	}
}

// same waits until every running node has applied what the leader has, and
// checks that they hold the same.
func (c *cluster) same() {
	c.t.Helper()
	leader := c.leader()
	if _, err := leader.barrier(c.ctx()); err != nil {
		c.t.Fatal(err)
	}
	index := leader.AppliedIndex()
	want := leader.state.View().Digest()
	for id, n := range c.nodes {
		if n.stopped.Load() {
			continue
		}
		if err := n.WaitApplied(c.ctx(), index); err != nil {
			c.t.Fatalf("%s: %v", id, err)
		}
		if got := n.state.View().Digest(); got != want {
			c.t.Errorf("%s holds another state than the leader %s", id, leader.ID())
		}
	}
}

func (c *cluster) ctx() context.Context { return testContext(c.t) }

func testContext(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// put is a command that creates or replaces a config map.
func put(name, value string) fsm.Proposal { return putObject(name, value, false) }

func create(name, value string) fsm.Proposal { return putObject(name, value, true) }

func putObject(name, value string, create bool) fsm.Proposal {
	m := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: "uid-of-" + "x"},
		Data:       map[string]string{"value": value},
	}
	raw, err := m.Marshal()
	if err != nil {
		panic(err)
	}
	return fsm.Proposal{User: "test", Command: &fsm.PutObject{Resource: "configmaps", Raw: raw, Create: create}}
}

func value(s *fsm.State, name string) string {
	o, ok := s.View().Objects.Get(fsm.ObjectKey("configmaps", "default", name))
	if !ok {
		return ""
	}
	return o.Value.(*corev1.ConfigMap).Data["value"]
}

func namespace() fsm.Proposal {
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default", UID: "uid-of-default"}}
	return fsm.Proposal{User: "test", Command: &fsm.PutNamespace{Create: true, Namespace: fsm.NamespaceWire{Object: ns}}}
}

// Propose is ProposeAsync that waits.
func (n *Node) Propose(ctx context.Context, ps ...fsm.Proposal) ([]fsm.Result, uint64, error) {
	f, err := n.ProposeAsync(ps...)
	if err != nil {
		return nil, 0, err
	}
	return f.Wait(ctx)
}

// must proposes through whoever leads and fails the test on any refusal.
func (c *cluster) must(ps ...fsm.Proposal) uint64 {
	c.t.Helper()
	for {
		rs, index, err := c.leader().Propose(c.ctx(), ps...)
		var elsewhere *NotLeaderError
		if errors.As(err, &elsewhere) {
			continue
		}
		if err != nil {
			c.t.Fatal(err)
		}
		for i, r := range rs {
			if r.Refused() {
				c.t.Fatalf("command %d: %s", i, r.Message)
			}
		}
		return index
	}
}

func names(n int) (out []string) {
	for i := range n {
		out = append(out, fmt.Sprintf("m%05d", i))
	}
	return out
}
