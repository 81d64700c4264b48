package server

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/guard"
	"github.com/berth-dev/berth/raftnode"
)

const (
	// convoyLen is how many commands go together at most: others begin with them while the rest is got ready.
	convoyLen = 256
	// convoyWait is how long one of them waits for the others to come, some of which may have to ask somebody first.
	convoyWait = 50 * time.Millisecond
)

// outcome waits for what becomes of proposals.
type outcome func() ([]fsm.Result, error)

// convoy lets what writes propose go to the log together, if they are made at the same time: a write waits until the others that have begun
// have something to propose, too, or have ended. So the hundreds of pods of a Job are a few entries, which costs all servers much less than
// hundreds, and are scheduled, told of and reported in as few pieces. A write that is alone waits for nobody.
//
// What becomes of each is its own: of those that go together one may be refused, and the others are not.
type convoy struct {
	// enter proposes; an error is of all, and nothing was proposed.
	enter func(ps []fsm.Proposal) (outcome, error)
	guard guard.Func

	mu       sync.Mutex
	coming   int      // writes that have begun, and do not wait here
	waiting  []*rider // in the order in which they came
	commands int      // of those who wait
	late     *time.Timer
}

// rider is what one write proposes.
type rider struct {
	ps      []fsm.Proposal
	done    chan struct{}
	results []fsm.Result // from here on, when done is closed
	err     error
}

// come: a write begins, which may propose something.
func (c *convoy) come() {
	if c == nil {
		return
	}
	c.mu.Lock()
	c.coming++
	c.mu.Unlock()
}

// leave: it proposes nothing any more.
func (c *convoy) leave() {
	if c == nil {
		return
	}
	c.mu.Lock()
	c.coming--
	ready := c.take(false)
	c.mu.Unlock()
	c.send(ready)
}

// propose is for a write that has come. Its errors are those of raftnode.Future.Wait, or enter's.
func (c *convoy) propose(ctx context.Context, ps []fsm.Proposal) ([]fsm.Result, error) {
	r := &rider{ps: ps, done: make(chan struct{})}
	c.mu.Lock()
	c.coming--
	c.waiting = append(c.waiting, r)
	c.commands += len(ps)
	ready := c.take(false)
	if ready == nil && len(c.waiting) == 1 {
		c.late = time.AfterFunc(convoyWait, c.goOn)
	}
	c.mu.Unlock()
	defer c.come()
	c.send(ready)
	select {
	case <-r.done:
		return r.results, r.err
	case <-ctx.Done():
		return nil, c.withdraw(ctx, r)
	}
}

// take gives those who go now, if it is time for it; it is called with mu held.
func (c *convoy) take(late bool) []*rider {
	if len(c.waiting) == 0 || c.coming > 0 && c.commands < convoyLen && !late {
		return nil
	}
	ready := c.waiting
	c.waiting, c.commands = nil, 0
	if c.late != nil {
		c.late.Stop()
		c.late = nil
	}
	return ready
}

// goOn sends those who have waited for long enough.
func (c *convoy) goOn() {
	c.mu.Lock()
	ready := c.take(true)
	c.mu.Unlock()
	c.send(ready)
}

// errConvoyBroke: a mistake of Berth's.
var errConvoyBroke = fmt.Errorf("%w: to propose it broke", raftnode.ErrUnknownOutcome)

// send proposes what they propose, and tells each what became of it.
func (c *convoy) send(all []*rider) {
	if len(all) == 0 {
		return
	}
	var ps []fsm.Proposal
	for _, r := range all {
		ps = append(ps, r.ps...)
	}
	var wait outcome
	err := errConvoyBroke
	c.guard("convoy", func() { wait, err = c.enter(ps) })
	switch {
	case err == nil:
		go func() { c.guard("outcome", func() { settle(all, wait) }) }()
	case len(all) == 1 || errors.Is(err, raftnode.ErrUnknownOutcome):
		tell(all, nil, err)
	default: // it may be because of one of them, or because they are many
		for i := range all {
			c.send(all[i : i+1])
		}
	}
}

// settle waits for what becomes of them, and tells them also if that breaks.
func settle(all []*rider, wait outcome) {
	results, err := []fsm.Result(nil), errConvoyBroke
	defer func() { tell(all, results, err) }()
	results, err = wait()
}

// tell says to each what became of it.
func tell(all []*rider, results []fsm.Result, err error) {
	for _, r := range all {
		if r.err = err; err == nil {
			r.results, results = results[:len(r.ps):len(r.ps)], results[len(r.ps):]
		}
		close(r.done)
	}
}

// withdraw takes a rider back that waits no longer, and says what becomes of it.
func (c *convoy) withdraw(ctx context.Context, r *rider) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	i := slices.Index(c.waiting, r)
	if i < 0 {
		return fmt.Errorf("%w: %w", raftnode.ErrUnknownOutcome, ctx.Err())
	}
	c.waiting = slices.Delete(c.waiting, i, i+1)
	c.commands -= len(r.ps)
	return fmt.Errorf("%w: %w", raftnode.ErrNotProposed, ctx.Err())
}
