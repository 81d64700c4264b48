package raftnode

import (
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"

	"github.com/berth-dev/berth/atomicfile"
	"github.com/berth-dev/berth/disk"
	"github.com/berth-dev/berth/raftlog"
)

// durable is what keeps the log and Raft's own few values.
type durable interface {
	raft.LogStore
	raft.StableStore
	io.Closer
}

const (
	raftDir           = "raft"
	logDir            = "log"    // below raftDir
	oldLogFile        = "log.db" // below raftDir, of versions before the first release
	retainedSnapshots = 2
	lockTimeout       = time.Second
)

// storage is all that a server keeps.
type storage struct {
	raft.LogStore
	*promises
	snapshots *snapshotStore
	log       io.Closer
}

// StoreLogs implements raft.LogStore. What is stored is noted beside the log
// before anybody hears that it is.
func (s *storage) StoreLogs(logs []*raft.Log) error {
	if len(logs) > 0 {
		if err := s.replace(logs[0].Index); err != nil {
			return err
		}
	}
	if err := s.LogStore.StoreLogs(logs); err != nil {
		return err
	}
	return s.promises.acknowledge(logs)
}

// StoreLog implements raft.LogStore.
func (s *storage) StoreLog(l *raft.Log) error { return s.StoreLogs([]*raft.Log{l}) }

// IsMonotonic implements raft.MonotonicLogStore.
func (s *storage) IsMonotonic() bool {
	m, ok := s.LogStore.(raft.MonotonicLogStore)
	return ok && m.IsMonotonic()
}

// Close implements io.Closer.
func (s *storage) Close() error { return errors.Join(s.promises.close(), s.log.Close()) }

// openStorage opens what is below the data directory. Nobody else may use it. In a
// fresh one it keeps the identity once the promises are there, and before the log.
func openStorage(c Config, watched *watchedDisk, fresh bool, logger hclog.Logger, keepIdentity func() error) (_ *storage, err error) {
	p, err := openPromises(atomicfile.Files{Disk: watched}, c.DataDir, c.ID, fresh, c.NoFsync)
	if err != nil {
		return nil, err
	}
	s := &storage{promises: p, log: io.NopCloser(nil)}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Close())
		}
	}()
	if c.InMemory {
		s.LogStore = raft.NewInmemStore()
		s.snapshots = &snapshotStore{SnapshotStore: raft.NewInmemSnapshotStore()}
		return s, nil
	}
	if fresh {
		if err := keepIdentity(); err != nil {
			return nil, err
		}
	}
	dir := filepath.Join(c.DataDir, raftDir)
	if err := disk.MkdirAll(c.Disk, dir, 0o700); err != nil {
		return nil, fmt.Errorf("data directory: %w", err)
	}
	if _, err := c.Disk.Lstat(filepath.Join(dir, oldLogFile)); err == nil {
		return nil, &DamagedFileError{filepath.Join(dir, oldLogFile), "is the log of a version from before the first release, which this one does not read",
			fmt.Sprintf("save a snapshot with that version, remove everything in %s, start this one, and restore the snapshot", c.DataDir)}
	}
	if err := sweep(c.files(), c.DataDir, dir); err != nil {
		return nil, fmt.Errorf("remove what was left unfinished in data directory %s: %w", c.DataDir, err)
	}
	if err := probeDisk(c.Disk, dir, c.MaxEntryBytes); err != nil {
		return nil, fmt.Errorf("data directory %s can not keep a log entry: %w", c.DataDir, err)
	}
	if err := s.openLog(c, watched, dir); err != nil {
		return nil, err
	}
	if err := s.openSnapshots(atomicfile.Files{Disk: watched.patient()}, dir, logger); err != nil {
		return nil, err
	}
	return s, s.secure(c, dir)
}

// secure has the names below the data directory be on the disk, which whoever was killed may have given and not synced.
func (s *storage) secure(c Config, dir string) error {
	if c.NoFsync {
		return nil
	}
	for _, d := range []string{c.DataDir, dir, filepath.Join(dir, snapshotsDir)} {
		if err := disk.SyncDir(c.Disk, d); err != nil {
			return fmt.Errorf("data directory: %w", err)
		}
	}
	return nil
}

func (s *storage) openLog(c Config, watched *watchedDisk, dir string) error {
	path := filepath.Join(dir, logDir)
	promised := s.record()
	log, err := raftlog.Open(path, raftlog.Options{Acknowledged: promised.stored(), NoSync: c.NoFsync, SegmentBytes: c.segmentBytes, Disk: watched})
	var damage *raftlog.DamageError
	switch {
	case errors.As(err, &damage):
		return damagedLog(c.DataDir, damage)
	case errors.Is(err, raftlog.ErrInUse):
		return inUse(c.DataDir)
	case err != nil:
		return fmt.Errorf("open the log in %s: %w", path, err)
	}
	s.LogStore, s.log = log, log
	last, err := log.LastIndex()
	if err != nil || last == 0 {
		return err
	}
	var l raft.Log
	if err := log.GetLog(last, &l); err != nil {
		return fmt.Errorf("read the log in %s: %w", path, err)
	}
	s.found(position{l.Term, last})
	return nil
}

func (s *storage) openSnapshots(files atomicfile.Files, dir string, logger hclog.Logger) error {
	path := filepath.Join(dir, snapshotsDir)
	err := disk.MkdirAll(files, path, 0o755)
	if err != nil {
		return fmt.Errorf("open the snapshots in %s: %w", dir, err)
	}
	s.snapshots = &snapshotStore{SnapshotStore: &snapshotFiles{files: files, dir: path, logger: logger.Named("snapshot")}, files: files, dir: path}
	return s.snapshots.check()
}

func inUse(dir string) error {
	return fmt.Errorf("data directory %s is in use by another process", dir)
}

// damagedLog says what to do about a log that can not be read.
func damagedLog(dataDir string, err error) error {
	dir := filepath.Join(dataDir, raftDir, logDir)
	return fmt.Errorf("%w; if the other servers of the cluster run, remove %s and start this server again, and it gets the entries from "+
		"them; if it is the only one, restore a snapshot in a new cluster (berth operator snapshot restore)", err, dir)
}

// Files that are written to be removed again; a crash leaves them.
const (
	probePattern = "probe-*"
	// ScratchPattern names, in the data directory, a snapshot that is to be restored.
	ScratchPattern = "restore-*"
)

// sweep removes what a crash has left unfinished.
func sweep(files atomicfile.Files, dataDir, dir string) error {
	for _, d := range []string{dataDir, dir} {
		if err := files.Sweep(d); err != nil {
			return err
		}
	}
	return errors.Join(removeMatching(files, dir, probePattern), removeMatching(files, dataDir, ScratchPattern))
}

func removeMatching(on disk.Disk, dir, pattern string) error {
	entries, err := on.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		match, err := filepath.Match(pattern, e.Name())
		if err == nil && match && e.Type().IsRegular() {
			err = on.Remove(filepath.Join(dir, e.Name()))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// probeDisk finds out before the start whether an entry could be kept: a full
// or read-only disk is better told at once than at the first entry.
func probeDisk(on disk.Disk, dir string, size int) (err error) {
	f, path, err := disk.CreateTemp(on, dir, probePattern)
	if err != nil {
		return err
	}
	defer func() {
		err = errors.Join(err, f.Close(), on.Remove(path))
	}()
	if _, err := f.Write(make([]byte, size)); err != nil {
		return err
	}
	return f.Sync()
}
