package raftnode

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/hashicorp/raft"

	"github.com/berth-dev/berth/fsm"
)

// Snapshot streams the state as it is now on this server, in the format of
// fsm's snapshots, with their checksum. It stops nothing. For one that holds
// everything acknowledged before, wait for a read index first. The caller
// closes the stream.
func (n *Node) Snapshot(ctx context.Context) (io.ReadCloser, *fsm.View, error) {
	if err := n.machine.err(); err != nil {
		return nil, nil, fmt.Errorf("snapshot: %w", err)
	}
	view := n.state.View()
	r, w := io.Pipe()
	stop := context.AfterFunc(ctx, func() { w.CloseWithError(ctx.Err()) })
	go func() {
		err := view.Write(w)
		stop()
		w.CloseWithError(err)
	}()
	return r, view, nil
}

// RestoreSnapshot replaces the state of the whole cluster by the one in a
// stream from Snapshot. It must run on the leader. The stream is read and
// checked whole before anything is touched. Proposals are refused with ErrBusy
// until it is done.
//
// The state comes back under a revision above every one that the cluster has
// handed out, so that no watch mistakes the old objects for newer ones.
func (n *Node) RestoreSnapshot(ctx context.Context, from io.Reader) error {
	if !n.IsLeader() {
		return notLeader(n.raft)
	}
	scratch := fsm.NewState()
	if err := scratch.Restore(from); err != nil {
		return fmt.Errorf("restore a snapshot: nothing was changed: %w", err)
	}
	n.restoring.Lock()
	defer n.restoring.Unlock()
	// Nobody else proposes now. Once this has been applied, so has all else,
	// and the revision stands still.
	if err := n.Barrier(ctx); err != nil {
		return fmt.Errorf("restore a snapshot: nothing was changed: %w", err)
	}
	f, err := n.scratchFile()
	if err != nil {
		return fmt.Errorf("restore a snapshot: nothing was changed: %w", err)
	}
	defer func() { _ = errors.Join(f.Close(), os.Remove(f.Name())) }()
	revision := max(n.state.View().Revision(), scratch.View().Revision()) + 1
	size, err := writeAt(f, scratch.View(), revision)
	if err != nil {
		return fmt.Errorf("restore a snapshot: nothing was changed: %w", err)
	}
	meta := &raft.SnapshotMeta{Version: raft.SnapshotVersionMax, Size: size}
	// From here on it goes through, whether the caller waits or not.
	err = n.await(context.WithoutCancel(ctx), func() error { return n.raft.Restore(meta, f, 0) })
	switch {
	case errors.Is(err, raft.ErrNotLeader):
		return notLeader(n.raft)
	case err != nil:
		return fmt.Errorf("restore a snapshot: %w", unknown(err))
	}
	// Followers wait for indexes that they see; Raft's own last one is not
	// shown to them.
	if err := n.Barrier(ctx); err != nil {
		return fmt.Errorf("restore a snapshot: %w", unknown(err))
	}
	n.logger.Info("restored a snapshot", "revision", revision, "bytes", size)
	return nil
}

func writeAt(f *os.File, v *fsm.View, revision int64) (int64, error) {
	if err := v.WriteAt(f, revision); err != nil {
		return 0, err
	}
	size, err := f.Seek(0, io.SeekCurrent)
	if err != nil {
		return 0, err
	}
	_, err = f.Seek(0, io.SeekStart)
	return size, err
}

func (n *Node) scratchFile() (*os.File, error) {
	dir := ""
	if n.c.DataDir != "" {
		dir = filepath.Join(n.c.DataDir, raftDir)
	}
	return os.CreateTemp(dir, "restore-")
}
