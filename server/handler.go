package server

import (
	"context"
	"errors"
	"fmt"

	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/raftnode"
	"github.com/berth-dev/berth/rpc"
	"github.com/berth-dev/berth/store"
)

// handler answers the other servers (rpc.ServerHandler).
type handler struct{ *Server }

// Forward proposes for another server. It never forwards in its turn.
func (h handler) Forward(ctx context.Context, r *rpc.ForwardRequest) (*rpc.ForwardResponse, error) {
	ps, err := fsm.DecodeProposals(r.Entries)
	if err != nil {
		return nil, fmt.Errorf("%w: from server %s: %w", rpc.ErrInvalid, r.Server, err)
	}
	results, index, err := h.proposeEntered(ctx, false, ps)
	if err != nil {
		return nil, peerError(err)
	}
	raw, err := fsm.EncodeResults(results)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", rpc.ErrUnknownOutcome, err)
	}
	return &rpc.ForwardResponse{Results: raw, Index: index}, nil
}

// ReadIndex answers a follower that wants to read.
func (h handler) ReadIndex(ctx context.Context, _ *rpc.ReadIndexRequest) (*rpc.ReadIndexResponse, error) {
	index, err := h.node.ReadIndex(ctx)
	if err != nil {
		return nil, peerError(err)
	}
	return &rpc.ReadIndexResponse{Index: index}, nil
}

// ReportStreams takes note of the workers that another server hears.
func (h handler) ReportStreams(_ context.Context, r *rpc.StreamReport) (*rpc.StreamReportResponse, error) {
	if !h.node.IsLeader() {
		return nil, peerError(h.notLeader())
	}
	h.beats.note(r.Nodes, h.node.Clock().NowUnixNano())
	return &rpc.StreamReportResponse{}, nil
}

func (s *Server) notLeader() error {
	id, addr := s.node.Leader()
	return &raftnode.NotLeaderError{LeaderID: id, LeaderAddr: addr}
}

// Digest waits until this server has the checkpoint and gives its digests.
func (h handler) Digest(ctx context.Context, r *rpc.DigestRequest) (*rpc.DigestResponse, error) {
	if err := h.node.WaitApplied(ctx, r.Index); err != nil {
		return nil, peerError(err)
	}
	d, err := h.digests.at(h.state, r.Index)
	if err != nil {
		return nil, err
	}
	return &rpc.DigestResponse{Index: r.Index, Digest: d.Whole, Format: store.DigestFormat, Tables: d.Tables}, nil
}

// peerError gives an error of consensus the meaning that it keeps on the wire.
func peerError(err error) error {
	var (
		elsewhere *raftnode.NotLeaderError
		unknown   *raftnode.VersionError
	)
	switch {
	case errors.As(err, &elsewhere):
		return &rpc.NotLeaderError{Leader: elsewhere.LeaderID, Addr: elsewhere.LeaderAddr}
	case errors.Is(err, raftnode.ErrUnknownOutcome):
		return fmt.Errorf("%w: %w", rpc.ErrUnknownOutcome, err)
	case errors.Is(err, raftnode.ErrBusy):
		return fmt.Errorf("%w: %w", rpc.ErrBusy, err)
	case errors.Is(err, raftnode.ErrNoLeader):
		return fmt.Errorf("%w: %w", rpc.ErrNoLeader, err)
	case errors.Is(err, raftnode.ErrShutdown):
		return fmt.Errorf("%w: %w", rpc.ErrStopping, err)
	case errors.Is(err, raftnode.ErrTooLarge):
		return fmt.Errorf("%w: %w", rpc.ErrTooLarge, err)
	case errors.As(err, &unknown):
		return fmt.Errorf("%w: %w", rpc.ErrInvalid, err)
	}
	return err
}
