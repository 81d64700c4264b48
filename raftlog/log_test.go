package raftlog

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	"pgregory.net/rapid"
)

// small makes many segments of few entries.
func small() Options { return Options{SegmentBytes: 300, NoSync: true, LockTimeout: time.Millisecond} }

func open(t testing.TB, dir string, o Options) *Log {
	t.Helper()
	l, err := Open(dir, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// entry is one whose bytes follow from its index and term.
func entry(index, term uint64) *raft.Log {
	return &raft.Log{
		Index: index, Term: term, Type: raft.LogType(index % 6),
		Data: bytes.Repeat([]byte{byte(index)}, int(index%50)), Extensions: fmt.Append(nil, term), AppendedAt: time.Unix(int64(index), 5),
	}
}

func entries(from, to, term uint64) (out []*raft.Log) {
	for i := from; i <= to; i++ {
		out = append(out, entry(i, term))
	}
	return out
}

// fill stores entries of a term in writes of three.
func fill(t testing.TB, l *Log, from, to, term uint64) {
	t.Helper()
	for ; from <= to; from += 3 {
		if err := l.StoreLogs(entries(from, min(from+2, to), term)); err != nil {
			t.Fatal(err)
		}
	}
}

func equal(a, b *raft.Log) bool {
	return a.Index == b.Index && a.Term == b.Term && a.Type == b.Type && bytes.Equal(a.Data, b.Data) &&
		bytes.Equal(a.Extensions, b.Extensions) && a.AppendedAt.Equal(b.AppendedAt)
}

// model is the log as a slice.
type model struct{ entries []*raft.Log }

func (m *model) bounds() (first, last uint64) {
	if len(m.entries) == 0 {
		return 0, 0
	}
	return m.entries[0].Index, m.entries[len(m.entries)-1].Index
}

func (m *model) check(t *rapid.T, l *Log) {
	first, last := m.bounds()
	if got, err := l.FirstIndex(); got != first || err != nil {
		t.Fatalf("the first index is %d (%v), want %d", got, err, first)
	}
	if got, err := l.LastIndex(); got != last || err != nil {
		t.Fatalf("the last index is %d (%v), want %d", got, err, last)
	}
	for _, want := range m.entries {
		var got raft.Log
		if err := l.GetLog(want.Index, &got); err != nil || !equal(&got, want) {
			t.Fatalf("entry %d: %v, %+v", want.Index, err, got)
		}
	}
	for _, outside := range []uint64{first - 1, last + 1} {
		if err := l.GetLog(outside, new(raft.Log)); !errors.Is(err, raft.ErrLogNotFound) {
			t.Fatalf("entry %d outside of the log: %v", outside, err)
		}
	}
}

// TestLogIsASlice: whatever is stored, deleted and opened again in whatever
// order, the log holds what a slice would.
func TestLogIsASlice(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		dir, err := os.MkdirTemp("", "raftlog-")
		if err != nil {
			t.Fatal(err)
		}
		defer os.RemoveAll(dir)
		l, err := Open(dir, small())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = l.Close() }()
		m, term := &model{}, uint64(1)
		must := func(err error) {
			if err != nil {
				t.Fatal(err)
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"store": func(t *rapid.T) {
				_, last := m.bounds()
				batch := entries(last+1, last+uint64(rapid.IntRange(1, 12).Draw(t, "n")), term)
				must(l.StoreLogs(batch))
				m.entries = append(m.entries, batch...)
			},
			"jump": func(t *rapid.T) {
				_, last := m.bounds()
				e := entry(last+uint64(rapid.IntRange(2, 1000).Draw(t, "gap")), term)
				must(l.StoreLog(e))
				m.entries = []*raft.Log{e}
			},
			"wrong": func(t *rapid.T) {
				_, last := m.bounds()
				if last > 0 && l.StoreLog(entry(last, term)) == nil {
					t.Fatal("stored an entry twice")
				}
				if l.StoreLogs([]*raft.Log{entry(last+1, term), entry(last+3, term)}) == nil {
					t.Fatal("stored entries with a gap between them")
				}
			},
			"deleteBeginning": func(t *rapid.T) {
				first, last := m.bounds()
				if last == 0 {
					return
				}
				to := uint64(rapid.Uint64Range(first, last+2).Draw(t, "to"))
				must(l.DeleteRange(rapid.SampledFrom([]uint64{0, first}).Draw(t, "from"), to))
				m.entries = m.entries[min(to, last)-first+1:]
			},
			"deleteEnd": func(t *rapid.T) {
				first, last := m.bounds()
				if last == 0 {
					return
				}
				from := rapid.Uint64Range(first, last).Draw(t, "from")
				must(l.DeleteRange(from, last))
				m.entries = m.entries[:from-first]
				term++
			},
			"deleteMiddle": func(t *rapid.T) {
				first, last := m.bounds()
				if last-first > 2 && l.DeleteRange(first+1, last-1) == nil {
					t.Fatal("deleted a middle")
				}
			},
			"reopen": func(t *rapid.T) {
				must(l.Close())
				l, err = Open(dir, small())
				must(err)
				// Deleted beginnings may come back, up to the file's.
				if first, err := l.FirstIndex(); err == nil && len(m.entries) > 0 && first < m.entries[0].Index {
					must(l.DeleteRange(first, m.entries[0].Index-1))
				}
			},
			"": func(t *rapid.T) { m.check(t, l) },
		})
	})
}

