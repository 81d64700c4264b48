package cluster

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/memberlist"
	"go.uber.org/goleak"

	"github.com/berth-dev/berth/ports"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// eventually waits for a condition that other goroutines bring about.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(60 * time.Second)
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("gave up waiting until %s", what)
		}
	}
}

func quick(c *memberlist.Config) {
	c.GossipInterval = 10 * time.Millisecond
	c.ProbeInterval = 200 * time.Millisecond
	c.ProbeTimeout = 150 * time.Millisecond
	c.PushPullInterval = 500 * time.Millisecond
	c.TCPTimeout = 5 * time.Second
}

func config(name string, role Role) Config {
	return Config{
		Name: name, BindAddr: "127.0.0.1", Loopback: true, RetryInterval: 20 * time.Millisecond, tune: quick,
		Meta: Meta{Role: role, RPCAddr: "127.0.0.1:1", RaftAddr: "127.0.0.1:2" + name, Version: "v1"},
	}
}

func start(t *testing.T, c Config) *Pool {
	t.Helper()
	p, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Shutdown(); err != nil {
			t.Error(err)
		}
	})
	return p
}

func join(t *testing.T, p *Pool, to *Pool) {
	t.Helper()
	if _, err := p.Join(t.Context(), to.Addr()); err != nil {
		t.Fatal(err)
	}
}

func alive(p *Pool) (n int) {
	for _, m := range p.Members() {
		if m.Status == StatusAlive {
			n++
		}
	}
	return n
}

// pool starts n members, the first three as servers.
func pool(t *testing.T, n int) []*Pool {
	t.Helper()
	var ps []*Pool
	for i := range n {
		role := RoleServer
		if i >= 3 {
			role = RoleWorker
		}
		p := start(t, config(fmt.Sprintf("m%d", i), role))
		if i > 0 {
			join(t, p, ps[i-1]) // through any member's address
		}
		ps = append(ps, p)
	}
	for _, p := range ps {
		eventually(t, p.Name()+" sees all", func() bool { return alive(p) == n })
	}
	return ps
}

func TestFiveMembersFindEachOther(t *testing.T) {
	ps := pool(t, 5)
	for _, p := range ps {
		var got []string
		for _, m := range p.Members() {
			got = append(got, m.Name+"="+string(m.Role)+"/"+m.Version)
		}
		if want := "m0=server/v1 m1=server/v1 m2=server/v1 m3=worker/v1 m4=worker/v1"; strings.Join(got, " ") != want {
			t.Errorf("%s sees %v", p.Name(), got)
		}
		if s := p.Servers(); len(s) != 3 || s[0].RPCAddr != "127.0.0.1:1" {
			t.Errorf("%s sees the servers %v", p.Name(), s)
		}
	}
}

func TestAdvertiseReachesAll(t *testing.T) {
	ps := pool(t, 5)
	if err := ps[1].Advertise(t.Context(), func(m *Meta) { m.ClusterID = "c1" }); err != nil {
		t.Fatal(err)
	}
	for _, p := range ps {
		eventually(t, p.Name()+" sees the change", func() bool {
			m, _ := p.Get("m1")
			return m.ClusterID == "c1"
		})
	}
	err := ps[1].Advertise(t.Context(), func(m *Meta) { m.Version = strings.Repeat("x", 600) })
	if err == nil || ps[1].Meta().Version != "v1" {
		t.Errorf("too long: %v", err)
	}
}

