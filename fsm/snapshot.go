package fsm

import (
	"errors"
	"fmt"
	"io"
	"runtime/debug"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/store"
)

// Write streams the view as a snapshot. It holds no lock.
func (v *View) Write(w io.Writer) error { return v.WriteAt(w, v.Revision()) }

// WriteAt is Write with another revision in the header, never a lower one (see
// store.WriteSnapshot).
func (v *View) WriteAt(w io.Writer, revision int64) error {
	return store.WriteSnapshot(w, v.Position, revision, v.tables())
}

// Digest is a fingerprint of everything in the state's tables, and of its
// revision, time and version: two servers at the same index have the same one.
func (v *View) Digest() string { return v.Digests().Whole }

// Digests is Digest with that of each table. It reads the whole state.
func (v *View) Digests() store.Digests { return store.DigestsOf(v.Position, v.tables()) }

// ErrRestoreBroke is of a snapshot over which the state machine panicked.
var ErrRestoreBroke = errors.New("it panicked, by a mistake of Berth's")

// Restore replaces the state by the one in a snapshot stream. On an error the
// state is as it was; a panic is one (ErrRestoreBroke).
func (s *State) Restore(r io.Reader) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("restore: %w: %v\n%s", ErrRestoreBroke, p, debug.Stack())
		}
	}()
	v, err := readLive(r)
	if err != nil {
		return fmt.Errorf("restore: %w", err)
	}
	view := v.freeze()
	s.live = v
	s.feed.Reset(view.Revision(), nil, func() { s.published.Store(view) })
	return nil
}

// MaxSnapshotBytes bounds the snapshots that can be restored.
const MaxSnapshotBytes = 16 << 30

// readLive reads a snapshot whole.
func readLive(r io.Reader) (*live, error) {
	v := newLive()
	v.cache.counters.topology = nil // all at once is faster
	v.cache.restored = map[*corev1.Container]*admittedSpec{}
	if err := store.ReadSnapshot(r, LogVersion, v, &v.Position, v.tables()); err != nil {
		return nil, err
	}
	v.cache.restored = nil
	v.budgets.Untouch() // their statuses are those of the snapshot
	v.quotas.Untouch()
	v.topology() // now, and not when an entry first needs it
	v.countAgain()
	v.settle()
	return v, nil
}