func TestOneWriterAtATime(t *testing.T) {
	dir := t.TempDir()
	l := open(t, dir, small())
	fill(t, l, 1, 5, 1)
	for _, readOnly := range []bool{false, true} {
		o := small()
		o.ReadOnly = readOnly
		if _, err := Open(dir, o); !errors.Is(err, ErrInUse) {
			t.Errorf("opened twice: %v", err)
		}
	}
	if err := errors.Join(l.Close(), l.Close()); err != nil {
		t.Fatal(err)
	}
	if err := l.StoreLog(entry(6, 1)); err == nil {
		t.Error("a closed log was written")
	}
	o := small()
	o.ReadOnly = true
	a, b := open(t, dir, o), open(t, dir, o)
	if last, err := a.LastIndex(); last != 5 || err != nil {
		t.Error(last, err)
	}
	if b.StoreLog(entry(6, 1)) == nil || b.DeleteRange(1, 5) == nil {
		t.Error("a log that is open for reading was written")
	}
}

// files are the segments, oldest first.
func files(t testing.TB, dir string) []string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(dir, "*"+extension))
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// TestWriteThatWasCutOff: wherever the last write stops, what was written before
// it is there and the log goes on.
func TestWriteThatWasCutOff(t *testing.T) {
	origin := t.TempDir()
	o := small()
	o.SegmentBytes = 1 << 20
	l := open(t, origin, o)
	fill(t, l, 1, 9, 1)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	name := filepath.Base(files(t, origin)[0])
	before, err := os.ReadFile(filepath.Join(origin, name))
	if err != nil {
		t.Fatal(err)
	}
	l = open(t, origin, o)
	if err := errors.Join(l.StoreLogs(entries(10, 12, 1)), l.Close()); err != nil {
		t.Fatal(err)
	}
	after, err := os.ReadFile(filepath.Join(origin, name))
	if err != nil {
		t.Fatal(err)
	}
	for cut := len(before); cut <= len(after); cut++ {
		for _, zeroed := range []bool{false, true} {
			torn := bytes.Clone(after[:cut])
			if zeroed { // the length was kept, and the bytes were not
				torn = append(torn, make([]byte, len(after)-cut)...)
			}
			dir := t.TempDir()
			if err := os.WriteFile(filepath.Join(dir, name), torn, 0o600); err != nil {
				t.Fatal(err)
			}
			o.Acknowledged = 9
			l := open(t, dir, o)
			last, err := l.LastIndex()
			if err != nil || last < 9 || last > 12 {
				t.Fatalf("cut at %d: the log ends at %d, %v", cut, last, err)
			}
			fill(t, l, last+1, last+5, 2)
			if err := l.Close(); err != nil {
				t.Fatal(err)
			}
			o.Acknowledged = last + 5
			l = open(t, dir, o)
			var got raft.Log
			if err := l.GetLog(last+1, &got); err != nil || got.Term != 2 {
				t.Fatalf("cut at %d: %+v, %v", cut, got, err)
			}
		}
	}
}

