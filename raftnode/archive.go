package raftnode

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/hashicorp/raft"

	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/raftlog"
	"github.com/berth-dev/berth/store"
)

// Archive reads the data directory of a server that does not run, or a copy of
// one. It changes nothing there.
type Archive struct {
	dir       string
	log       *raftlog.Log
	empty     []byte
	snapshots []archivedSnapshot // oldest first
	first     uint64
	last      uint64
}

// archivedSnapshot is a snapshot in a data directory.
type archivedSnapshot struct {
	index uint64
	path  string
}

// OpenArchive opens a server's data directory for reading.
func OpenArchive(dataDir string) (*Archive, error) {
	dir := filepath.Join(dataDir, raftDir)
	path := filepath.Join(dir, logDir)
	if _, err := os.Stat(path); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("%s is not the data directory of a server: there is no %s in it", dataDir, filepath.Join(raftDir, logDir))
		}
		return nil, fmt.Errorf("read the log: %w", err)
	}
	log, err := raftlog.Open(path, raftlog.Options{ReadOnly: true, LockTimeout: lockTimeout})
	switch {
	case errors.Is(err, raftlog.ErrInUse):
		return nil, fmt.Errorf("the data directory %s is in use: stop its server, or copy the directory and read the copy", dataDir)
	case err != nil:
		return nil, fmt.Errorf("open the log in %s: %w", path, err)
	}
	a := &Archive{dir: dir, log: log}
	if err := a.survey(); err != nil {
		return nil, errors.Join(err, log.Close())
	}
	return a, nil
}

func (a *Archive) survey() (err error) {
	if a.empty, err = store.JoinEntry(fsm.Header{}, nil); err != nil {
		return err
	}
	if a.first, err = a.log.FirstIndex(); err != nil {
		return fmt.Errorf("read the log: %w", err)
	}
	if a.last, err = a.log.LastIndex(); err != nil {
		return fmt.Errorf("read the log: %w", err)
	}
	metas, err := filepath.Glob(filepath.Join(a.dir, snapshotsDir, "*", snapshotMeta))
	if err != nil {
		return err
	}
	for _, path := range metas {
		if filepath.Ext(filepath.Dir(path)) == unfinishedSuffix {
			continue // it was never finished
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return fmt.Errorf("read a snapshot: %w", err)
		}
		var meta raft.SnapshotMeta
		if err := json.Unmarshal(b, &meta); err != nil {
			return fmt.Errorf("%s is damaged: %w", path, err)
		}
		a.snapshots = append(a.snapshots, archivedSnapshot{meta.Index, filepath.Join(filepath.Dir(path), snapshotState)})
	}
	slices.SortFunc(a.snapshots, func(x, y archivedSnapshot) int { return cmp.Compare(x.index, y.index) })
	return nil
}

// Close ends the reading.
func (a *Archive) Close() error { return a.log.Close() }

// Last is the index of the newest entry, 0 if there is none.
func (a *Archive) Last() uint64 { return a.last }

// Entry returns the term and the bytes of an entry, as the state machine gets
// them.
func (a *Archive) Entry(index uint64) (term uint64, entry []byte, err error) {
	var l raft.Log
	if err := a.log.GetLog(index, &l); err != nil {
		if errors.Is(err, raft.ErrLogNotFound) {
			return 0, nil, fmt.Errorf("there is no entry %d in the log, which goes from %d to %d", index, a.first, a.last)
		}
		return 0, nil, fmt.Errorf("read log entry %d: %w", index, err)
	}
	if l.Type != raft.LogCommand {
		return l.Term, a.empty, nil
	}
	return l.Term, l.Data, nil
}

// StateBefore returns the newest state that the directory holds of before an
// entry, from which the log goes on without a gap: that of a snapshot, or the
// empty one of a log that is there from its first entry on. With 0 for the
// entry it is the oldest such state.
func (a *Archive) StateBefore(index uint64) (*fsm.State, error) {
	usable := func(at uint64) bool {
		return at+1 >= a.first && (a.last == 0 || at <= a.last) && (index == 0 || at < index)
	}
	best := -1
	for i, s := range a.snapshots {
		if usable(s.index) && (index != 0 || best < 0) {
			best = i
		}
	}
	if a.first == 1 && (best < 0 || index == 0) {
		return fsm.NewState(), nil
	}
	if best < 0 {
		return nil, fmt.Errorf("no state of before entry %d is in %s: its log begins at %d, and its snapshots stand at %s",
			max(index, a.first), a.dir, a.first, a.standings())
	}
	s := a.snapshots[best]
	f, err := os.Open(s.path)
	if err != nil {
		return nil, fmt.Errorf("read a snapshot: %w", err)
	}
	defer f.Close()
	state := fsm.NewState()
	if err := state.Restore(f); err != nil {
		return nil, fmt.Errorf("snapshot %s: %w", s.path, err)
	}
	return state, nil
}

func (a *Archive) standings() string {
	if len(a.snapshots) == 0 {
		return "no index: there are none"
	}
	var out []string
	for _, s := range a.snapshots {
		out = append(out, strconv.FormatUint(s.index, 10))
	}
	return strings.Join(out, ", ")
}