func TestLeaveAndFailureAreTold(t *testing.T) {
	ps := pool(t, 5)
	_, sub := ps[0].Subscribe()
	defer sub.Close()
	if err := ps[4].Leave(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := ps[4].Shutdown(); err != nil {
		t.Fatal(err)
	}
	expect(t, sub, EventLeave, "m4")
	if err := ps[3].Shutdown(); err != nil { // without a word
		t.Fatal(err)
	}
	expect(t, sub, EventFail, "m3")
	if m, _ := ps[0].Get("m3"); m.Status != StatusFailed {
		t.Errorf("m3 is %s", m.Status)
	}
	if m, _ := ps[0].Get("m4"); m.Status != StatusLeft {
		t.Errorf("m4 is %s", m.Status)
	}
	// Both come back, at other ports.
	for _, name := range []string{"m3", "m4"} {
		c := config(name, RoleWorker)
		c.Join = []string{ps[1].Addr()}
		p := start(t, c)
		run(t, p)
		expect(t, sub, EventJoin, name)
	}
}

// run runs p.Run until the test ends.
func run(t *testing.T, p *Pool) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func expect(t *testing.T, sub *Subscription, kind EventKind, name string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	for {
		e, err := sub.Next(ctx)
		if err != nil {
			t.Fatalf("waiting for %s of %s: %v", kind, name, err)
		}
		if e.Kind == kind && e.Member.Name == name {
			return
		}
	}
}

func TestNameTaken(t *testing.T) {
	ps := pool(t, 3)
	old, _ := ps[0].Get("m1")
	c := config("m1", RoleServer)
	c.Meta.Version = "impostor"
	c.Join = []string{ps[2].Addr()}
	p := start(t, c)
	var taken *NameTakenError
	err := p.Run(t.Context())
	if !errors.As(err, &taken) || !taken.Live || taken.Addr != ps[1].Addr() {
		t.Fatalf("got %v", err)
	}
	if want := "another member named m1 at " + ps[1].Addr() + " is already in the pool"; !strings.Contains(err.Error(), want) {
		t.Errorf("got %q, want %q in it", err, want)
	}
	if _, err := p.Join(t.Context(), ps[1].Addr()); !errors.As(err, &taken) {
		t.Errorf("through the namesake itself: %v", err)
	}
	// The old one is not disturbed, and the newcomer knows nobody.
	for _, q := range ps {
		if m, _ := q.Get("m1"); m.Status != StatusAlive || m.Version != "v1" || m.Addr != old.Addr {
			t.Errorf("%s sees m1 as %+v", q.Name(), m)
		}
	}
	if n := alive(p); n != 1 {
		t.Errorf("the newcomer sees %d members", n)
	}
}

func TestConflictIsTold(t *testing.T) {
	ps := pool(t, 2)
	_, sub := ps[0].Subscribe()
	defer sub.Close()
	p := start(t, config("m1", RoleServer))
	if _, err := p.Join(t.Context(), ps[0].Addr()); err == nil {
		t.Fatal("joined with a name that is taken")
	}
	expect(t, sub, EventConflict, "m1")
}

func key(b byte, n int) string {
	return base64.StdEncoding.EncodeToString([]byte(strings.Repeat(string(rune(b)), n)))
}

func TestWrongKey(t *testing.T) {
	c := config("a", RoleServer)
	c.EncryptionKey = key('a', 32)
	a := start(t, c)
	for name, k := range map[string]string{"same": key('a', 32), "other": key('b', 32), "short": key('a', 16), "none": ""} {
		c := config("b-"+name, RoleWorker)
		c.EncryptionKey = k
		b := start(t, c)
		_, err := b.Join(t.Context(), a.Addr())
		if name == "same" {
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		var mismatch *MismatchError
		if !errors.As(err, &mismatch) || !strings.Contains(err.Error(), "gossip encryption key") {
			t.Errorf("%s: %v", name, err)
		}
	}
	c.Name, c.EncryptionKey = "keyed", key('k', 16)
	keyed, plain := start(t, c), start(t, config("plain", RoleServer))
	var mismatch *MismatchError
	if _, err := keyed.Join(t.Context(), plain.Addr()); !errors.As(err, &mismatch) {
		t.Errorf("a member with a key joined one without: %v", err)
	}
}

func TestOtherCluster(t *testing.T) {
	c := config("a", RoleServer)
	c.Meta.ClusterID = "one"
	a := start(t, c)
	c = config("b", RoleServer)
	c.Meta.ClusterID = "two"
	b := start(t, c)
	var other *OtherClusterError
	if _, err := b.Join(t.Context(), a.Addr()); !errors.As(err, &other) || other.Theirs != "one" || other.Ours != "two" {
		t.Errorf("got %v", err)
	}
	join(t, start(t, config("c", RoleWorker)), a) // belongs nowhere yet
	eventually(t, "a sees c", func() bool { return alive(a) == 2 })
	if alive(b) != 1 {
		t.Errorf("b sees %d", alive(b))
	}
}

func TestUnreachable(t *testing.T) {
	claim, err := ports.Free(1)
	if err != nil {
		t.Fatal(err)
	}
	defer claim.Release()
	closed := claim.Addr(0)
	p := start(t, config("a", RoleServer))
	var un *UnreachableError
	for _, addr := range []string{closed, "127.0.0.1:99999", "no.such.host.invalid"} {
		if _, err := p.Join(t.Context(), addr); !errors.As(err, &un) {
			t.Errorf("%s: %v", addr, err)
		}
	}
	if _, err := p.Join(t.Context(), p.Addr()); !errors.Is(err, ErrNobody) {
		t.Errorf("own address: %v", err)
	}
}

// TestJoinObeysContext dials somebody who never answers.
func TestJoinObeysContext(t *testing.T) {
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer lis.Close()
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		if conn, err := lis.Accept(); err == nil {
			cancel()
			<-t.Context().Done()
			_ = conn.Close()
		}
	}()
	p := start(t, config("a", RoleServer))
	if _, err := p.Join(ctx, lis.Addr().String()); err == nil {
		t.Error("joined")
	}
}

func TestBadConfig(t *testing.T) {
	taken := start(t, config("a", RoleServer))
	for name, change := range map[string]func(*Config){
		"no name":        func(c *Config) { c.Name = "" },
		"no role":        func(c *Config) { c.Meta.Role = "" },
		"key not base64": func(c *Config) { c.EncryptionKey = "###" },
		"key of 5 bytes": func(c *Config) { c.EncryptionKey = key('a', 5) },
		"bad address":    func(c *Config) { c.BindAddr = "no.such.host.invalid" },
		"bad advertise":  func(c *Config) { c.AdvertiseAddr = "127.0.0.1:0" },
		"port in use":    func(c *Config) { c.BindPort = taken.bindPort },
	} {
		c := config("b", RoleServer)
		change(&c)
		if p, err := New(c); err == nil {
			t.Errorf("%s: started", name)
			_ = p.Shutdown()
		}
	}
}

func TestShutdownEndsReaders(t *testing.T) {
	p := start(t, config("a", RoleServer))
	_, sub := p.Subscribe()
	if err := p.Shutdown(); err != nil {
		t.Fatal(err)
	}
	if _, err := sub.Next(t.Context()); !errors.Is(err, ErrClosed) {
		t.Errorf("got %v", err)
	}
	if err := p.Leave(t.Context()); err != nil {
		t.Errorf("leave after shutdown: %v", err)
	}
	if err := p.Advertise(t.Context(), func(*Meta) {}); !errors.Is(err, ErrClosed) {
		t.Errorf("advertise after shutdown: %v", err)
	}
	_, late := p.Subscribe()
	if _, err := late.Next(t.Context()); !errors.Is(err, ErrClosed) {
		t.Errorf("late reader: %v", err)
	}
}

// TestGoodbyeInAnyOrder: memberlist's message may be faster than the goodbye.
func TestGoodbyeInAnyOrder(t *testing.T) {
	p := &Pool{members: map[string]Member{}, subs: map[*Subscription]struct{}{}}
	p.members["m"] = Member{Name: "m", Status: StatusAlive, Meta: Meta{Instance: "1"}}
	node := &memberlist.Node{Name: "m"}
	delegate{p}.NotifyLeave(node)
	if m, _ := p.Get("m"); m.Status != StatusFailed {
		t.Fatalf("silent member is %s", m.Status)
	}
	if p.leaving(intent{"m", "0"}) || !p.leaving(intent{"m", "1"}) || p.leaving(intent{"m", "1"}) {
		t.Error("a goodbye counts once, and only that of the same process")
	}
	if m, _ := p.Get("m"); m.Status != StatusLeft {
		t.Errorf("member is %s after its goodbye", m.Status)
	}
}

// TestGoodbyeByExchange: gossip may miss a member that a full exchange reaches.
func TestGoodbyeByExchange(t *testing.T) {
	mk := func(leaving bool) delegate {
		p := &Pool{members: map[string]Member{}, subs: map[*Subscription]struct{}{}}
		p.members["m"] = Member{Name: "m", Status: StatusFailed, Leaving: leaving, Meta: Meta{Instance: "1"}}
		return delegate{p}
	}
	from, to := mk(true), mk(false)
	to.MergeRemoteState(from.LocalState(false), false)
	if m, _ := to.p.Get("m"); m.Status != StatusLeft {
		t.Errorf("member is %s", m.Status)
	}
	if to = mk(false); to.LocalState(false) != nil {
		t.Error("a goodbye that nobody said")
	}
}

func FuzzDecodeIntents(f *testing.F) {
	f.Add([]byte("\x91\x82\xa1n\xa1a\xa1i\xa1b"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		if known, err := decodeIntents(raw); err == nil && len(known) > len(raw) {
			t.Errorf("%d goodbyes out of %d bytes", len(known), len(raw))
		}
	})
}

// TestClaimedLengths: whatever length a few bytes claim, no room is made for it. msgpack keeps what it has made, and makes more each time.
func TestClaimedLengths(t *testing.T) {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range 100 {
		for _, raw := range []string{"\x82\xc6\xff\xff\xff\xff0", "\x82\xa1x\xc9\xff\x00\x00\x000", "\x82\xdb\xff\xff\xff\xff0", "\xdf\xff\xff\xff\xff", "\xdd\xff\xff\xff\xff\xc6\xff\xff\xff\xff"} {
			if _, err := decodeMeta([]byte(raw)); err == nil {
				t.Fatalf("%q is a member's metadata", raw)
			}
			if _, err := decodeIntent([]byte(raw)); err == nil {
				t.Fatalf("%q is a goodbye", raw)
			}
			if _, err := decodeIntents([]byte(raw)); err == nil {
				t.Fatalf("%q are goodbyes", raw)
			}
		}
	}
	runtime.ReadMemStats(&after)
	if took := after.TotalAlloc - before.TotalAlloc; took > 4<<20 {
		t.Errorf("%d bytes were made room for", took)
	}
}

func FuzzDecodeIntent(f *testing.F) {
	f.Add([]byte("\x82\xa1n\xa1a\xa1i\xa1b"))
	f.Add([]byte("\x82\xc6\xc6\xc6\xc6\xc6\xc6\xa1\x30\x95"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		if in, err := decodeIntent(raw); err == nil && (in.Name == "" || in.Instance == "") {
			t.Errorf("accepted %+v", in)
		}
	})
}

func TestSlowReaderIsResynced(t *testing.T) {
	p := &Pool{members: map[string]Member{}, subs: map[*Subscription]struct{}{}}
	_, sub := p.Subscribe()
	for range maxQueued + 10 {
		p.mu.Lock()
		p.emit(Event{Kind: EventJoin})
		p.mu.Unlock()
	}
	if e, err := sub.Next(t.Context()); err != nil || e.Kind != EventResync {
		t.Fatalf("got %v, %v", e.Kind, err)
	}
	p.mu.Lock()
	p.emit(Event{Kind: EventFail})
	p.mu.Unlock()
	if e, err := sub.Next(t.Context()); err != nil || e.Kind != EventFail {
		t.Fatalf("got %v, %v", e.Kind, err)
	}
	sub.Close()
	if _, err := sub.Next(t.Context()); !errors.Is(err, ErrClosed) {
		t.Fatalf("got %v", err)
	}
}