// TestAcknowledgedIsNotCutOff: the same damage at an entry that is known to have
// been stored, or before a later write, is damage.
func TestAcknowledgedIsNotCutOff(t *testing.T) {
	for name, c := range map[string]struct {
		acknowledged uint64
		entry        uint64
		want         bool
	}{
		"of the last write, not acknowledged": {0, 12, false},
		"of the last write, acknowledged":     {12, 12, true},
		"of an earlier write":                 {0, 8, true},
		"the first":                           {0, 1, true},
	} {
		dir := t.TempDir()
		o := small()
		o.SegmentBytes = 1 << 20
		l := open(t, dir, o)
		fill(t, l, 1, 12, 1)
		at := l.segments[0].offsets[c.entry-1] + 10
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		flip(t, files(t, dir)[0], at)
		o.Acknowledged = c.acknowledged
		_, err := Open(dir, o)
		var damage *DamageError
		if errors.As(err, &damage) != c.want || c.want && damage.Entry != c.entry {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func flip(t testing.TB, file string, at int64) {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	b[at] ^= 1
	if err := os.WriteFile(file, b, 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestRotWhileOpen: a read tells what the disk did since the log was opened.
func TestRotWhileOpen(t *testing.T) {
	dir := t.TempDir()
	l := open(t, dir, small())
	fill(t, l, 1, 30, 1)
	flip(t, files(t, dir)[0], l.segments[0].offsets[1]+20)
	var damage *DamageError
	if err := l.GetLog(2, new(raft.Log)); !errors.As(err, &damage) || damage.Entry != 2 || damage.File != files(t, dir)[0] {
		t.Errorf("%v", err)
	}
	if err := os.Truncate(files(t, dir)[0], 40); err != nil {
		t.Fatal(err)
	}
	if err := l.GetLog(1, new(raft.Log)); !errors.As(err, &damage) {
		t.Errorf("%v", err)
	}
}

func TestMissingFileIsDamage(t *testing.T) {
	dir := t.TempDir()
	l := open(t, dir, small())
	fill(t, l, 1, 60, 1)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(files(t, dir)[2]); err != nil {
		t.Fatal(err)
	}
	_, err := Open(dir, small())
	if err == nil || !strings.Contains(err.Error(), "are missing before it") {
		t.Error(err)
	}
}

func TestNewerFormatIsTold(t *testing.T) {
	dir := t.TempDir()
	h := append(head(1, format+1), "whatever comes then"...)
	if err := os.WriteFile(segmentPath(dir, 1), h, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(dir, small()); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("it has format %d", format+1)) {
		t.Error(err)
	}
}

func FuzzOpen(f *testing.F) {
	dir := f.TempDir()
	o := small()
	o.SegmentBytes = 1 << 20
	l := open(f, dir, o)
	fill(f, l, 1, 8, 1)
	if err := l.Close(); err != nil {
		f.Fatal(err)
	}
	seed, err := os.ReadFile(files(f, dir)[0])
	if err != nil {
		f.Fatal(err)
	}
	f.Add(seed)
	f.Add(seed[:len(seed)/2])
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		dir := t.TempDir()
		if err := os.WriteFile(segmentPath(dir, 1), b, 0o600); err != nil {
			t.Fatal(err)
		}
		l, err := Open(dir, o)
		if err != nil {
			return
		}
		defer l.Close()
		last, err := l.LastIndex()
		if err != nil {
			t.Fatal(err)
		}
		for i := uint64(1); i <= last; i++ {
			if err := l.GetLog(i, new(raft.Log)); err != nil {
				t.Fatal(err)
			}
		}
		if err := l.StoreLog(entry(last+1, 9)); err != nil {
			t.Fatal(err)
		}
	})
}
