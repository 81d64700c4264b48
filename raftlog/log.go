package raftlog

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/berth-dev/berth/atomicfile"
	"github.com/berth-dev/berth/disk"
)

// Options say how a log is opened. Zero values mean the defaults.
type Options struct {
	// Acknowledged is the last entry that is known to have been stored: a
	// damaged frame up to it is damage, one beyond it a write that was cut
	// off. Without NoRepair such a write is removed.
	Acknowledged uint64
	// ReadOnly changes nothing, and lets others read at the same time.
	ReadOnly bool
	// SegmentBytes is the size from which on the next entry begins a new file
	// (64 MiB).
	SegmentBytes int64
	// LockTimeout is how long to wait for another process to let go (1 s).
	LockTimeout time.Duration
	NoSync      bool // tests only: a crash may lose what was stored
	// Disk has the directory; nil: the machine's.
	Disk disk.Disk
}

// Log is a log in a directory. Its methods may be called by several goroutines;
// writes wait for one another and hold up no reads but for a moment.
type Log struct {
	dir     string
	options Options
	lock    disk.File

	writing sync.Mutex // held by whoever changes files
	buffer  []byte     // under writing

	mu       sync.RWMutex // the fields below, and the segments' own
	segments []*segment   // without gaps, oldest first; all but the last have entries
	first    uint64       // of the entries that count; those before it in the oldest segment are deleted
	closed   bool
}

var (
	_ raft.LogStore          = (*Log)(nil)
	_ raft.MonotonicLogStore = (*Log)(nil)
)

// Open opens the log in a directory, which is made if need be, and checks every
// byte of it. Errors are *DamageError, ErrInUse, or the system's.
func Open(dir string, o Options) (_ *Log, err error) {
	if o.SegmentBytes == 0 {
		o.SegmentBytes = 64 << 20
	}
	if o.LockTimeout == 0 {
		o.LockTimeout = time.Second
	}
	if o.Disk == nil {
		o.Disk = disk.OS{}
	}
	l := &Log{dir: dir, options: o}
	if !o.ReadOnly {
		if err := disk.MkdirAll(o.Disk, dir, 0o700); err != nil {
			return nil, err
		}
	}
	if l.lock, err = Lock(o.Disk, dir, o.ReadOnly, o.LockTimeout); err != nil {
		return nil, err
	}
	if err := l.load(); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// load opens and checks all segments.
func (l *Log) load() error {
	entries, err := l.options.Disk.ReadDir(l.dir)
	if err != nil {
		return err
	}
	var firsts []uint64
	for _, e := range entries {
		if first, ok := firstOf(e.Name()); ok {
			firsts = append(firsts, first)
		}
	}
	slices.Sort(firsts)
	for i, first := range firsts {
		if n := len(l.segments); n > 0 && l.segments[n-1].last()+1 != first {
			missing := l.segments[n-1].last() + 1
			return &DamageError{segmentPath(l.dir, first), 0, 0,
				fmt.Sprintf("it begins at log entry %d, and entries from %d on are missing before it", first, missing)}
		}
		kept, err := l.loadSegment(first, i == len(firsts)-1)
		if err != nil {
			return err
		}
		if i == 0 && kept {
			l.first = first
		}
	}
	return l.secure()
}

// secure has what was read be on the disk. A process that was killed may have written it and not synced it; whoever acknowledges it now must
// still have it after a loss of power.
func (l *Log) secure() error {
	if l.options.ReadOnly {
		return nil
	}
	for _, s := range l.segments {
		if err := l.sync(s.file); err != nil {
			return fmt.Errorf("sync %s: %w", s.path, err)
		}
	}
	return l.syncDir()
}

// loadSegment opens and checks a segment. The last one may end in a write that
// was cut off; if nothing else is in it, it is not kept.
func (l *Log) loadSegment(first uint64, newest bool) (kept bool, err error) {
	path := segmentPath(l.dir, first)
	s, r, err := openSegment(l.options.Disk, path, first, !l.options.ReadOnly)
	if errors.Is(err, errUnbegun) {
		if newest && first > l.options.Acknowledged {
			return false, l.discard(path)
		}
		err = &DamageError{path, 0, 0, err.Error()}
	}
	if err != nil {
		return false, err
	}
	l.segments = append(l.segments, s)
	var entry raft.Log
	for err == nil {
		err = r.next(&entry)
	}
	switch {
	case errors.Is(err, io.EOF):
	case newest && r.cutOff(err, l.options.Acknowledged):
		if err := l.truncate(s, len(s.offsets)); err != nil {
			return false, err
		}
	default:
		return false, err
	}
	switch {
	case len(s.offsets) > 0:
		return true, nil
	case !newest:
		return false, &DamageError{path, s.end, first, "the file ends before it"}
	}
	l.segments = l.segments[:len(l.segments)-1]
	return false, errors.Join(s.file.Close(), l.discard(path))
}

func (l *Log) discard(path string) error {
	if l.options.ReadOnly {
		return nil
	}
	return atomicfile.Files{Disk: l.options.Disk}.Remove(path)
}

// truncate leaves a segment its first entries.
func (l *Log) truncate(s *segment, entries int) error {
	if entries < len(s.offsets) {
		s.end = s.offsets[entries]
		s.offsets = s.offsets[:entries]
	}
	if l.options.ReadOnly {
		return nil
	}
	if err := s.file.Truncate(s.end); err != nil {
		return fmt.Errorf("cut %s: %w", s.path, err)
	}
	s.size = s.end
	return l.sync(s.file)
}

func (l *Log) sync(f disk.File) error {
	if l.options.NoSync {
		return nil
	}
	return f.Sync()
}

// Close ends the use of the log.
func (l *Log) Close() error {
	l.writing.Lock()
	defer l.writing.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil
	}
	l.closed = true
	var errs []error
	for _, s := range l.segments {
		errs = append(errs, s.file.Close())
	}
	return errors.Join(append(errs, l.lock.Close())...)
}

// IsMonotonic implements raft.MonotonicLogStore: there are no gaps.
func (l *Log) IsMonotonic() bool { return true }

// FirstIndex implements raft.LogStore.
func (l *Log) FirstIndex() (uint64, error) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.first, l.usable()
}

// LastIndex implements raft.LogStore.
func (l *Log) LastIndex() (uint64, error) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.lastIndex(), l.usable()
}

func (l *Log) usable() error {
	if l.closed {
		return os.ErrClosed
	}
	return nil
}

// lastIndex is called with mu or writing held.
func (l *Log) lastIndex() uint64 {
	if l.first == 0 {
		return 0
	}
	return l.segments[len(l.segments)-1].last()
}

// GetLog implements raft.LogStore.
func (l *Log) GetLog(index uint64, into *raft.Log) error {
	l.mu.RLock()
	defer l.mu.RUnlock()
	if err := l.usable(); err != nil {
		return err
	}
	if l.first == 0 || index < l.first || index > l.lastIndex() {
		return raft.ErrLogNotFound
	}
	return l.segments[l.holder(index)].read(index, into)
}

// holder is the place of the segment that an entry is in. It is called with mu
// or writing held.
func (l *Log) holder(index uint64) int {
	at, exact := slices.BinarySearchFunc(l.segments, index, func(s *segment, index uint64) int {
		switch {
		case s.first < index:
			return -1
		case s.first > index:
			return 1
		}
		return 0
	})
	if exact {
		return at
	}
	return at - 1
}
