package disk

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestDirectories(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a")
	deep := filepath.Join(dir, "b", "c")
	for range 2 { // what is there stays
		must(t, MkdirAll(OS{}, deep, 0o700))
	}
	f, err := Create(OS{}, filepath.Join(deep, "f"), 0o600)
	must(t, err)
	must(t, f.Close())
	if err := MkdirAll(OS{}, filepath.Join(deep, "f"), 0o700); !errors.Is(err, fs.ErrExist) {
		t.Errorf("a directory in the place of a file: %v", err)
	}
	must(t, SyncDir(OS{}, deep))
	for range 2 {
		must(t, RemoveAll(OS{}, dir))
	}
	if _, err := (OS{}).Lstat(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("it is still there: %v", err)
	}
}

func TestTemporaryFiles(t *testing.T) {
	dir, seen := t.TempDir(), map[string]bool{}
	for range 20 {
		f, path, err := CreateTemp(OS{}, dir, "some-*-thing")
		must(t, err)
		must(t, f.Close())
		if name := filepath.Base(path); seen[path] || filepath.Dir(path) != dir || !strings.HasPrefix(name, "some-") || !strings.HasSuffix(name, "-thing") {
			t.Errorf("it is called %s", path)
		}
		seen[path] = true
	}
	if _, _, err := CreateTemp(OS{}, filepath.Join(dir, "none"), "*"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("in a directory that is not there: %v", err)
	}
}

func TestReadFileIsBounded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	must(t, os.WriteFile(path, []byte("12345"), 0o600))
	if b, err := ReadFile(OS{}, path, 5); err != nil || string(b) != "12345" {
		t.Errorf("%q, %v", b, err)
	}
	if _, err := ReadFile(OS{}, path, 4); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("one that is too large: %v", err)
	}
}

// Whoever holds a directory keeps others out, in this process too.
func TestHold(t *testing.T) {
	dir := t.TempDir()
	open := func() File {
		f, err := Open(OS{}, dir)
		must(t, err)
		return f
	}
	a, b := open(), open()
	must(t, a.Hold(true))
	must(t, b.Hold(true))
	if err := a.Hold(false); !errors.Is(err, ErrHeld) {
		t.Errorf("one that is shared was taken: %v", err)
	}
	must(t, b.Close())
	must(t, a.Hold(false))
	must(t, a.Close())
}

func TestReserve(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	must(t, os.WriteFile(path, []byte("12345"), 0o600))
	f, err := OS{}.OpenFile(path, os.O_RDWR, 0)
	must(t, err)
	if err := f.Reserve(100); err != nil {
		t.Skip(err) // not every file system can
	}
	must(t, errors.Join(f.Sync(), f.Close()))
	b, err := os.ReadFile(path)
	must(t, err)
	if len(b) != 100 || string(b[:6]) != "12345\x00" {
		t.Errorf("%d bytes, which begin with %q", len(b), b[:6])
	}
}
