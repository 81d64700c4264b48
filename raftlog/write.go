package raftlog

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"slices"

	"github.com/hashicorp/raft"

	"github.com/berth-dev/berth/disk"
)

// keptBuffer is how large a write may be for its memory to be kept for the next.
const keptBuffer = 1 << 20

// StoreLog implements raft.LogStore.
func (l *Log) StoreLog(entry *raft.Log) error { return l.StoreLogs([]*raft.Log{entry}) }

// StoreLogs implements raft.LogStore: one write and one sync, whatever the
// number of entries. Entries that do not follow the last one follow a snapshot,
// which has all that there is: it is dropped. After an error nobody knows what
// the files hold; the log is not to be written again.
func (l *Log) StoreLogs(entries []*raft.Log) error {
	if len(entries) == 0 {
		return nil
	}
	l.writing.Lock()
	defer l.writing.Unlock()
	if err := l.writable(); err != nil {
		return err
	}
	first := entries[0].Index
	for i, e := range entries {
		if e.Index != first+uint64(i) {
			return fmt.Errorf("store log entries: %d follows %d", e.Index, first+uint64(i)-1)
		}
		if len(e.Data)+len(e.Extensions) > math.MaxInt32 {
			return fmt.Errorf("store log entry %d: it has %d bytes", e.Index, len(e.Data))
		}
	}
	switch last := l.lastIndex(); {
	case first == 0 || last > 0 && first <= last:
		return fmt.Errorf("store log entry %d: the log goes to %d", first, last)
	case last > 0 && first > last+1:
		if err := l.deleteAll(); err != nil {
			return err
		}
	}
	s, err := l.tail(first)
	if err != nil {
		return err
	}
	l.buffer = l.buffer[:0]
	offsets := make([]int64, len(entries))
	for i, e := range entries {
		offsets[i] = s.end + int64(len(l.buffer))
		l.buffer = s.appendFrame(l.buffer, e, first)
	}
	l.makeRoom(s, int64(len(l.buffer)))
	_, err = s.file.WriteAt(l.buffer, s.end)
	if err == nil {
		err = l.sync(s.file)
	}
	if err != nil {
		if named := new(fs.PathError); errors.As(err, &named) {
			return err // it says where
		}
		return fmt.Errorf("write %s: %w", s.path, err)
	}
	l.mu.Lock()
	s.offsets = append(s.offsets, offsets...)
	s.end += int64(len(l.buffer))
	if l.first == 0 {
		l.first = first
	}
	l.mu.Unlock()
	if cap(l.buffer) > keptBuffer {
		l.buffer = nil
	}
	return nil
}

func (l *Log) writable() error {
	l.mu.RLock()
	defer l.mu.RUnlock()
	if l.options.ReadOnly {
		return errors.New("the log is open for reading only")
	}
	return l.usable()
}

// tail is the segment that the entry at next goes into.
func (l *Log) tail(next uint64) (*segment, error) {
	if n := len(l.segments); n > 0 {
		newest := l.segments[n-1]
		if newest.end < l.options.SegmentBytes {
			return newest, nil
		}
		if err := l.truncate(newest, len(newest.offsets)); err != nil {
			return nil, err
		}
	}
	s := &segment{path: segmentPath(l.dir, next), first: next, seed: newSeed(), end: int64(headerBytes), size: int64(headerBytes)}
	var err error
	if s.file, err = l.options.Disk.OpenFile(s.path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600); err != nil {
		return nil, fmt.Errorf("begin a file of the log: %w", err)
	}
	if _, err = s.file.WriteAt(header(next, s.seed), 0); err == nil {
		err = l.sync(s.file)
	}
	if err == nil {
		err = l.syncDir()
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("begin %s: %w", s.path, err), s.file.Close())
	}
	l.mu.Lock()
	l.segments = append(l.segments, s)
	l.mu.Unlock()
	return s, nil
}

// roomBytes is by how much a file grows at a time.
const roomBytes = 4 << 20

// makeRoom lets a file grow by more than is written now: the file system then has
// less to note with every write. Where it can not, the write itself makes the
// file grow, or says why it does not.
func (l *Log) makeRoom(s *segment, need int64) {
	if s.end+need <= s.size {
		return
	}
	room := min(max(need, roomBytes), max(need, l.options.SegmentBytes-s.end))
	if err := s.file.Reserve(s.end + room); err != nil {
		s.size = s.end + need
		return
	}
	s.size = s.end + room
}

func (l *Log) syncDir() error {
	if l.options.NoSync {
		return nil
	}
	return disk.SyncDir(l.options.Disk, l.dir)
}

// DeleteRange implements raft.LogStore. What is deleted must be the beginning or
// the end of the log. A beginning is given back to the disk by whole files: after
// a restart the log may reach further back again, with entries that are as good.
func (l *Log) DeleteRange(from, to uint64) error {
	l.writing.Lock()
	defer l.writing.Unlock()
	if err := l.writable(); err != nil {
		return err
	}
	first, last := l.first, l.lastIndex()
	switch {
	case first == 0 || from > to || to < first || from > last:
		return nil
	case from <= first && to >= last:
		return l.deleteAll()
	case from <= first:
		return l.deleteBefore(to + 1)
	case to >= last:
		return l.deleteFrom(from)
	}
	return fmt.Errorf("delete log entries %d to %d of %d to %d: only a beginning or an end can be", from, to, first, last)
}

func (l *Log) deleteBefore(index uint64) error {
	gone := l.segments[:l.holder(index)]
	l.mu.Lock()
	l.segments = l.segments[len(gone):]
	l.first = index
	l.mu.Unlock()
	// The oldest file first: if that is cut off, what is left has no gap.
	return l.remove(slices.Clone(gone))
}

func (l *Log) deleteFrom(index uint64) error {
	at := l.holder(index)
	s := l.segments[at]
	keep := int(index - s.first)
	if keep == 0 { // of this one nothing is left
		at--
		s = l.segments[at]
		keep = len(s.offsets)
	}
	l.mu.Lock()
	gone := l.segments[at+1:]
	l.segments = l.segments[:at+1]
	l.mu.Unlock()
	if err := l.remove(newestFirst(gone)); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.truncate(s, keep)
}

func (l *Log) deleteAll() error {
	l.mu.Lock()
	gone := l.segments
	l.segments, l.first = nil, 0
	l.mu.Unlock()
	return l.remove(newestFirst(gone))
}

func newestFirst(s []*segment) []*segment {
	s = slices.Clone(s)
	slices.Reverse(s)
	return s
}

// remove takes files away that are no longer part of the log, one after the
// other.
func (l *Log) remove(gone []*segment) error {
	for _, s := range gone {
		if err := errors.Join(s.file.Close(), l.options.Disk.Remove(s.path), l.syncDir()); err != nil {
			return fmt.Errorf("remove %s: %w", s.path, err)
		}
	}
	return nil
}
