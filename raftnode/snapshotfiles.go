package raftnode

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"hash/crc64"
	"io"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"

	"github.com/berth-dev/berth/atomicfile"
	"github.com/berth-dev/berth/disk"
)

// snapshotFiles keeps the newest snapshots, each in a directory of its own. A
// snapshot is in one of a name that ends in unfinishedSuffix until everything of it
// is on the disk.
type snapshotFiles struct {
	files  atomicfile.Files
	dir    string
	logger hclog.Logger

	mu      sync.Mutex
	writing map[string]bool // the directories of snapshots that are being written: the library writes one and is sent another at a time
}

// snapshotRecord is what stands in a snapshot's meta.json.
type snapshotRecord struct {
	raft.SnapshotMeta
	CRC []byte // CRC-64 (ECMA) of state.bin
}

func stateSum() hash.Hash64 { return crc64.New(crc64.MakeTable(crc64.ECMA)) }

// Create implements raft.SnapshotStore.
func (s *snapshotFiles) Create(version raft.SnapshotVersion, index, term uint64, c raft.Configuration, cIndex uint64, _ raft.Transport) (raft.SnapshotSink, error) {
	if version != raft.SnapshotVersionMax {
		return nil, fmt.Errorf("snapshots of version %d are not known", version)
	}
	id := fmt.Sprintf("%d-%d-%s", term, index, time.Now().UTC().Format("20060102150405.000"))
	sink := &snapshotFile{store: s, dir: filepath.Join(s.dir, id+unfinishedSuffix), sum: stateSum(), record: snapshotRecord{
		SnapshotMeta: raft.SnapshotMeta{Version: version, ID: id, Index: index, Term: term, Configuration: c, ConfigurationIndex: cIndex},
	}}
	s.logger.Info("creating new snapshot", "path", sink.dir)
	s.begin(sink.dir)
	err := disk.MkdirAll(s.files, sink.dir, 0o755)
	if err == nil {
		sink.state, err = disk.Create(s.files, filepath.Join(sink.dir, snapshotState), 0o600)
	}
	if err != nil {
		defer s.end(sink.dir)
		return nil, fmt.Errorf("create a snapshot: %w", errors.Join(err, disk.RemoveAll(s.files, sink.dir)))
	}
	sink.out = bufio.NewWriterSize(io.MultiWriter(&pieces{to: sink.state}, sink.sum), 256<<10)
	return sink, nil
}

func (s *snapshotFiles) begin(dir string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.writing == nil {
		s.writing = map[string]bool{}
	}
	s.writing[dir] = true
}

func (s *snapshotFiles) end(dir string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.writing, dir)
}

func (s *snapshotFiles) isWriting(dir string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.writing[dir]
}

// all are the finished snapshots, newest first.
func (s *snapshotFiles) all() ([]snapshotRecord, error) {
	entries, err := s.files.ReadDir(s.dir)
	if err != nil {
		return nil, err
	}
	var out []snapshotRecord
	for _, e := range entries {
		if !e.IsDir() || strings.HasSuffix(e.Name(), unfinishedSuffix) {
			continue
		}
		r, err := s.record(e.Name())
		if err != nil {
			s.logger.Warn("what is known of a snapshot can not be read", "name", e.Name(), "error", err)
			continue
		}
		out = append(out, *r)
	}
	slices.SortFunc(out, func(a, b snapshotRecord) int {
		return cmp.Or(cmp.Compare(b.Term, a.Term), cmp.Compare(b.Index, a.Index), cmp.Compare(b.ID, a.ID))
	})
	return out, nil
}

func (s *snapshotFiles) record(id string) (*snapshotRecord, error) {
	b, err := disk.ReadFile(s.files, filepath.Join(s.dir, id, snapshotMeta), maxMetaBytes)
	if err != nil {
		return nil, err
	}
	r := new(snapshotRecord)
	if err := json.Unmarshal(b, r); err != nil {
		return nil, err
	}
	return r, nil
}

// List implements raft.SnapshotStore.
func (s *snapshotFiles) List() ([]*raft.SnapshotMeta, error) {
	all, err := s.all()
	if err != nil {
		return nil, err
	}
	var out []*raft.SnapshotMeta
	for i := range all {
		out = append(out, &all[i].SnapshotMeta)
	}
	return out, nil
}

// Open implements raft.SnapshotStore. Every byte is checked before the first is
// given out.
func (s *snapshotFiles) Open(id string) (*raft.SnapshotMeta, io.ReadCloser, error) {
	r, err := s.record(id)
	if err != nil {
		return nil, nil, err
	}
	path := filepath.Join(s.dir, id, snapshotState)
	f, err := disk.Open(s.files, path)
	if err != nil {
		return nil, nil, err
	}
	sum := stateSum()
	if _, err := io.Copy(sum, f); err != nil {
		return nil, nil, errors.Join(err, f.Close())
	}
	if !bytes.Equal(sum.Sum(nil), r.CRC) {
		return nil, nil, errors.Join(fmt.Errorf("%s: its checksum is wrong", path), f.Close())
	}
	return &r.SnapshotMeta, &openSnapshot{bufio.NewReaderSize(io.NewSectionReader(f, 0, r.Size), 256<<10), f}, nil
}

