package raftlog

import (
	"errors"
	"os"

	"testing"

	"github.com/hashicorp/raft"
)

// ofFormat1 writes a file as versions did that knew no other format.
func ofFormat1(t *testing.T, dir string, entries []*raft.Log) {
	t.Helper()
	b, s := head(entries[0].Index, 1), &segment{}
	for _, e := range entries {
		b = s.appendFrame(b, e, e.Index)
	}
	if err := os.WriteFile(segmentPath(dir, entries[0].Index), b, 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestFilesOfTheFormatBeforeAreRead: they are read and written to their end, and new ones have the newest format.
func TestFilesOfTheFormatBeforeAreRead(t *testing.T) {
	dir := t.TempDir()
	ofFormat1(t, dir, entries(1, 5, 1))
	o := small()
	o.SegmentBytes = 1000
	for last := uint64(5); last < 40; last += 5 {
		l := open(t, dir, o)
		fill(t, l, last+1, last+5, 2)
		for i := uint64(1); i <= last+5; i++ {
			term := uint64(1)
			if i > 5 {
				term = 2
			}
			var got raft.Log
			if err := l.GetLog(i, &got); err != nil || !equal(&got, entry(i, term)) {
				t.Fatalf("entry %d: %+v, %v", i, got, err)
			}
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		o.Acknowledged = last + 5
	}
	l := open(t, dir, o)
	if n := len(l.segments); n < 2 || l.segments[0].seed != nil || len(l.segments[n-1].seed) != seedBytes {
		t.Errorf("there are %d files", n)
	}
}

// TestTornHeader: a header that was cut off anywhere is that of a file in which nothing was.
func TestTornHeader(t *testing.T) {
	for cut := range headerBytes {
		dir := t.TempDir()
		l := open(t, dir, small())
		fill(t, l, 1, 3, 1)
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(segmentPath(dir, 4), header(4, newSeed())[:cut], 0o600); err != nil {
			t.Fatal(err)
		}
		o := small()
		o.Acknowledged = 3
		l = open(t, dir, o)
		fill(t, l, 4, 6, 1)
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestForgedFrames: what a user has put into an entry is no proof of a later write, so a write of it that is cut off is one that is cut off.
func TestForgedFrames(t *testing.T) {
	var forged []byte
	for write := uint64(1); write < 200; write++ {
		forged = new(segment).appendFrame(forged, &raft.Log{Index: write + 1, Term: 9}, write)
	}
	dir := t.TempDir()
	o := small()
	o.SegmentBytes, o.Acknowledged = 1<<20, 6
	l := open(t, dir, o)
	fill(t, l, 1, 6, 1)
	torn := l.segments[0].end
	if err := l.StoreLogs([]*raft.Log{{Index: 7, Term: 1, Data: append(make([]byte, 10_000), forged...)}}); err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	flip(t, files(t, dir)[0], torn+5000) // a page of the write never reached the disk
	l = open(t, dir, o)
	if last, err := l.LastIndex(); err != nil || last != 6 {
		t.Errorf("the log ends at %d, %v", last, err)
	}
	// A true later write is.
	if err := errors.Join(l.StoreLogs(entries(7, 7, 1)), l.StoreLogs(entries(8, 8, 1)), l.Close()); err != nil {
		t.Fatal(err)
	}
	flip(t, files(t, dir)[0], torn+10)
	var damage *DamageError
	if _, err := Open(dir, o); !errors.As(err, &damage) {
		t.Errorf("%v", err)
	}
}
