package server

import (
	"context"
	"errors"
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

// errRestored: what is known is of a state that is gone.
var errRestored = errors.New("the state was restored from a snapshot")

// reign is what controllers decide in: a leadership, and what the state is about meanwhile.
type reign struct {
	lasting context.Context
	end     context.CancelCauseFunc // whoever is the first to notice that it is over
	term    uint64
	seen    int64 // a revision that whoever decides has seen
}

// begin begins one, which the caller has to end. What is decided in it has to be read later than this.
func (s *Server) begin(ctx context.Context) reign {
	lasting, end := context.WithCancelCause(ctx)
	return reign{lasting, end, s.node.Leadership().Term, s.state.View().Revision()}
}

// decided makes proposals of what was decided by a revision of the state: once that was replaced they are refused.
func (s *Server) decided(seen int64, commands ...fsm.Command) []fsm.Proposal {
	return s.decidedBy(seen, own(commands))
}

// own are proposals of Berth itself.
func own(commands []fsm.Command) []fsm.Proposal {
	ps := make([]fsm.Proposal, len(commands))
	for i, c := range commands {
		ps[i] = fsm.Proposal{User: systemUser, Groups: systemGroups, Command: c}
	}
	return ps
}

// decidedBy says of proposals by which revision they were decided, as soon as all servers understand that.
func (s *Server) decidedBy(seen int64, ps []fsm.Proposal) []fsm.Proposal {
	if s.state.View().Version() >= fsm.SinceSeen {
		for i := range ps {
			ps[i].Seen = seen
		}
	}
	return ps
}

// fence lets writes through while a leadership lasts, and while the wall clock that they
// were decided by is right. What is written is proposed by
// this server, in this term, or not at all: so a new leader, which begins when it has applied all that
// the one before it had proposed, never meets a write that was thought of on an older state. Nor does a state that was
// restored from a snapshot: what was decided by the one before is refused.
type fence struct {
	reign
	state  *fsm.State
	astray func() bool   // then nothing is let through
	places chan struct{} // one is taken by each write, unless it waits with others for the log
	convoy *convoy       // by which writes go to the log together; nil: each goes by itself
}

func (s *Server) newFence(r reign) *fence {
	return &fence{reign: r, state: s.state, astray: s.goesAstray, places: make(chan struct{}, controllerRequests*runtime.GOMAXPROCS(0))}
}

// newConvoyFence is a fence whose writes go to the log together where they are made at the same time.
func (s *Server) newConvoyFence(r reign) *fence {
	f := s.newFence(r)
	f.convoy = &convoy{guard: s.guard, enter: func(ps []fsm.Proposal) (outcome, error) {
		if err := f.check(); err != nil {
			return nil, err
		}
		if err := s.checkTerm(r.term); err != nil {
			return nil, err
		}
		e, err := s.enter(true, s.decidedBy(r.seen, ps))
		if err != nil {
			return nil, err
		}
		return func() ([]fsm.Result, error) {
			results, _, err := e.Wait(r.lasting)
			return results, err
		}, nil
	}}
	return f
}

// check says whether the fence lets anything through.
func (f *fence) check() error {
	if f.lasting.Err() != nil {
		return context.Cause(f.lasting)
	}
	if f.state.View().IsLate(f.seen) {
		f.end(errRestored)
		return errRestored
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
	stop := context.AfterFunc(f.lasting, cancel)
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
	results, _, err := s.proposeEntered(ctx, true, s.decidedBy(at.fence.seen, ps))
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
