package server

import (
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/berth-dev/berth/apiserver"
	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/raftnode"
	"github.com/berth-dev/berth/rpc"
	"github.com/berth-dev/berth/store"
)

const (
	// leaderWait is how long a request waits for a leader to be found before
	// it is told that there is none: an election takes about a second.
	leaderWait = 5 * time.Second
	// leaderPoll is how often a waiting request looks again.
	leaderPoll = 20 * time.Millisecond
)

// Propose carries commands out through the log, by way of the leader, and
// returns once this server's own state has applied them. Its errors wrap those
// of apiserver: ErrNoLeader and ErrBusy mean that nothing was done,
// ErrUnknownOutcome that it may have been.
func (s *Server) Propose(ctx context.Context, ps ...fsm.Proposal) ([]fsm.Result, error) {
	if at, ok := ctx.Value(here{}).(*seat); ok {
		return s.proposeHere(ctx, at, ps)
	}
	give := time.Now().Add(s.patience())
	var encoded []byte
	for {
		results, err := s.proposeOnce(ctx, ps, &encoded)
		if err == nil || !errors.Is(err, apiserver.ErrNoLeader) {
			return results, err
		}
		if time.Now().After(give) {
			return nil, s.leaderless(err)
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-s.stopped:
			return nil, err
		case <-time.After(leaderPoll):
		}
	}
}

// proposeOnce tries the leader as it is known now.
func (s *Server) proposeOnce(ctx context.Context, ps []fsm.Proposal, encoded *[]byte) ([]fsm.Result, error) {
	results, _, err := s.proposeEntered(ctx, false, ps)
	var elsewhere *raftnode.NotLeaderError
	if !errors.As(err, &elsewhere) {
		return results, backendError(err)
	}
	addr, ok := s.serverAddr(elsewhere.LeaderID)
	if !ok {
		return nil, fmt.Errorf("%w", apiserver.ErrNoLeader)
	}
	if *encoded == nil {
		if *encoded, err = fsm.EncodeProposals(ps); err != nil {
			return nil, err
		}
	}
	answer, err := s.peers.Forward(ctx, addr, *encoded)
	if err != nil {
		return nil, backendError(err)
	}
	if results, err = fsm.DecodeResults(answer.Results); err != nil {
		return nil, fmt.Errorf("%w: %w", apiserver.ErrUnknownOutcome, err)
	}
	// Whoever wrote through this server must find it here.
	if err := s.node.WaitApplied(ctx, answer.Index); err != nil {
		return nil, fmt.Errorf("%w: %w", apiserver.ErrUnknownOutcome, err)
	}
	return results, nil
}

// backendError gives an error of consensus or of a peer the meaning that the
// API knows.
func backendError(err error) error {
	is := func(targets ...error) bool {
		for _, t := range targets {
			if errors.Is(err, t) {
				return true
			}
		}
		return false
	}
	switch {
	case err == nil:
		return nil
	case is(raftnode.ErrUnknownOutcome, rpc.ErrUnknownOutcome):
		return fmt.Errorf("%w: %w", apiserver.ErrUnknownOutcome, err)
	case is(raftnode.ErrTooLarge, rpc.ErrTooLarge):
		return apierrors.NewRequestEntityTooLargeError(err.Error())
	case is(rpc.ErrInvalid):
		return apierrors.NewBadRequest(err.Error())
	case is(raftnode.ErrBusy, rpc.ErrBusy, raftnode.ErrNotProposed): // it waited too long, and was withdrawn
		return fmt.Errorf("%w: %w", apiserver.ErrBusy, err)
	case is(raftnode.ErrNoLeader, raftnode.ErrShutdown, rpc.ErrNoLeader, rpc.ErrNotLeader, rpc.ErrNotSent, rpc.ErrStopping):
		return fmt.Errorf("%w: %w", apiserver.ErrNoLeader, err)
	}
	var (
		elsewhere *raftnode.NotLeaderError
		unknown   *raftnode.VersionError
	)
	switch {
	case errors.As(err, &elsewhere):
		return fmt.Errorf("%w: %w", apiserver.ErrNoLeader, err)
	case errors.As(err, &unknown):
		return apierrors.NewBadRequest(err.Error())
	}
	return err
}

// ReadIndex returns when this server's state is at least as new as every write
// that was acknowledged anywhere before the call.
func (s *Server) ReadIndex(ctx context.Context) error { return s.reads.do(ctx) }

// readIndex asks the leader, whoever that is, until there is one or it has
// looked for long enough.
func (s *Server) readIndex(ctx context.Context) error {
	give := time.Now().Add(s.patience())
	for {
		err := s.readOnce(ctx)
		if err == nil || !errors.Is(err, apiserver.ErrNoLeader) {
			return err
		}
		if time.Now().After(give) {
			return s.leaderless(err)
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(leaderPoll):
		}
	}
}

// askTimeout bounds one question to a leader, which may be gone without a word.
const askTimeout = 2 * time.Second

func (s *Server) readOnce(ctx context.Context) error {
	asking, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	index, err := s.node.ReadIndex(asking)
	var elsewhere *raftnode.NotLeaderError
	if errors.As(err, &elsewhere) {
		addr, ok := s.serverAddr(elsewhere.LeaderID)
		if !ok {
			return fmt.Errorf("%w", apiserver.ErrNoLeader)
		}
		index, err = s.peers.ReadIndex(asking, addr)
	}
	if err != nil { // whatever it is: nothing was done, and another may lead
		return fmt.Errorf("%w: %w", apiserver.ErrNoLeader, err)
	}
	return s.awaitApplied(ctx, index)
}

// awaitApplied returns once this server's state has the entry at index. A server
// that stops meanwhile is one that another has to be asked instead of.
func (s *Server) awaitApplied(ctx context.Context, index uint64) error {
	return backendError(s.node.WaitApplied(ctx, index))
}

// NowUnixNano is the state's time now.
func (s *Server) NowUnixNano() int64 { return s.node.Clock().NowUnixNano() }

// View is this server's latest state.
func (s *Server) View() *fsm.View { return s.state.View() }

// Feed is this server's change feed.
func (s *Server) Feed() *store.Feed { return s.state.Feed() }

// checkpoint lets every server keep its state at one index, and returns that
// index.
func (s *Server) checkpoint(ctx context.Context) (fsm.Result, uint64, error) {
	rs, err := s.Propose(ctx, fsm.Proposal{User: systemUser, Groups: systemGroups, Command: &fsm.Checkpoint{}})
	if err != nil {
		return fsm.Result{}, 0, err
	}
	return rs[0], rs[0].Index, nil
}