type openSnapshot struct {
	io.Reader
	io.Closer
}

// reap removes all but the newest and the one that was just written, which reaches less far than others where a cluster
// goes on without what those have; and what a removal that failed, or a snapshot that was never finished, has left behind.
func (s *snapshotFiles) reap(written string) error {
	all, err := s.all()
	if err != nil {
		return err
	}
	var failed []error
	for _, r := range all[min(len(all), retainedSnapshots):] {
		if r.ID != written {
			failed = append(failed, discardSnapshot(s.files, s.dir, r.ID))
		}
	}
	return errors.Join(append(failed, s.sweep())...)
}

// sweep removes what is not finished and not being written.
func (s *snapshotFiles) sweep() error {
	entries, err := s.files.ReadDir(s.dir)
	if err != nil {
		return err
	}
	var failed []error
	for _, e := range entries {
		if dir := filepath.Join(s.dir, e.Name()); e.IsDir() && strings.HasSuffix(e.Name(), unfinishedSuffix) && !s.isWriting(dir) {
			failed = append(failed, disk.RemoveAll(s.files, dir))
		}
	}
	return errors.Join(failed...)
}

// discardSnapshot removes a finished snapshot, which somebody else may be removing. A start that comes in its midst finds one that was never
// finished, and not one that has lost a file. What it fails to remove is removed with the next snapshot.
func discardSnapshot(files atomicfile.Files, dir, id string) error {
	gone := filepath.Join(dir, id+unfinishedSuffix)
	if err := files.Rename(filepath.Join(dir, id), gone); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return disk.RemoveAll(files, gone)
}

// snapshotPiece is how much of a snapshot is written before it is synced: a sync of all of it at its end may take a disk longer than
// any that does not hang.
const snapshotPiece = 64 << 20

// pieces syncs what is written to a file, a piece at a time.
type pieces struct {
	to    disk.File
	since int // bytes since the last piece
}

// Write implements io.Writer.
func (p *pieces) Write(b []byte) (int, error) {
	n, err := p.to.Write(b)
	if p.since += n; err == nil && p.since >= snapshotPiece {
		p.since, err = 0, p.to.Sync()
	}
	return n, err
}

// snapshotFile is one that is being written.
type snapshotFile struct {
	store  *snapshotFiles
	dir    string
	record snapshotRecord
	state  disk.File
	sum    hash.Hash64
	out    *bufio.Writer
	closed bool
}

// ID implements raft.SnapshotSink.
func (f *snapshotFile) ID() string { return f.record.ID }

// Write implements io.Writer.
func (f *snapshotFile) Write(b []byte) (int, error) { return f.out.Write(b) }

// Close implements raft.SnapshotSink: the snapshot is finished. It counts whether older ones can be removed or not, or else the log would
// grow beside them.
func (f *snapshotFile) Close() error {
	if f.closed {
		return nil
	}
	f.closed = true
	defer f.store.end(f.dir)
	if err := f.finish(); err != nil {
		return errors.Join(fmt.Errorf("finish snapshot %s: %w", f.record.ID, err), disk.RemoveAll(f.store.files, f.dir))
	}
	if err := f.store.reap(f.record.ID); err != nil {
		f.store.logger.Warn("older snapshots can not be removed; it is tried again with the next one", "error", err)
	}
	return nil
}

func (f *snapshotFile) finish() error {
	err := f.out.Flush()
	if err == nil {
		err = f.state.Sync()
	}
	st, statErr := f.state.Stat()
	if err := errors.Join(err, statErr, f.state.Close()); err != nil {
		return err
	}
	f.record.Size, f.record.CRC = st.Size(), f.sum.Sum(nil)
	b, err := json.Marshal(&f.record)
	if err != nil {
		return err
	}
	d := f.store.files
	if err := d.Write(filepath.Join(f.dir, snapshotMeta), append(b, '\n'), 0o600); err != nil { // syncs the names in dir
		return err
	}
	return d.Rename(f.dir, strings.TrimSuffix(f.dir, unfinishedSuffix))
}

// Cancel implements raft.SnapshotSink: there is no snapshot.
func (f *snapshotFile) Cancel() error {
	if f.closed {
		return nil
	}
	f.closed = true
	defer f.store.end(f.dir)
	return errors.Join(f.state.Close(), disk.RemoveAll(f.store.files, f.dir))
}
