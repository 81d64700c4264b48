package peers_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/berth-dev/berth/peers"
)

// world is a cluster that server a looks at.
type world struct {
	mu            sync.Mutex
	configuration []peers.Server
	at            map[string]peers.Answer // by RPC address
	hints         map[string][]string
	introduced    []string
	began         time.Time
	wall          time.Duration // by which server a's wall clock was set
	wait          func()        // what an answer waits for
}

func newWorld(ids ...string) *world {
	w := &world{at: map[string]peers.Answer{}, hints: map[string][]string{}, began: time.Now()}
	for _, id := range ids {
		w.configuration = append(w.configuration, peers.Server{ID: id, RaftAddr: "raft-" + id, Voter: true})
		w.hints[id] = []string{"rpc-" + id}
		w.say("rpc-"+id, peers.Answer{Server: id, Cluster: "c", Behaviour: 3})
	}
	return w
}

func (w *world) say(addr string, a peers.Answer) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.at[addr] = a
}

func (w *world) silence(addr string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.at, addr)
}

var errNobody = errors.New("connection refused")

func (w *world) room() *peers.Room {
	return peers.NewRoom(peers.Config{
		Self:          "a",
		Configuration: func() []peers.Server { return w.configuration },
		Describe:      func() peers.Answer { return peers.Answer{Server: "a", Cluster: "c", Behaviour: 3, WallUnixNano: 1} },
		Ask: func(_ context.Context, addr string) (peers.Answer, error) {
			if w.wait != nil {
				w.wait()
			}
			w.mu.Lock()
			defer w.mu.Unlock()
			a, ok := w.at[addr]
			if !ok {
				return a, fmt.Errorf("%s: %w", addr, errNobody)
			}
			return a, nil
		},
		Addresses: func(id string) []string { return w.hints[id] },
		Introduce: func(id, raftAddr string) { w.introduced = append(w.introduced, id+" "+raftAddr) },
		Now:       func() (int64, time.Duration) { return int64(w.wall + time.Since(w.began)), time.Since(w.began) },
	})
}

func TestPeersAreTheConfigurationAndWhatEachSaid(t *testing.T) {
	w := newWorld("a", "b", "c")
	w.silence("rpc-c")
	r := w.room()
	r.Refresh(t.Context())
	all := r.Peers()
	if len(all) != 3 || !all[0].Self || !all[0].Answers() || !all[1].Answers() || all[1].Answer.Behaviour != 3 {
		t.Fatalf("the peers are %+v", all)
	}
	if c := all[2]; c.Answers() || c.Answer != nil || !errors.Is(c.Error, errNobody) {
		t.Errorf("one that does not answer is %+v", c)
	}
	if !slices.Equal(w.introduced, []string{"c raft-c"}) {
		t.Errorf("who does not answer is asked where it is: %v", w.introduced)
	}
	// It answered once, and then no more: what it said is kept, and told as old.
	w.silence("rpc-b")
	r.Refresh(t.Context())
	if b, ok := r.Peer("b"); !ok || b.Answers() || b.Answer == nil || b.Failures != 1 {
		t.Errorf("one that has fallen silent is %+v", b)
	}
	// One that is of the configuration no longer is forgotten.
	w.configuration = w.configuration[:1]
	r.Refresh(t.Context())
	if _, ok := r.Peer("b"); ok || r.Address("b") != "rpc-b" {
		t.Error("a removed server is known")
	}
}

// Gossip brings addresses, in any number and of anybody: only who answers as the
// server that was asked for counts.
func TestAHintIsNotBelieved(t *testing.T) {
	w := newWorld("a", "b")
	w.say("evil", peers.Answer{Server: "mallory", Cluster: "c"})
	w.say("foreign", peers.Answer{Server: "b", Cluster: "other"})
	w.hints["b"] = []string{"", "closed", "evil", "foreign", "rpc-b"}
	r := w.room()
	r.Refresh(t.Context())
	if b, _ := r.Peer("b"); !b.Answers() || b.Answer.Server != "b" {
		t.Fatalf("b is %+v", b)
	}
	w.hints["b"] = []string{"evil"}
	if got := r.Address("b"); got != "rpc-b" {
		t.Errorf("a server that answers is looked for at %s", got)
	}
	r.Refresh(t.Context())
	if b, _ := r.Peer("b"); !b.Answers() {
		t.Errorf("it was forgotten where b answers: %+v", b)
	}
	// A member of gossip that is in no configuration is nobody.
	w.hints["mallory"] = []string{"evil"}
	r.Refresh(t.Context())
	if len(r.Peers()) != 2 {
		t.Errorf("the peers are %+v", r.Peers())
	}
}

