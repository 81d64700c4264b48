package raftnode

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/berth-dev/berth/fsm"
)

// TestLinearizable lets clients create, replace, delete and read a few objects
// through all servers, while leaders are cut off, hand over, and crash, and
// asks porcupine whether one order of all operations explains every answer.
func TestLinearizable(t *testing.T) {
	seeds := uint64(20)
	if testing.Short() {
		seeds = 5
	}
	for seed := range seeds {
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
			var history []porcupine.Operation
			dir := t.TempDir()
			synctest.Test(t, func(t *testing.T) { history = runHistory(t, seed, dir) })
			unknowns := 0
			for _, o := range history {
				if o.Output.(answer).unknown {
					unknowns++
				}
			}
			t.Logf("%d operations, %d with an unknown outcome", len(history), unknowns)
			if len(history) < 100 {
				t.Errorf("only %d operations", len(history))
			}
			model := registers.ToModel()
			if got := porcupine.CheckOperationsTimeout(model, history, time.Minute); got != porcupine.Ok {
				t.Errorf("no order explains the answers: %s", got)
			}
		})
	}
}

type operation struct{ kind, key, value string }

type answer struct {
	done    bool   // carried out, not refused
	value   string // of a read; "" if there is none
	unknown bool
}

// registers is the model: a value per key, "" while there is none.
var registers = porcupine.NondeterministicModel{
	Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
		byKey := map[string][]porcupine.Operation{}
		for _, o := range history {
			key := o.Input.(operation).key
			byKey[key] = append(byKey[key], o)
		}
		var out [][]porcupine.Operation
		for _, part := range byKey {
			out = append(out, part)
		}
		return out
	},
	Init: func() []any { return []any{""} },
	Step: func(state, input, output any) []any {
		was, in, out := state.(string), input.(operation), output.(answer)
		next, does := was, false
		switch in.kind {
		case "read":
			if out.value == was {
				return []any{was}
			}
			return nil
		case "create":
			next, does = in.value, was == ""
		case "replace":
			next, does = in.value, was != ""
		case "delete":
			next, does = "", was != ""
		}
		switch {
		case !does:
			next = was
		case out.unknown:
			return []any{was, next}
		}
		if !out.unknown && out.done != does {
			return nil
		}
		return []any{next}
	},
	Equal: func(a, b any) bool { return a == b },
}

const (
	clients          = 6
	opsPerClient     = 40
	keys             = 3
	operationTimeout = 3 * time.Second
)

func runHistory(t *testing.T, seed uint64, dir string) []porcupine.Operation {
	disk := &slowDisk{}
	disk.set(2 * time.Millisecond)
	c := newCluster(t, 3, func(c *Config) {
		onDisk(dir)(c)
		disk.conf(c)
		c.LeaderLeaseTimeout = c.HeartbeatTimeout // the lease alone protects no read
		c.SnapshotInterval, c.SnapshotThreshold, c.TrailingLogs = 200*time.Millisecond, 30, 10
	})
	c.must(namespace())
	h := &historian{c: c, nodes: map[string]*testNode{}}
	h.see()
	var wg sync.WaitGroup
	for client := range clients {
		wg.Go(func() { h.client(client, rand.New(rand.NewPCG(seed, uint64(client)))) })
	}
	stop := make(chan struct{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		h.disturb(rand.New(rand.NewPCG(seed, 1000)), stop)
	}()
	wg.Wait()
	close(stop)
	<-done
	c.heal()
	c.same()
	return h.history
}

type historian struct {
	c     *cluster
	clock atomic.Int64

	mu      sync.Mutex
	history []porcupine.Operation
	nodes   map[string]*testNode // as clients see them
}

// see shows clients the nodes as they are now.
func (h *historian) see() {
	h.mu.Lock()
	defer h.mu.Unlock()
	clear(h.nodes)
	for id, n := range h.c.nodes {
		if !n.stopped.Load() {
			h.nodes[id] = n
		}
	}
}

func (h *historian) node(id string) *testNode {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.nodes[id]
}

func (h *historian) client(client int, r *rand.Rand) {
	for i := range opsPerClient {
		o := operation{
			kind:  []string{"read", "read", "create", "replace", "replace", "delete"}[r.IntN(6)],
			key:   fmt.Sprint("k", r.IntN(keys)),
			value: fmt.Sprintf("%d.%d", client, i),
		}
		called := h.clock.Add(1)
		a, ok := h.do(o, string(rune('a'+r.IntN(3))))
		returned := h.clock.Add(1)
		if !ok {
			continue // nothing was done
		}
		if a.unknown {
			if o.kind == "read" {
				continue
			}
			returned = math.MaxInt64
		}
		h.mu.Lock()
		h.history = append(h.history, porcupine.Operation{ClientId: client, Input: o, Call: called, Output: a, Return: returned})
		h.mu.Unlock()
		<-time.After(time.Duration(r.IntN(20)) * time.Millisecond)
	}
}

func (o operation) proposal() fsm.Proposal {
	switch o.kind {
	case "create":
		return create(o.key, o.value)
	case "replace":
		return put(o.key, o.value)
	}
	return fsm.Proposal{Command: &fsm.DeleteObject{Resource: "configmaps", Namespace: "default", Name: o.key}}
}

// do carries an operation out through one server, and says false if nothing
// was done.
func (h *historian) do(o operation, via string) (answer, bool) {
	ctx, cancel := context.WithTimeout(context.Background(), operationTimeout)
	defer cancel()
	for ctx.Err() == nil {
		here, leader := h.node(via), h.node(via)
		if here == nil {
			return answer{}, false
		}
		if id, _ := here.Leader(); id != "" && id != via {
			leader = h.node(id)
		}
		if leader == nil {
			<-time.After(20 * time.Millisecond)
			continue
		}
		if o.kind == "read" {
			index, err := leader.ReadIndex(ctx)
			if err != nil {
				<-time.After(20 * time.Millisecond)
				continue
			}
			if err := here.WaitApplied(ctx, index); err != nil {
				return answer{unknown: true}, true
			}
			return answer{value: value(here.state, o.key)}, true
		}
		rs, _, err := leader.Propose(ctx, o.proposal())
		switch {
		case err == nil:
			return answer{done: !rs[0].Refused()}, true
		case errors.Is(err, ErrUnknownOutcome):
			return answer{unknown: true}, true
		}
		<-time.After(20 * time.Millisecond)
	}
	return answer{}, false
}

// disturb makes leaders change in every way, one trouble at a time.
func (h *historian) disturb(r *rand.Rand, stop chan struct{}) {
	wait := func(d time.Duration) bool {
		select {
		case <-stop:
			return false
		case <-time.After(d):
			return true
		}
	}
	for wait(time.Duration(50+r.IntN(300)) * time.Millisecond) {
		leader := h.c.leader()
		switch r.IntN(3) {
		case 0:
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			_ = leader.TransferLeadership(ctx, "") // it may fail, that is a trouble too
			cancel()
		case 1:
			h.c.isolate(leader.ID())
			wait(time.Duration(r.IntN(4000)) * time.Millisecond)
			h.c.heal()
		case 2:
			h.c.kill(leader.ID())
			h.see()
			wait(time.Duration(r.IntN(2000)) * time.Millisecond)
			h.c.start(leader.ID())
			h.see()
		}
	}
}
