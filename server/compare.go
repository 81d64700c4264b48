package server

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/berth-dev/berth/api/operator"
	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/guard"
	"github.com/berth-dev/berth/raftnode"
	"github.com/berth-dev/berth/rpc"
	"github.com/berth-dev/berth/store"
)

// The leader lets every server keep its state at one index, asks each for its
// digest, and tells those that differ from the majority of the voters. Nobody
// waits for it: a digest is taken of a view, beside Apply, and costs each server a
// hundredth of its time at most.

const (
	// compareEntries and compareEvery are when the states are compared again:
	// after so many entries, and at the latest after so long if there was one.
	compareEntries = 10_000
	compareEvery   = 10 * time.Minute
	// compareLook is how often the leader looks whether it is time.
	compareLook = time.Second
	// compareAgain is when they are compared again, entries or none, where it was found that they differ and not
	// who is right: whoever mends it wants to see that it is mended.
	compareAgain = time.Minute
	// compareShare is how many times longer than a digest takes is waited until
	// the next.
	compareShare = 100
	// digestTimeout bounds how long one server is waited for: it may have to
	// catch up first.
	digestTimeout = 2 * time.Minute
	// compareTimeout bounds one comparison.
	compareTimeout = 5 * time.Minute
)

// comparison is what the servers have said of their states at one index.
type comparison struct {
	index    uint64
	revision int64
	servers  []raftnode.Server
	// digests by server; missing says why there is none.
	digests map[string]store.Digests
	missing map[string]error
}

// compareLoop compares the servers' states while this one leads.
func (s *Server) compareLoop(ctx context.Context) {
	defer s.metrics.differing.Set(0) // the next leader's is what counts
	equalAt := map[string]uint64{}
	rest, at, last := time.Duration(0), time.Now(), s.node.AppliedIndex()
	s.keepFound()
	guard.Every(ctx, compareLook, func(time.Time) {
		waited, entries := time.Since(at), s.node.AppliedIndex()-last
		if waited < rest || !compareDue(waited, entries, s.unsettled() != "") {
			return
		}
		start := time.Now()
		if err := s.compare(ctx, equalAt); err != nil && ctx.Err() == nil {
			s.log.Error("the servers' states could not be compared", "error", err)
		}
		at, last = time.Now(), s.node.AppliedIndex()
		rest = compareShare * at.Sub(start)
	})
}

// compareDue: it is time to compare, so long and so many entries after the last time.
func compareDue(waited time.Duration, entries uint64, unsettled bool) bool {
	return entries >= compareEntries || entries > 0 && waited >= compareEvery || unsettled && waited >= compareAgain
}

// compare compares the states of all servers at one index, on the leader, and
// sees to it that one that differs serves no more; where nobody can say who is
// wrong, that everybody is told. equalAt remembers, by server, where it had the
// majority's state.
func (s *Server) compare(ctx context.Context, equalAt map[string]uint64) error {
	ctx, cancel := context.WithTimeout(ctx, compareTimeout)
	defer cancel()
	c, err := s.askDigests(ctx)
	if err != nil {
		return err
	}
	right, known := c.majority()
	if !known {
		s.notSettled(c)
		return nil
	}
	s.outcome.Store(&compared{index: c.index})
	differing := 0
	for _, name := range slices.Sorted(maps.Keys(c.digests)) {
		d := c.digests[name]
		if d.Whole == right.Whole {
			equalAt[name] = c.index
			continue
		}
		differing++
		s.tellDifference(ctx, name, &rpc.DifferenceRequest{
			Index: c.index, EqualAt: equalAt[name], Digest: right.Whole, Tables: right.Differing(d),
		})
	}
	s.metrics.differing.Set(float64(differing))
	return nil
}

// askDigests lets every server keep its state at one index and asks all of them
// at once.
func (s *Server) askDigests(ctx context.Context) (*comparison, error) {
	result, index, err := s.checkpoint(ctx)
	if err != nil {
		return nil, err
	}
	c := &comparison{
		index: index, revision: result.Revision, servers: s.node.Configuration(),
		digests: map[string]store.Digests{}, missing: map[string]error{},
	}
	var mu sync.Mutex
	var asking guard.Group
	for _, m := range c.servers {
		asking.Go(func() {
			d, err := s.digestsOf(ctx, m.ID, index)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				c.missing[m.ID] = err
				return
			}
			c.digests[m.ID] = d
		})
	}
	asking.Wait()
	return c, nil
}

