package e2e

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"errors"
	"fmt"
	"math"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/vmihailenco/msgpack/v5"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/agent/fleet"
	"github.com/berth-dev/berth/api/operator"
	gossip "github.com/berth-dev/berth/cluster"
)

// anotherKey is one that was never a cluster's.
const anotherKey = "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE="

// stranger joins the gossip, or tries to.
func (c *cluster) stranger(t *testing.T, name, key string, meta gossip.Meta) (*gossip.Pool, error) {
	t.Helper()
	pool, err := gossip.New(gossip.Config{Name: name, BindAddr: "127.0.0.1", EncryptionKey: key, Meta: meta, Loopback: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = pool.Shutdown() }) // the test is over
	leader := c.waitLeader(t)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	_, err = pool.Join(ctx, portOf(leader, leader.Ports.Gossip))
	return pool, err
}

// member is what a server says of somebody; nil if it knows nobody of the name.
func member(ctx context.Context, s *fleet.Process, name string) (*operator.Member, error) {
	var list operator.MemberList
	if err := s.Call(ctx, http.MethodGet, operator.PathMembers, &list); err != nil {
		return nil, err
	}
	i := slices.IndexFunc(list.Members, func(m operator.Member) bool { return m.Name == name })
	if i < 0 {
		return nil, nil
	}
	return &list.Members[i], nil
}

// isMember waits until every server says that somebody is there.
func (c *cluster) isMember(t *testing.T, name string) {
	t.Helper()
	for _, s := range c.Servers() {
		c.eventually(t, name+" to be a member at "+s.Name, func(ctx context.Context) error {
			m, err := member(ctx, s, name)
			if err == nil && (m == nil || m.Status != "alive") {
				err = fmt.Errorf("it is %+v", m)
			}
			return err
		})
	}
}

// notLetIn: who comes with a key is no member at any server.
func (c *cluster) notLetIn(t *testing.T, key string, meta gossip.Meta) {
	t.Helper()
	_, err := c.stranger(t, "mallory", key, meta)
	if mismatch := new(gossip.MismatchError); !errors.As(err, &mismatch) {
		t.Errorf("with the key %q it is told: %v", key, err)
	}
	for _, s := range c.Servers() {
		if m, err := member(t.Context(), s, "mallory"); m != nil || err != nil {
			t.Errorf("with the key %q it is a member at %s: %+v, %v", key, s.Name, m, err)
		}
	}
}

// Who has not the key of gossip, or one of before, is no member.
func (a *attacked) gossipWithoutKey(t *testing.T) {
	status, err := a.waitLeader(t).Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	meta := gossip.Meta{Role: gossip.RoleWorker, ClusterID: status.ClusterID}
	for _, key := range []string{"", anotherKey} {
		a.notLetIn(t, key, meta)
	}
	gossipWithTheKeyOfBefore(t)
}

