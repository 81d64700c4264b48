package raftnode

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"strings"

	"github.com/cespare/xxhash/v2"
	"github.com/hashicorp/raft"

	"github.com/berth-dev/berth/atomicfile"
	"github.com/berth-dev/berth/disk"
)

const (
	snapshotsDir     = "snapshots" // below raftDir; named by the library, as its files are
	snapshotMeta     = "meta.json"
	snapshotState    = "state.bin"
	snapshotSeal     = "seal"
	unfinishedSuffix = ".tmp"
	maxMetaBytes     = 16 << 20
)

// snapshotStore gives the library's snapshots what they lack: a checksum of what
// is known about them (term, index, servers), and a word about damage. The state
// itself has checksums of its own.
type snapshotStore struct {
	raft.SnapshotStore
	files atomicfile.Files
	dir   string // of the snapshots; empty: in memory
}

// sealOfMeta is what stands in a snapshot's seal.
type sealOfMeta struct {
	Meta string `json:"meta"` // XXH64 of meta.json
}

// Create implements raft.SnapshotStore.
func (s *snapshotStore) Create(version raft.SnapshotVersion, index, term uint64, c raft.Configuration, cIndex uint64, t raft.Transport) (raft.SnapshotSink, error) {
	sink, err := s.SnapshotStore.Create(version, index, term, c, cIndex, t)
	if err != nil {
		return nil, err
	}
	return &snapshotSink{SnapshotSink: sink, store: s}, nil
}

// Open implements raft.SnapshotStore.
func (s *snapshotStore) Open(id string) (*raft.SnapshotMeta, io.ReadCloser, error) {
	meta, r, err := s.SnapshotStore.Open(id)
	if err != nil {
		return nil, nil, err
	}
	return meta, &placedSnapshot{r, position{meta.Term, meta.Index}}, nil
}

// placedSnapshot is an open snapshot that knows its place in the log. The state in it may be of an entry before: it takes no part
// in some of Raft's own.
type placedSnapshot struct {
	io.ReadCloser
	at position
}

// placeOf is the place in the log of a snapshot that is handed to the state, by Raft within a reader of its own.
func placeOf(r io.ReadCloser) (position, error) {
	for {
		switch s := r.(type) {
		case *placedSnapshot:
			return s.at, nil
		case raft.ReadCloserWrapper:
			r = s.WrappedReadCloser()
		default:
			return position{}, fmt.Errorf("a snapshot is handed over by a %T, which does not say how far it reaches", r)
		}
	}
}

// dropBeyond removes the snapshots that reach further than a position. A server is sent one that reaches less far than its own
// only when a cluster goes on without what that one had; a start would take its own for the newer.
func (s *snapshotStore) dropBeyond(at position) error {
	if s.dir == "" {
		return nil // only the last one is kept
	}
	list, err := s.List()
	if err != nil {
		return fmt.Errorf("list the snapshots: %w", err)
	}
	for _, meta := range list {
		if !at.before(position{meta.Term, meta.Index}) {
			continue
		}
		if err := discardSnapshot(s.files, s.dir, meta.ID); err != nil {
			return fmt.Errorf("remove a snapshot that the cluster goes on without: %w", err)
		}
	}
	return disk.SyncDir(s.files, s.dir)
}

type snapshotSink struct {
	raft.SnapshotSink
	store *snapshotStore
}

// Close implements raft.SnapshotSink.
func (s *snapshotSink) Close() error {
	if err := s.SnapshotSink.Close(); err != nil {
		return err
	}
	if s.store.dir == "" {
		return nil
	}
	return s.store.seal(s.ID())
}

func (s *snapshotStore) seal(id string) error {
	dir := filepath.Join(s.dir, id)
	b, err := disk.ReadFile(s.files, filepath.Join(dir, snapshotMeta), maxMetaBytes)
	if err != nil {
		return fmt.Errorf("seal a snapshot: %w", err)
	}
	record, err := sealRecord(sealOfMeta{sumOfMeta(b)})
	if err != nil {
		return err
	}
	if err := s.files.Write(filepath.Join(dir, snapshotSeal), record, 0o600); err != nil {
		return fmt.Errorf("seal a snapshot: %w", err)
	}
	return nil
}

func sumOfMeta(meta []byte) string { return fmt.Sprintf("%016x", xxhash.Sum64(meta)) }

// check looks at every snapshot in the directory, but for the states' bytes.
// What was never finished is removed.
func (s *snapshotStore) check() error {
	if s.dir == "" {
		return nil
	}
	entries, err := s.files.ReadDir(s.dir)
	if err != nil {
		return fmt.Errorf("list the snapshots: %w", err)
	}
	for _, e := range entries {
		switch {
		case !e.IsDir():
		case strings.HasSuffix(e.Name(), unfinishedSuffix):
			err = disk.RemoveAll(s.files, filepath.Join(s.dir, e.Name()))
		default:
			err = s.checkOne(e.Name())
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (s *snapshotStore) damaged(id, file, what string) error {
	dir := filepath.Join(s.dir, id)
	return &DamagedFileError{filepath.Join(dir, file), what, fmt.Sprintf(
		"remove %s and start this server again: it goes on from an older snapshot, or says what else is missing", dir)}
}

func (s *snapshotStore) checkOne(id string) error {
	dir := filepath.Join(s.dir, id)
	b, err := disk.ReadFile(s.files, filepath.Join(dir, snapshotMeta), maxMetaBytes)
	if errors.Is(err, fs.ErrNotExist) {
		return s.damaged(id, snapshotMeta, "is missing")
	}
	if err != nil {
		return s.damaged(id, snapshotMeta, fmt.Sprintf("can not be read (%v)", err))
	}
	var meta raft.SnapshotMeta
	if err := json.Unmarshal(b, &meta); err != nil || meta.ID != id || meta.Version != raft.SnapshotVersionMax {
		return s.damaged(id, snapshotMeta, "is damaged")
	}
	st, err := s.files.Lstat(filepath.Join(dir, snapshotState))
	if err != nil || st.Size() != meta.Size || !st.Mode().IsRegular() {
		return s.damaged(id, snapshotState, fmt.Sprintf("is damaged: it should be a file of %d bytes", meta.Size))
	}
	raw, err := disk.ReadFile(s.files, filepath.Join(dir, snapshotSeal), maxMetaBytes)
	if errors.Is(err, fs.ErrNotExist) {
		return s.seal(id) // a crash came between the snapshot and its seal
	}
	var seal sealOfMeta
	if err != nil || openRecord(raw, &seal) != nil {
		return s.damaged(id, snapshotSeal, "is damaged")
	}
	if seal.Meta != sumOfMeta(b) {
		return s.damaged(id, snapshotMeta, "is damaged")
	}
	return nil
}

// restore brings the state to the newest snapshot, if there is one. Raft would try
// older ones after it, and not say which file it could not read.
func (s *snapshotStore) restore(m *machine) error {
	list, err := s.List()
	if err != nil {
		return fmt.Errorf("list the snapshots: %w", err)
	}
	if len(list) == 0 {
		return nil
	}
	_, r, err := s.Open(list[0].ID)
	if err == nil {
		err = errors.Join(m.Restore(r), r.Close())
	}
	if err != nil {
		return s.damaged(list[0].ID, snapshotState, fmt.Sprintf("is damaged (%v)", err))
	}
	return nil
}