func (s *Server) digestsOf(ctx context.Context, name string, index uint64) (store.Digests, error) {
	if name == s.config.Name {
		return s.digests.at(s.state, index)
	}
	addr, ok := s.serverAddr(name)
	if !ok {
		return store.Digests{}, errors.New("the server's address is not known")
	}
	ctx, cancel := context.WithTimeout(ctx, digestTimeout)
	defer cancel()
	d, err := s.peers.Digest(ctx, addr, index)
	if err != nil {
		return store.Digests{}, err
	}
	if d.Format != store.DigestFormat {
		return store.Digests{}, fmt.Errorf("it takes digests in another way (format %d, here %d): upgrade all servers first", d.Format, store.DigestFormat)
	}
	return store.Digests{Whole: d.Digest, Tables: d.Tables}, nil
}

// digestCache takes the digests of this server's checkpoints, each once and one
// at a time: it takes a processor for a while.
type digestCache struct {
	mu    sync.Mutex
	taken []takenDigests // the newest last
}

type takenDigests struct {
	index uint64
	is    store.Digests
}

// keptDigests is how many are kept: several may compare at once.
const keptDigests = 8

func (c *digestCache) at(state *fsm.State, index uint64) (store.Digests, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, t := range c.taken {
		if t.index == index {
			return t.is, nil
		}
	}
	view, ok := state.Checkpoint(index)
	if !ok {
		return store.Digests{}, fmt.Errorf("%w: no checkpoint of index %d is kept here", rpc.ErrInvalid, index)
	}
	t := takenDigests{index, view.Digests()}
	state.ForgetCheckpoint(index)
	c.taken = append(c.taken, t)
	c.taken = c.taken[max(0, len(c.taken)-keptDigests):]
	return t.is, nil
}

// majority is the state that more than half of the voters have.
func (c *comparison) majority() (store.Digests, bool) {
	voters, have := 0, map[string]int{}
	for _, m := range c.servers {
		if m.NonVoter {
			continue
		}
		voters++
		if d, ok := c.digests[m.ID]; ok {
			have[d.Whole]++
		}
	}
	for _, d := range c.digests {
		if have[d.Whole] > voters/2 {
			return d, true
		}
	}
	return store.Digests{}, false
}

// agree: all who have answered have the same state.
func (c *comparison) agree() bool {
	for _, one := range c.digests {
		for _, other := range c.digests {
			if one.Whole != other.Whole {
				return false
			}
		}
	}
	return true
}

func (c *comparison) String() string {
	var out []string
	for _, m := range c.servers {
		if d, ok := c.digests[m.ID]; ok {
			out = append(out, fmt.Sprintf("%s has %.12s", m.ID, d.Whole))
		} else {
			out = append(out, fmt.Sprintf("%s does not say (%v)", m.ID, c.missing[m.ID]))
		}
	}
	return strings.Join(out, ", ")
}

// Verify compares the states of all servers at one index.
func (s *Server) Verify(ctx context.Context) (*operator.VerifyResult, error) {
	c, err := s.askDigests(ctx)
	if err != nil {
		return nil, err
	}
	out := &operator.VerifyResult{Index: c.index, Revision: c.revision, Equal: len(c.missing) == 0 && c.agree(), Message: c.unsettled()}
	for _, m := range c.servers {
		one := operator.VerifyServer{Name: m.ID, Digest: c.digests[m.ID].Whole}
		if err := c.missing[m.ID]; err != nil {
			one.Error = err.Error()
		}
		out.Servers = append(out.Servers, one)
	}
	return out, nil
}

// tellDifference lets a server know that it differs.
func (s *Server) tellDifference(ctx context.Context, name string, d *rpc.DifferenceRequest) {
	where := raftnode.Difference{Index: d.Index, EqualAt: d.EqualAt, Tables: d.Tables}
	s.log.Error("a server's state differs from that of the majority; it is told to stop", "which", name, "difference", where.String())
	if name == s.config.Name {
		s.node.Condemn(where)
		return
	}
	addr, ok := s.serverAddr(name)
	if !ok {
		return // it is asked again next time
	}
	if err := s.peers.Differs(ctx, addr, d); err != nil {
		s.log.Warn("a server that differs could not be told", "which", name, "error", err)
	}
}

// Differs implements rpc.ServerHandler: the leader says that this server differs.
// It is believed if this server has another digest indeed.
func (h handler) Differs(_ context.Context, r *rpc.DifferenceRequest) (*rpc.DifferenceResponse, error) {
	mine, err := h.digests.at(h.state, r.Index)
	if err != nil {
		return nil, err
	}
	if mine.Whole == r.Digest {
		return nil, fmt.Errorf("%w: server %s does not differ at log entry %d", rpc.ErrInvalid, h.config.Name, r.Index)
	}
	h.node.Condemn(raftnode.Difference{Index: r.Index, EqualAt: r.EqualAt, Tables: r.Tables})
	return &rpc.DifferenceResponse{}, nil
}
