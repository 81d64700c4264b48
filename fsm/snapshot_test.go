package fsm

import (
	"bytes"
	"errors"
	"io"
	"testing"

	"github.com/berth-dev/berth/store"
)

func snapshotOf(t *testing.T, v *View) []byte {
	t.Helper()
	var buf bytes.Buffer
	if err := v.Write(&buf); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

// TestDamagedSnapshots: a snapshot with one wrong bit, or that ends anywhere
// before its end, is refused, and the state stays as it was.
func TestDamagedSnapshots(t *testing.T) {
	whole := snapshotOf(t, inhabited(t).View())
	s := NewState()
	before := s.View().Digest()
	refused := func(what string, at int, b []byte) {
		if err := s.Restore(bytes.NewReader(b)); !errors.Is(err, store.ErrSnapshot) {
			t.Fatalf("%s at %d of %d: %v", what, at, len(whole), err)
		}
		if s.View().Digest() != before {
			t.Fatalf("%s at %d: the state changed", what, at)
		}
	}
	for i := range whole {
		b := bytes.Clone(whole)
		b[i] ^= 1 << (i % 8)
		refused("a wrong bit", i, b)
		if i%7 == 0 {
			refused("an end", i, whole[:i])
		}
	}
	if err := s.Restore(bytes.NewReader(whole)); err != nil {
		t.Fatal(err)
	}
}

// TestSnapshotIsOfItsView: what happens while a snapshot is written is not in
// it.
func TestSnapshotIsOfItsView(t *testing.T) {
	s := inhabited(t)
	v := s.View()
	want := snapshotOf(t, v)
	s.Try(0, Proposal{Command: &DeleteNode{Name: "n1"}}, Proposal{Command: &DeletePod{Key: "default/web"}})
	if !bytes.Equal(want, snapshotOf(t, v)) {
		t.Error("the snapshot of a view changed with the state")
	}
}

// TestVersionNeverGoesBack: what an entry says of it lasts, also over a snapshot.
func TestVersionNeverGoesBack(t *testing.T) {
	s := NewState()
	for i, tt := range []struct{ entry, want int }{{0, 0}, {1, 1}, {0, 1}, {LogVersion, LogVersion}, {1, LogVersion}} {
		entry, err := EncodeEntry(Header{Version: tt.entry}, nil)
		if err != nil {
			t.Fatal(err)
		}
		before := s.View().Digest()
		if _, err := s.Apply(uint64(i+1), 1, entry); err != nil {
			t.Fatal(err)
		}
		raised := i > 0 && tt.want > s.View().Version()
		if got := s.View().Version(); got != tt.want || restoredFrom(t, s.View()).View().Version() != got {
			t.Errorf("after an entry of version %d: %d, want %d", tt.entry, got, tt.want)
		}
		if raised && s.View().Digest() == before {
			t.Errorf("version %d is not in the digest", tt.want)
		}
	}
}

func TestSnapshotGoesOnAtARevision(t *testing.T) {
	v := inhabited(t).View()
	var buf bytes.Buffer
	if err := v.WriteAt(&buf, v.Revision()+1000); err != nil {
		t.Fatal(err)
	}
	b := buf.Bytes()
	s := NewState()
	if err := s.Restore(bytes.NewReader(b)); err != nil {
		t.Fatal(err)
	}
	got := s.View()
	if got.Revision() != v.Revision()+1000 || got.Index() != v.Index() || got.TimeUnixNano() != v.TimeUnixNano() || got.Version() != v.Version() {
		t.Errorf("the state goes on at revision %d, entry %d, time %d, version %d; the snapshot was to be at revision %d, entry %d, time %d, version %d",
			got.Revision(), got.Index(), got.TimeUnixNano(), got.Version(), v.Revision()+1000, v.Index(), v.TimeUnixNano(), v.Version())
	}
	if err := NewState().Restore(bytes.NewReader([]byte("something else entirely"))); !errors.Is(err, store.ErrSnapshot) {
		t.Errorf("no snapshot: %v", err)
	}
}

// TestSnapshotWriteFails: a full disk is told.
func TestSnapshotWriteFails(t *testing.T) {
	v := inhabited(t).View()
	size := len(snapshotOf(t, v))
	for _, room := range []int{0, 100, size - 1} {
		if err := v.Write(&limited{room}); !errors.Is(err, io.ErrShortWrite) {
			t.Errorf("room for %d of %d bytes: %v", room, size, err)
		}
	}
}

type limited struct{ left int }

func (l *limited) Write(b []byte) (int, error) {
	if len(b) > l.left {
		return 0, io.ErrShortWrite
	}
	l.left -= len(b)
	return len(b), nil
}

func TestCheckpointsAreKeptForAWhile(t *testing.T) {
	w := newTranscript(t)
	w.quiet = true
	var at []uint64
	var digests []string
	for range keptCheckpoints + 2 {
		w.apply(&Checkpoint{})
		at, digests = append(at, w.index), append(digests, w.view().Digest())
		w.line("node n1 cpu=1")
	}
	for i, index := range at {
		v, ok := w.state.Checkpoint(index)
		if kept := i >= 2; ok != kept || kept && v.Digest() != digests[i] {
			t.Errorf("checkpoint %d of %d: kept %t", i, len(at), ok)
		}
	}
}