func TestLowestBehaviour(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld("a", "b", "c")
		w.silence("rpc-c")
		r := w.room()
		if v, complete := r.LowestBehaviour(); v != 0 || complete {
			t.Errorf("before anybody was asked: %d %v", v, complete)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { r.Run(ctx) })
		defer running.Wait()
		defer cancel()
		for _, step := range []struct {
			change   func()
			want     int
			complete bool
			state    int64 // the least that one takes
		}{
			{func() {}, 0, false, 0}, // c has never said
			{func() { w.say("rpc-c", peers.Answer{Server: "c", Behaviour: 2, MaxState: 5}) }, 2, true, 5},
			{func() { w.silence("rpc-c") }, 2, true, 5}, // it may come back
			{func() { w.say("rpc-c", peers.Answer{Server: "c", Behaviour: 4}) }, 3, true, 0},
			{func() {
				w.say("rpc-b", peers.Answer{Server: "b", Behaviour: 3, MaxState: 7})
				w.say("rpc-c", peers.Answer{Server: "c", Behaviour: 4, MaxState: 9})
			}, 3, true, 7},
		} {
			step.change()
			time.Sleep(peers.DefaultInterval)
			synctest.Wait()
			if v, complete := r.LowestBehaviour(); v != step.want || complete != step.complete {
				t.Errorf("the lowest is %d (complete: %v), want %d (%v)", v, complete, step.want, step.complete)
			}
			if least := r.LeastState(); least != step.state {
				t.Errorf("the least state is %d, want %d", least, step.state)
			}
		}
	})
}

func TestClocks(t *testing.T) {
	for _, tt := range []struct {
		name    string
		offsets map[string]time.Duration // of those that answer
		day     time.Duration
		known   bool
		astray  time.Duration
	}{
		{"alone of three", nil, 0, false, 0},
		{"two of three, the earlier", map[string]time.Duration{"b": time.Hour}, 0, true, 0},
		{"two of three, the earlier is the other", map[string]time.Duration{"b": -time.Hour}, -time.Hour, true, 0},
		{"one is ahead", map[string]time.Duration{"b": time.Hour, "c": time.Second}, time.Second, true, 0},
		{"this one is behind", map[string]time.Duration{"b": time.Hour, "c": 2 * time.Hour}, time.Hour, true, time.Hour},
		{"this one is ahead", map[string]time.Duration{"b": -time.Hour, "c": -2 * time.Hour}, -time.Hour, true, -time.Hour},
		{"nobody agrees", map[string]time.Duration{"b": -time.Hour, "c": time.Hour}, 0, true, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld("a", "b", "c")
				for _, id := range []string{"b", "c"} {
					w.silence("rpc-" + id)
				}
				for id, offset := range tt.offsets {
					w.say("rpc-"+id, peers.Answer{Server: id, WallUnixNano: int64(offset)})
				}
				r := w.room()
				r.Refresh(t.Context())
				if day, known := r.TimeOfDay(); day != tt.day || known != tt.known {
					t.Errorf("the time of day is off by %s (%v), want %s (%v)", day, known, tt.day, tt.known)
				}
				if by, astray := r.Astray(30 * time.Second); by != tt.astray || astray != (tt.astray != 0) {
					t.Errorf("astray by %s (%v), want %s", by, astray, tt.astray)
				}
				time.Sleep(time.Minute)
				if _, known := r.TimeOfDay(); known {
					t.Error("what was told a minute ago counts")
				}
			})
		})
	}
}

// What the others' clocks showed is compared with what this server's shows now: one
// that is set is astray at once, and is not taken for the time of day meanwhile.
func TestAClockIsComparedAfterItWasSet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld("a", "b", "c")
		for _, id := range []string{"b", "c"} {
			w.say("rpc-"+id, peers.Answer{Server: id, WallUnixNano: int64(time.Second)})
		}
		r := w.room()
		r.Refresh(t.Context())
		before, known := r.Day()
		if !known || before != int64(time.Second) {
			t.Fatalf("the time of day is %s (%v)", time.Duration(before), known)
		}
		w.wall = time.Hour
		if day, known := r.Day(); !known || day != before {
			t.Errorf("the time of day went with this server's wall clock: by %s (%v)", time.Duration(day-before), known)
		}
		want := time.Second - time.Hour
		if by, known := r.TimeOfDay(); !known || by != want {
			t.Errorf("the time of day is off by %s (%v), want %s", by, known, want)
		}
		if by, astray := r.Astray(30 * time.Second); !astray || by != want {
			t.Errorf("astray by %s (%v), want %s", by, astray, want)
		}
		w.wall = 0
		if by, astray := r.Astray(30 * time.Second); astray {
			t.Errorf("put right, it is astray by %s", by)
		}
	})
}