// A small cluster changes its key, as it must: while all members are down.
func gossipWithTheKeyOfBefore(t *testing.T) {
	t.Helper()
	c := newCluster(t, server("g1", "bootstrap_expect = 1"), worker("g2", fakeRuntime))
	if err := c.waitReady(t.Context()); err != nil {
		t.Fatal(err)
	}
	status, err := c.waitLeader(t).Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	meta := gossip.Meta{Role: gossip.RoleWorker, ClusterID: status.ClusterID}
	before := c.GossipKey
	known, err := c.stranger(t, "known", before, meta)
	if err != nil {
		t.Fatalf("with the key that is not yet changed: %v", err)
	}
	c.isMember(t, "known")
	if err := known.Shutdown(); err != nil {
		t.Fatal(err)
	}
	for _, p := range c.Processes() {
		p.Signal(syscall.SIGTERM)
		<-p.Exited()
		text, err := os.ReadFile(p.Config)
		if err != nil || strings.Count(string(text), before) != 1 {
			t.Fatalf("%s: %v", text, err)
		}
		if err := os.WriteFile(p.Config, []byte(strings.Replace(string(text), before, anotherKey, 1)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	c.isMember(t, "g2")
	c.notLetIn(t, before, meta)
	if _, err := c.stranger(t, "friend", anotherKey, meta); err != nil {
		t.Errorf("with the key of now: %v", err)
	}
}

// Gossip brings addresses and no rights: who has its key, as each worker has, may say of himself that he is a server, as
// loud as he likes, and of others that they are gone.
func (a *attacked) gossipOfAForgedServer(t *testing.T) {
	leader := a.waitLeader(t)
	status, err := leader.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	const nowhere = "127.0.0.1:1"
	meta := gossip.Meta{
		Role: gossip.RoleServer, ClusterID: status.ClusterID, RPCAddr: nowhere, HTTPAddr: nowhere, RaftAddr: nowhere,
		RaftID: "mallory", Version: "0.0.0", BootstrapExpect: 1, Bootstrapped: true, BootstrapSet: "mallory",
	}
	pool, err := a.stranger(t, "mallory", a.GossipKey, meta)
	if err != nil {
		t.Fatalf("it is not even let in: %v", err)
	}
	meta.RaftID = status.ID // now it is the leader
	if _, err := a.stranger(t, "mallory-2", a.GossipKey, meta); err != nil {
		t.Fatalf("as the leader it is not even let in: %v", err)
	}
	a.isMember(t, "mallory")
	a.isMember(t, "mallory-2")
	taken := new(gossip.NameTakenError)
	if _, err := a.stranger(t, leader.Name, a.GossipKey, meta); !errors.As(err, &taken) {
		t.Errorf("the leader's name is taken twice: %v", err)
	}
	a.unharmed(t) // while they are there
	a.sameVoters(t)
	for _, accused := range a.Processes() {
		a.callsGone(t, pool, accused)
	}
	a.unharmed(t)
	a.sameVoters(t)
	a.callsDeadForGood(t, a.followers(t)[0])
	a.callsDeadForGood(t, a.Workers()[1])
	a.unharmed(t) // a pod is started on that worker
	a.sameVoters(t)
}

// sameVoters: they are the servers, and nobody who says so leads.
func (a *attacked) sameVoters(t *testing.T) {
	t.Helper()
	for _, s := range a.Servers() {
		var configuration operator.RaftConfiguration
		if err := s.Call(t.Context(), http.MethodGet, operator.PathRaftConfiguration, &configuration); err != nil {
			t.Fatal(err)
		}
		voters := 0
		for _, one := range configuration.Servers {
			if i := slices.IndexFunc(a.Servers(), func(s *fleet.Process) bool { return s.Name == one.ID }); i < 0 || one.Address != portOf(a.Servers()[i], a.Servers()[i].Ports.Raft) {
				t.Errorf("%s has %+v", s.Name, one)
			}
			if one.Suffrage == "voter" {
				voters++
			}
		}
		if voters != len(a.Servers()) {
			t.Errorf("the voters of %s are %+v", s.Name, configuration.Servers)
		}
		for _, name := range []string{"mallory", "mallory-2"} {
			if m, err := member(t.Context(), s, name); err != nil || m == nil || m.Leader {
				t.Errorf("%s says of %s: %+v, %v", s.Name, name, m, err)
			}
		}
	}
}

// What members say to each other of a third, as memberlist packs it.
const (
	suspectMessage = 3
	deadMessage    = 5
	userMessage    = 8
)

// accusation is memberlist's suspect and dead; dead by his own word has left.
type accusation struct {
	Incarnation uint32
	Node, From  string
}

// goodbye is what Berth's own say who leave.
type goodbye struct {
	Name     string `msgpack:"n"`
	Instance string `msgpack:"i"`
}

// packet is a message as it is on the wire.
func (a *attacked) packet(t *testing.T, kind byte, what any) []byte {
	t.Helper()
	raw, err := msgpack.Marshal(what)
	if err != nil {
		t.Fatal(err)
	}
	key, err := gossip.DecodeKey(a.GossipKey)
	if err != nil {
		t.Fatal(err)
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		t.Fatal(err)
	}
	seal, err := cipher.NewGCM(block)
	if err != nil {
		t.Fatal(err)
	}
	nonce := make([]byte, seal.NonceSize())
	_, _ = rand.Read(nonce) // it never fails
	packet := append([]byte{1}, nonce...)
	return seal.Seal(packet, nonce, append([]byte{kind}, raw...), nil)
}

// gossipTo sends somebody a packet of gossip.
func gossipTo(t *testing.T, whom *fleet.Process, packet []byte) {
	t.Helper()
	conn, err := net.Dial("udp", portOf(whom, whom.Ports.Gossip))
	if err != nil {
		t.Fatal(err)
	}
	_, err = conn.Write(packet)
	if err = errors.Join(err, conn.Close()); err != nil {
		t.Fatal(err)
	}
}

// tellOthers tells everybody but one.
func (a *attacked) tellOthers(t *testing.T, accused *fleet.Process, kind byte, what any) {
	t.Helper()
	for _, p := range a.Processes() {
		if p != accused {
			gossipTo(t, p, a.packet(t, kind, what))
		}
	}
}

// callsDeadForGood calls somebody dead with the highest incarnation, which he cannot contradict: gossip shows him as gone from then on. That is all.
func (a *attacked) callsDeadForGood(t *testing.T, accused *fleet.Process) {
	t.Helper()
	for _, s := range a.Servers() {
		if s == accused {
			continue
		}
		a.eventually(t, s.Name+" to believe that "+accused.Name+" is gone", func(ctx context.Context) error {
			a.tellOthers(t, accused, deadMessage, accusation{Incarnation: math.MaxUint32, Node: accused.Name, From: "mallory"})
			m, err := member(ctx, s, accused.Name)
			if err == nil && (m == nil || m.Status != "failed" && m.Status != "left") { // what was said in his name before counts, too
				err = fmt.Errorf("it is %+v", m)
			}
			return err
		})
	}
	a.stillServes(t, accused)
}

// stillServes: a worker's node is ready, and a server answers for the state as it is now.
func (a *attacked) stillServes(t *testing.T, p *fleet.Process) {
	t.Helper()
	if slices.Contains(a.Servers(), p) {
		if _, err := p.Kube.CoreV1().Pods(a.ns).Get(t.Context(), "bystander", metav1.GetOptions{}); err != nil {
			t.Errorf("%s does not answer: %v", p.Name, err)
		}
		return
	}
	node, err := a.Reader().Kube.CoreV1().Nodes().Get(t.Context(), p.Name, metav1.GetOptions{})
	if err != nil || !nodeReady(node) || len(node.Spec.Taints) > 0 {
		t.Errorf("the node %s: %v, %+v", p.Name, err, node)
	}
}

// callsGone tells all others that somebody is suspected, dead, has left and is about to: who is there is there once he has heard of it.
func (a *attacked) callsGone(t *testing.T, forger *gossip.Pool, accused *fleet.Process) {
	t.Helper()
	for i, lie := range []struct {
		kind  byte
		from  string
		heard string // what the accused says in his log
	}{
		{suspectMessage, "mallory", "Refuting a suspect message (from: mallory)"},
		{deadMessage, "mallory", "Refuting a dead message (from: mallory)"},
		{deadMessage, accused.Name, "Refuting a dead message (from: " + accused.Name + ")"},
	} {
		incarnation := uint32(1000 * (i + 1)) // higher than any that it has had
		a.eventually(t, accused.Name+" to hear that it is gone", func(context.Context) error {
			a.tellOthers(t, accused, lie.kind, accusation{Incarnation: incarnation, Node: accused.Name, From: lie.from})
			incarnation++ // else the next one is an old story
			log, err := os.ReadFile(accused.Log)
			if err == nil && !strings.Contains(string(log), lie.heard) {
				err = fmt.Errorf("it does not say %q", lie.heard)
			}
			return err
		})
		a.isMember(t, accused.Name)
	}
	shown, ok := forger.Get(accused.Name)
	if !ok || shown.Instance == "" {
		t.Fatalf("the forger knows of %s: %+v", accused.Name, shown)
	}
	a.eventually(t, "the forger to be told his own lie", func(context.Context) error {
		a.tellOthers(t, accused, userMessage, goodbye{Name: accused.Name, Instance: shown.Instance})
		if m, _ := forger.Get(accused.Name); !m.Leaving {
			return fmt.Errorf("%+v", m)
		}
		return nil
	})
	a.isMember(t, accused.Name)
	a.stillServes(t, accused)
}

// recordedGossip sends a packet once more that had an effect: who was called dead in it has said since that he is not.
func (a *attacked) recordedGossip(t *testing.T) {
	t.Helper()
	accused := a.Workers()[0]
	heard := func(from string) int {
		t.Helper()
		log, err := os.ReadFile(accused.Log)
		if err != nil {
			t.Fatal(err)
		}
		return strings.Count(string(log), "Refuting a dead message (from: "+from+")")
	}
	incarnation := uint32(100_000) // higher than any that it has had
	dead := func(from string) (packet []byte) {
		t.Helper()
		a.eventually(t, accused.Name+" to hear from "+from+" that it is gone", func(context.Context) error {
			packet = a.packet(t, deadMessage, accusation{Incarnation: incarnation, Node: accused.Name, From: from})
			incarnation++ // else the next one is an old story
			gossipTo(t, accused, packet)
			if heard(from) == 0 {
				return errors.New("it has not heard")
			}
			return nil
		})
		return packet
	}
	packet := dead("recorded")
	dead("marker-1") // all before has been heard
	before := heard("recorded")
	for range 10 {
		gossipTo(t, accused, packet)
	}
	dead("marker-2")
	if again := heard("recorded") - before; again != 0 {
		t.Errorf("what was recorded has an effect: it is refuted %d times more", again)
	}
	a.isMember(t, accused.Name)
}
