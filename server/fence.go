package server

import (
	"context"
	"fmt"
	"runtime"

	"github.com/berth-dev/berth/apiserver"
	"github.com/berth-dev/berth/fsm"
)

// controllerRequests is how many requests a controller has under way at a time, for each core. Some ask for five hundred things
// at once; answered all at once, on the leader's own cores, they would keep its heartbeats waiting until it is no leader any
// more. So many keep the cores busy while others wait for the log.
const controllerRequests = 16

// here is the key of a write's seat: as the leader, only this server may carry out what the write proposes.
type here struct{}

// fence lets writes through while a leadership lasts, and while the wall clock that they
// were decided by is right. What is written is proposed by
// this server, in this term, or not at all: so a new leader, which begins when it has applied all that
// the one before it had proposed, never meets a write that was thought of on an older state.
type fence struct {
	leading context.Context
	term    uint64
	astray  func() bool   // then nothing is let through
	places  chan struct{} // one is taken by each write, unless it waits with others for the log
	convoy  *convoy       // by which writes go to the log together; nil: each goes by itself
}

func (s *Server) newFence(leading context.Context, term uint64) *fence {
	return &fence{leading: leading, term: term, astray: s.goesAstray, places: make(chan struct{}, controllerRequests*runtime.GOMAXPROCS(0))}
}

// newConvoyFence is a fence whose writes go to the log together where they are made at the same time.
func (s *Server) newConvoyFence(leading context.Context, term uint64) *fence {
	f := s.newFence(leading, term)
	f.convoy = &convoy{guard: s.guard, enter: func(ps []fsm.Proposal) (outcome, error) {
		if err := f.check(); err != nil {
			return nil, err
		}
		if err := s.checkTerm(term); err != nil {
			return nil, err
		}
		e, err := s.enter(true, ps)
		if err != nil {
			return nil, err
		}
		return func() ([]fsm.Result, error) {
			results, _, err := e.Wait(leading)
			return results, err
		}, nil
	}}
	return f
}

// check says whether the fence lets anything through.
func (f *fence) check() error {
	if err := f.leading.Err(); err != nil {
		return err
	}
	if f.astray() {
		return errAstray
	}
	return nil
}

// checkTerm is an error unless this server leads in a term.
func (s *Server) checkTerm(term uint64) error {
	if l := s.node.Leadership(); !l.Leader || l.Term != term {
		return fmt.Errorf("%w: the leadership of term %d is over", apiserver.ErrNoLeader, term)
	}
	return nil
}

// enter gives the context of a write, once there is a place for it. leave ends it.
func (f *fence) enter(ctx context.Context) (_ context.Context, leave func(), err error) {
	if err := f.check(); err != nil {
		return nil, nil, err
	}
	at := &seat{fence: f}
	ctx, cancel := context.WithCancel(context.WithValue(ctx, here{}, at))
	stop := context.AfterFunc(f.leading, cancel)
	f.convoy.come()
	leave = func() {
		at.free()
		f.convoy.leave()
		stop()
		cancel()
	}
	if !at.take(ctx) {
		err := ctx.Err()
		leave()
		return nil, nil, err
	}
	return ctx, leave, nil
}

// seat is a write's, which proposes one thing at a time.
type seat struct {
	fence *fence
	taken bool // it has a place
}

// take waits for a place; false: the write ends first.
func (at *seat) take(ctx context.Context) bool {
	select {
	case at.fence.places <- struct{}{}:
		at.taken = true
	case <-ctx.Done():
	}
	return at.taken
}

func (at *seat) free() {
	if at.taken {
		<-at.fence.places
		at.taken = false
	}
}

// propose proposes what its write does, by the fence's convoy.
func (at *seat) propose(ctx context.Context, ps []fsm.Proposal) ([]fsm.Result, error) {
	at.free()
	defer at.take(ctx) // what is written is written, though the write ends
	return at.fence.convoy.propose(ctx, ps)
}

// proposeHere proposes what only this server may, in one of its leaderships.
func (s *Server) proposeHere(ctx context.Context, at *seat, ps []fsm.Proposal) ([]fsm.Result, error) {
	if err := s.checkTerm(at.fence.term); err != nil {
		return nil, err
	}
	if at.fence.convoy != nil {
		results, err := at.propose(ctx, ps)
		return results, backendError(err)
	}
	results, _, err := s.proposeEntered(ctx, true, ps)
	return results, backendError(err)
}

// fenced is a write that a fence lets through.
func fenced[T any](ctx context.Context, f *fence, write func(ctx context.Context) (T, error)) (written T, err error) {
	ctx, leave, err := f.enter(ctx)
	if err != nil {
		return written, err
	}
	defer leave()
	return write(ctx)
}