// An answer that was long in coming tells nothing of a clock, and so makes no
// majority of those that were compared.
func TestASlowAnswerComparesNoClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld("a", "b", "c")
		w.silence("rpc-c")
		w.say("rpc-b", peers.Answer{Server: "b", WallUnixNano: 1})
		w.wait = func() { time.Sleep(3 * time.Second / 2) }
		r := w.room()
		r.Refresh(t.Context())
		if day, known := r.TimeOfDay(); known {
			t.Errorf("the time of day is off by %s", day)
		}
		w.wait = nil
		r.Refresh(t.Context())
		if _, known := r.TimeOfDay(); !known {
			t.Error("nobody was compared")
		}
	})
}

// The state's time is that of the other server that leads. Where none does, it is the
// latest of those that have lived with it; and who says nothing is known only when
// everybody was asked.
func TestCounsel(t *testing.T) {
	says := func(id string, state time.Duration) peers.Answer {
		return peers.Answer{Server: id, WallUnixNano: 1, StateUnixNano: int64(state)}
	}
	for _, tt := range []struct {
		name     string
		answers  []peers.Answer
		leader   string
		state    time.Duration
		known    bool
		complete bool
	}{
		{"nobody was asked", nil, "", 0, false, false},
		{"one that has not lived with it", []peers.Answer{says("b", 0)}, "", 0, false, true},
		{"one that has", []peers.Answer{says("b", time.Hour)}, "", time.Hour, true, true},
		{"the latest", []peers.Answer{says("b", time.Hour), says("c", 2*time.Hour)}, "", 2 * time.Hour, true, true},
		{"the latest, first", []peers.Answer{says("b", 2*time.Hour), says("c", time.Hour)}, "", 2 * time.Hour, true, true},
		{"the leader's", []peers.Answer{says("b", 2*time.Hour), says("c", time.Hour)}, "c", time.Hour, true, true},
		{"the leader's, first", []peers.Answer{says("b", time.Hour), says("c", 2*time.Hour)}, "b", time.Hour, true, true},
		{"the leader does not know yet", []peers.Answer{says("b", 0), says("c", time.Hour)}, "b", time.Hour, true, true},
		{"this one leads", []peers.Answer{says("b", time.Hour), says("c", 2*time.Hour)}, "a", 2 * time.Hour, true, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld("a", "b", "c")
				w.silence("rpc-b")
				w.silence("rpc-c")
				for _, a := range tt.answers {
					w.say("rpc-"+a.Server, a)
				}
				for i := range w.configuration {
					w.configuration[i].Leader = w.configuration[i].ID == tt.leader
				}
				r := w.room()
				if len(tt.answers) > 0 {
					r.Refresh(t.Context())
				}
				time.Sleep(time.Second)
				c := r.Counsel()
				if c.StateKnown != tt.known || c.State != int64(tt.state) || c.Complete != tt.complete {
					t.Errorf("it is %+v", c)
				}
			})
		})
	}
}

// As long as a majority's clocks are within a range, so is what is taken for the
// time of day, or before it.
func TestAMinorityMovesNoClock(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.SampledFrom([]int{1, 3, 5, 7}).Draw(t, "voters")
		ids := []string{"a", "b", "c", "d", "e", "f", "g"}[:n]
		w := newWorld(ids...)
		wrong := rapid.IntRange(0, (n-1)/2).Draw(t, "wrong")
		for i, id := range ids[1:] {
			offset := rapid.Int64Range(0, 1000).Draw(t, "right")
			if i < wrong {
				offset = rapid.Int64Range(-1e18, 1e18).Draw(t, "wrong")
			}
			w.say("rpc-"+id, peers.Answer{Server: id, WallUnixNano: offset + 1})
		}
		r := w.room()
		r.Refresh(context.Background())
		if day, known := r.TimeOfDay(); !known || day < -time.Second || day > time.Second {
			t.Fatalf("%d of %d moved the time of day by %s", wrong, n, day)
		}
		if by, astray := r.Astray(time.Minute); astray {
			t.Fatalf("%d of %d sent this server away: %s", wrong, n, by)
		}
	})
}
