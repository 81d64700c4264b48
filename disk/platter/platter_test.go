package platter

import (
	"bytes"
	"errors"
	"io/fs"
	"math/rand/v2"
	"os"
	"slices"
	"syscall"
	"testing"
	"testing/synctest"

	"github.com/berth-dev/berth/atomicfile"
	"github.com/berth-dev/berth/disk"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// What was synced is there after a loss of power, and of the rest any part.
func TestLossOfPower(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lost, kept, torn, nameless := 0, 0, 0, 0
		for seed := range uint64(100) {
			p := New(rand.New(rand.NewPCG(seed, 0)), "data")
			m := p.Mount()
			f, err := disk.Create(m, "/data/f", 0o600)
			must(t, err)
			_, err = f.WriteAt(bytes.Repeat([]byte("a"), 3*pageBytes), 0)
			must(t, errors.Join(err, f.Sync(), disk.SyncDir(m, "/data")))
			_, err = f.WriteAt(bytes.Repeat([]byte("b"), 3*pageBytes), 0)
			must(t, err)
			_, err = disk.Create(m, "/data/g", 0o600)
			must(t, err)
			m.End()
			p.LosePower()
			if _, err := f.WriteAt([]byte("z"), 0); !errors.Is(err, syscall.EIO) {
				t.Fatalf("a process without a disk wrote: %v", err)
			}
			m = p.Mount()
			b, err := disk.ReadFile(m, "/data/f", 1<<20)
			must(t, err)
			switch n := bytes.Count(b, []byte("b")); {
			case len(b) != 3*pageBytes || n%pageBytes != 0:
				t.Fatalf("%d bytes are left, %d of them new", len(b), n)
			case n == 0:
				lost++
			case n == len(b):
				kept++
			default:
				torn++
			}
			if _, err := m.Lstat("/data/g"); errors.Is(err, fs.ErrNotExist) {
				nameless++
			}
		}
		if lost == 0 || kept == 0 || torn == 0 || nameless == 0 || nameless == 100 {
			t.Errorf("of 100 writes that were not synced %d are lost, %d there and %d torn; %d names are lost", lost, kept, torn, nameless)
		}
	})
}

// A directory that was made is there after a loss of power, with what was synced
// in it, also where a process before was ended as soon as it had made some of it.
func TestDirectoriesAreKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for seed := range uint64(60) {
			p := New(rand.New(rand.NewPCG(seed, 0)), "data")
			for made := range seed % 3 { // by one that was ended before it had synced
				m := p.Mount()
				must(t, m.Mkdir([]string{"/data/raft", "/data/raft/log"}[made], 0o700))
				if made+1 < seed%3 {
					must(t, disk.SyncDir(m, "/data"))
				}
				m.End()
			}
			m := p.Mount()
			must(t, disk.MkdirAll(m, "/data/raft/log", 0o700))
			f, err := disk.Create(m, "/data/raft/log/f", 0o600)
			must(t, errors.Join(err, f.Sync(), disk.SyncDir(m, "/data/raft/log")))
			m.End()
			p.LosePower()
			if _, err := p.Mount().Lstat("/data/raft/log/f"); err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
		}
	})
}

// A file that is replaced whole is the old one or the new one, whenever the power
// goes, and the new one once the call has returned.
func TestFilesAreReplacedWhole(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for seed := range uint64(300) {
			p := New(rand.New(rand.NewPCG(seed, 1)), "data")
			m := p.Mount()
			files := atomicfile.Files{Disk: m}
			must(t, files.Write("/data/f", []byte("old"), 0o600))
			blown := false
			m.Light(1+int(seed%10), func() { blown = true })
			err := files.Write("/data/f", []byte("new"), 0o600)
			if (err != nil) != blown {
				t.Fatalf("seed %d: the process has ended: %v, and the call returned %v", seed, blown, err)
			}
			m.End()
			p.LosePower()
			b, readErr := disk.ReadFile(p.Mount(), "/data/f", 10)
			must(t, readErr)
			if got := string(b); got != "new" && (err == nil || got != "old") {
				t.Fatalf("seed %d: the file holds %q, and the call returned %v", seed, got, err)
			}
		}
	})
}

func TestHold(t *testing.T) {
	m := New(rand.New(rand.NewPCG(0, 0)), "data").Mount()
	open := func() disk.File {
		f, err := disk.Open(m, "/data")
		must(t, err)
		return f
	}
	a, b := open(), open()
	must(t, a.Hold(true))
	must(t, b.Hold(true))
	if err := a.Hold(false); !errors.Is(err, disk.ErrHeld) {
		t.Errorf("one that is shared was taken: %v", err)
	}
	must(t, b.Close())
	must(t, a.Hold(false))
	next := m.Platter.Mount()
	m.End()
	f, err := disk.Open(next, "/data")
	must(t, err)
	must(t, f.Hold(false))
}

func TestFullDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := New(rand.New(rand.NewPCG(0, 0)), "data")
		m := p.Mount()
		f, err := m.OpenFile("/data/f", os.O_RDWR|os.O_CREATE, 0o600)
		must(t, err)
		must(t, f.Reserve(100))
		p.Fill(true)
		if _, err := f.WriteAt([]byte("in room that is there"), 0); err != nil {
			t.Error(err)
		}
		if _, err := f.WriteAt([]byte("beyond"), 100); !errors.Is(err, syscall.ENOSPC) {
			t.Errorf("beyond it: %v", err)
		}
		p.Fill(false)
		if _, err := f.WriteAt([]byte("beyond"), 100); err != nil {
			t.Error(err)
		}
	})
}

// TestRest: whoever has ended in good order is found out by the first change that it makes yet.
func TestRest(t *testing.T) {
	p := New(rand.New(rand.NewPCG(1, 1)), "data")
	m := p.Mount()
	f, err := m.OpenFile("/data/log", os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	var woken []string
	m.Rest(func(path string) { woken = append(woken, path) })
	if _, err := m.Lstat("/data/log"); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil || woken != nil {
		t.Errorf("what changes nothing: %v, %v", err, woken)
	}
	for range 2 {
		if err := m.Remove("/data/log"); err != nil && woken == nil {
			t.Error(err)
		}
	}
	if !slices.Equal(woken, []string{"/data/log"}) {
		t.Errorf("it was told of %q", woken)
	}
}

// TestCopy: a copy has what was there, and neither sees what the other writes.
func TestCopy(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	p := New(r, "data")
	files := atomicfile.Files{Disk: p.Mount()}
	must(t, files.Mkdir("/data/raft", 0o700))
	must(t, files.Write("/data/raft/log", []byte("then"), 0o600))
	then := p.Copy(r)
	must(t, files.Write("/data/raft/log", []byte("since"), 0o600))
	copied := atomicfile.Files{Disk: then.Mount()}
	must(t, copied.Write("/data/raft/else", nil, 0o600))
	then.LosePower()
	for want, from := range map[string]disk.Disk{"then": then.Mount(), "since": p.Mount()} {
		if b, err := disk.ReadFile(from, "/data/raft/log", 100); err != nil || string(b) != want {
			t.Errorf("%q, %v; it was %q", b, err, want)
		}
	}
	if _, err := p.Mount().Lstat("/data/raft/else"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("what was written to the copy: %v", err)
	}
}
