package server

import (
	"compress/flate"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/google/uuid"

	"github.com/berth-dev/berth/api/operator"
	"github.com/berth-dev/berth/apiserver"
	"github.com/berth-dev/berth/disk"
	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/raftnode"
)

const (
	// pieceBytes is how much of a snapshot goes into the log at once.
	pieceBytes = 512 << 10
	// pieceTimeout bounds how long one piece is tried, elections and all.
	pieceTimeout = time.Minute
	// restoreTimeout bounds the last step, in which every server reads the
	// snapshot.
	restoreTimeout = 10 * time.Minute
)

func (s *Server) restoreSnapshot(w http.ResponseWriter, r *http.Request) {
	result, err := s.RestoreState(r.Context(), r.Body)
	if err != nil {
		s.reply(w, nil, err)
		return
	}
	s.log.Info("state restored from an operator's snapshot", "index", result.Index, "revision", result.Revision)
	s.reply(w, &operator.RestoreResult{Index: result.Index, Revision: result.Revision}, nil)
}

// errNothingRestored is wrapped by every failure that has left the state as it
// was.
var errNothingRestored = errors.New("restore a snapshot: nothing was changed")

// RestoreState replaces the state of the whole cluster by the one in a snapshot
// stream. It may be called on any server.
//
// The stream is read and checked whole before anything is proposed. Then it goes
// through the log piece by piece into a table that nobody looks at, and one
// command makes it the state on every server at the same index. Whoever gives up
// before that, or dies, leaves the old state everywhere.
func (s *Server) RestoreState(ctx context.Context, from io.Reader) (fsm.Result, error) {
	if has, needs := s.versionNow(ctx), fsm.Since(&fsm.RestoreSnapshot{}); has < needs {
		return fsm.Result{}, fmt.Errorf("%w: %w: it needs every server at log version %d, and one is at %d: upgrade all servers first",
			errBadRequest, errNothingRestored, needs, has)
	}
	spool, err := s.spoolSnapshot(from)
	if err != nil {
		return fsm.Result{}, fmt.Errorf("%w: %w", errNothingRestored, err)
	}
	defer spool.remove()
	id := uuid.NewString()
	if err := s.stageSnapshot(ctx, id, spool); err != nil {
		s.abandonSnapshot(ctx, id)
		return fsm.Result{}, fmt.Errorf("%w: %w", errNothingRestored, err)
	}
	// From here on it goes through, whether the caller waits or not.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), restoreTimeout)
	defer cancel()
	result, err := s.insist(ctx, &fsm.RestoreSnapshot{ID: id, Bytes: spool.bytes, SHA256: spool.sum})
	if err != nil {
		return result, fmt.Errorf("restore a snapshot: %w", err)
	}
	if err := result.Err(); err != nil {
		s.abandonSnapshot(ctx, id)
		return result, fmt.Errorf("%w: %w", errNothingRestored, err)
	}
	return result, nil
}

// versionNow is the log's version. The last entry may have been made before all
// servers knew a newer one: then another entry is.
func (s *Server) versionNow(ctx context.Context) int {
	if s.state.View().Version() < s.minServerVersion() {
		if _, _, err := s.checkpoint(ctx); err != nil {
			s.log.Debug("the log's version is taken from its last entry", "error", err)
		}
	}
	return s.state.View().Version()
}

// spooled is a checked snapshot, compressed, in a file of this server's.
type spooled struct {
	disk  disk.Disk
	file  disk.File
	path  string
	bytes int64
	sum   []byte
}

func (p *spooled) remove() { _ = errors.Join(p.file.Close(), p.disk.Remove(p.path)) }

// spoolSnapshot reads a snapshot whole, checks it, and keeps it until it is
// restored.
func (s *Server) spoolSnapshot(from io.Reader) (_ *spooled, err error) {
	p := &spooled{disk: s.config.Disk}
	if p.file, p.path, err = disk.CreateTemp(p.disk, s.config.DataDir, raftnode.ScratchPattern); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			p.remove()
		}
	}()
	sum := sha256.New()
	deflated, err := flate.NewWriter(io.MultiWriter(p.file, sum), flate.BestSpeed)
	if err != nil {
		return nil, err
	}
	stream := io.TeeReader(io.LimitReader(from, fsm.MaxSnapshotBytes), deflated)
	state := fsm.NewState()
	if err := state.Restore(stream); err != nil {
		return nil, err
	}
	if err := s.checkRestored(state.View().Bytes()); err != nil {
		return nil, err
	}
	if _, err := io.Copy(io.Discard, stream); err != nil { // whoever is gone has not asked for it
		return nil, err
	}
	if err := deflated.Close(); err != nil {
		return nil, err
	}
	p.sum = sum.Sum(nil)
	st, err := p.file.Stat()
	if err != nil {
		return nil, err
	}
	p.bytes = st.Size()
	return p, nil
}

// stageSnapshot brings a snapshot to all servers, one piece after the other.
func (s *Server) stageSnapshot(ctx context.Context, id string, p *spooled) error {
	for offset := int64(0); offset < p.bytes; {
		piece := make([]byte, min(pieceBytes, p.bytes-offset))
		if _, err := p.file.ReadAt(piece, offset); err != nil {
			return err
		}
		trying, cancel := context.WithTimeout(ctx, pieceTimeout)
		result, err := s.insist(trying, &fsm.StageSnapshot{ID: id, Offset: offset, Data: piece})
		cancel()
		if err == nil {
			err = result.Err()
		}
		if err != nil {
			return err
		}
		offset += int64(len(piece))
	}
	return nil
}

// insist proposes a command that may be proposed twice, until its outcome is
// known.
func (s *Server) insist(ctx context.Context, c fsm.Command) (fsm.Result, error) {
	for {
		result, err := s.proposeOne(ctx, c)
		again := errors.Is(err, apiserver.ErrUnknownOutcome) || errors.Is(err, apiserver.ErrNoLeader) || errors.Is(err, apiserver.ErrBusy)
		if !again || ctx.Err() != nil {
			return result, err
		}
		select {
		case <-ctx.Done():
			return result, err
		case <-s.stopped:
			return result, err
		case <-time.After(leaderPoll):
		}
	}
}

// abandonSnapshot takes back what was staged. If it can not be, the leader does
// it after a while.
func (s *Server) abandonSnapshot(ctx context.Context, id string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaderWait)
	defer cancel()
	if _, err := s.proposeOne(ctx, &fsm.AbandonSnapshot{ID: id}); err != nil {
		s.log.Debug("what was staged of a snapshot is left to the leader to forget", "error", err)
	}
}
