package cluster

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"testing"

	"github.com/hashicorp/memberlist"
	"pgregory.net/rapid"
)

func founder(name string, expect int, set string) Member {
	return Member{Name: name, Status: StatusAlive, Meta: Meta{
		Role: RoleServer, RaftID: "id-" + name, RaftAddr: name + ":1", BootstrapExpect: expect, BootstrapSet: set,
	}}
}

func TestDecideBootstrap(t *testing.T) {
	abc, set := makeSet([]Member{founder("a", 3, ""), founder("b", 3, ""), founder("c", 3, "")})
	worker := Member{Name: "w", Status: StatusAlive, Meta: Meta{Role: RoleWorker}}
	dead := founder("z", 3, "")
	dead.Status = StatusFailed
	old := founder("old", 3, "")
	old.Bootstrapped = true
	for name, tc := range map[string]struct {
		members []Member
		want    Decision
		fails   bool
	}{
		"too few":          {[]Member{founder("a", 3, ""), founder("b", 3, ""), worker, dead}, Decision{}, false},
		"enough":           {[]Member{founder("c", 3, ""), founder("a", 3, ""), founder("b", 3, set), worker}, Decision{BootstrapPromise, set, abc}, false},
		"one has promised": {[]Member{founder("a", 3, set), founder("b", 3, ""), founder("c", 3, "")}, Decision{}, false},
		"all have":         {[]Member{founder("a", 3, set), founder("b", 3, set), founder("c", 3, set)}, Decision{BootstrapFound, set, abc}, false},
		"a late fourth":    {[]Member{founder("a", 3, set), founder("b", 3, set), founder("c", 3, set), founder("d", 3, "")}, Decision{BootstrapFound, set, abc}, false},
		"another promise":  {[]Member{founder("a", 3, set), founder("b", 3, set), founder("c", 3, "x"), founder("d", 3, "x")}, Decision{}, true},
		"too many":         {[]Member{founder("a", 3, ""), founder("b", 3, ""), founder("c", 3, ""), founder("d", 3, "")}, Decision{}, true},
		"expects differ":   {[]Member{founder("a", 3, ""), founder("b", 5, "")}, Decision{}, true},
		"not there":        {[]Member{founder("b", 3, "")}, Decision{}, true},
		"exists":           {[]Member{founder("a", 3, ""), old}, Decision{Step: BootstrapJoin}, false},
		"expects nothing":  {[]Member{founder("a", 0, ""), founder("b", 3, "")}, Decision{Step: BootstrapJoin}, false},
		"no raft address": {[]Member{founder("a", 2, ""), {Name: "b", Status: StatusAlive,
			Meta: Meta{Role: RoleServer, BootstrapExpect: 2}}}, Decision{}, true},
	} {
		got, err := DecideBootstrap("a", tc.members)
		if tc.fails != errors.Is(err, ErrBootstrap) || !reflect.DeepEqual(got, tc.want) {
			t.Errorf("%s: got %+v, %v", name, got, err)
		}
	}
}

// TestNeverTwoFoundingSets lets servers see arbitrary parts of the pool, in any
// order: sets that are founded never share a server without being the same.
func TestNeverTwoFoundingSets(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 6).Draw(t, "servers")
		expect := rapid.IntRange(1, 4).Draw(t, "expect")
		truth := make([]Member, n)
		for i := range truth {
			truth[i] = founder(fmt.Sprint("s", i), expect, "")
		}
		founded := map[string][]Peer{}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			i := rapid.IntRange(0, n-1).Draw(t, "who")
			seen := rapid.SliceOfN(rapid.Bool(), n, n).Draw(t, "seen")
			stale := rapid.SliceOfN(rapid.Bool(), n, n).Draw(t, "stale")
			var view []Member
			for j, m := range truth {
				if j != i && stale[j] {
					m.BootstrapSet = ""
				}
				if j == i || seen[j] {
					view = append(view, m)
				}
			}
			d, err := DecideBootstrap(truth[i].Name, view)
			if err != nil {
				continue
			}
			switch d.Step {
			case BootstrapPromise:
				truth[i].BootstrapSet = d.Set
			case BootstrapFound:
				founded[d.Set] = d.Peers
			}
		}
		owner := map[string]string{}
		for set, peers := range founded {
			if len(peers) != expect {
				t.Fatalf("founded with %d of %d", len(peers), expect)
			}
			for _, p := range peers {
				if o, ok := owner[p.Name]; ok && o != set {
					t.Fatalf("%s is in two founding sets", p.Name)
				}
				owner[p.Name] = set
			}
		}
	})
}

// believe finds every server where it says that it is.
func believe(Member) error { return nil }

// foundThree starts three founders whose gossip is tuned so, and fails unless all of
// them come to the same set of three. It returns whom the others joined.
func foundThree(t *testing.T, tune func(*memberlist.Config)) (first *Pool) {
	t.Helper()
	type result struct {
		peers []Peer
		err   error
	}
	results := make(chan result, 3)
	for i := range 3 {
		c := config(fmt.Sprintf("m%d", i), RoleServer)
		c.Meta.BootstrapExpect, c.tune = 3, tune
		if first != nil {
			c.Join = []string{first.Addr()}
		}
		p := start(t, c)
		if first == nil {
			first = p
		}
		run(t, p)
		go func() {
			peers, err := p.Bootstrap(t.Context(), believe)
			results <- result{peers, err}
		}()
	}
	var want []Peer
	for range 3 {
		r := <-results
		if r.err != nil {
			t.Fatal(r.err)
		}
		if want == nil {
			want = r.peers
		}
		if len(r.peers) != 3 || !reflect.DeepEqual(r.peers, want) {
			t.Errorf("got %v, want %v", r.peers, want)
		}
	}
	return first
}

func TestServersAgreeOnBootstrap(t *testing.T) {
	first := foundThree(t, quick)
	if err := first.Advertise(t.Context(), func(m *Meta) { m.Bootstrapped = true }); err != nil {
		t.Fatal(err)
	}
	c := config("late", RoleServer)
	c.Meta.BootstrapExpect, c.Join = 3, []string{first.Addr()}
	late := start(t, c)
	run(t, late)
	if peers, err := late.Bootstrap(t.Context(), believe); err != nil || peers != nil {
		t.Errorf("late server: %v, %v", peers, err)
	}
}

// Founders agree although no rumour of any of them comes through.
func TestFoundersExchangeWhatTheyKnow(t *testing.T) {
	foundThree(t, func(mc *memberlist.Config) {
		quick(mc)
		mc.GossipInterval, mc.PushPullInterval, mc.ProbeInterval = 0, 0, 0
	})
}

func TestBootstrapObeysContext(t *testing.T) {
	c := config("a", RoleServer)
	c.Meta.BootstrapExpect = 2
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := start(t, c).Bootstrap(ctx, believe); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

func FuzzDecodeMeta(f *testing.F) {
	raw, err := encodeMeta(founder("a", 3, "set").Meta)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(raw)
	f.Add([]byte{0x81, 0xa1, 'r'})
	f.Add([]byte("\x85\xa10\xc9\xff\x00\x00\x000"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		m, err := decodeMeta(raw)
		if err != nil {
			return
		}
		again, err := encodeMeta(m)
		if err != nil {
			return // strings shortened by their encoding may grow: refused when sent
		}
		if back, err := decodeMeta(again); err != nil || back != m {
			t.Errorf("%+v became %+v, %v", m, back, err)
		}
		_ = delegate{&Pool{}}.NotifyAlive(&memberlist.Node{Name: "x", Meta: raw})
	})
}
