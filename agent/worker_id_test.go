package agent

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestWorkerID(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "worker")
	first, err := workerID(dir)
	if err != nil {
		t.Fatal(err)
	}
	again, err := workerID(dir)
	if err != nil || again != first || first == "" {
		t.Errorf("the worker was %q and is %q: %v", first, again, err)
	}
	files, err := os.ReadDir(dir)
	if err != nil || len(files) != 1 {
		t.Errorf("%d files are in the data directory: %v", len(files), err)
	}
	one, _ := workerID("")
	other, _ := workerID("")
	if one == other || one == "" {
		t.Error("two workers without a directory are one")
	}
}

// TestDamagedWorkerID: whatever becomes of the file, the worker is who it was or is refused; it is never somebody else.
func TestDamagedWorkerID(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "worker-id")
	id, err := workerID(dir)
	if err != nil {
		t.Fatal(err)
	}
	kept, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	read := func(b []byte) (string, error) {
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		return workerID(dir)
	}
	if was, err := read([]byte(id + "\n")); err != nil || was != id {
		t.Errorf("one that was written before there were checksums: %q, %v", was, err)
	}
	damages := [][]byte{nil, make([]byte, len(kept)), append(append([]byte{}, kept...), kept...)}
	for i := range kept {
		damages = append(damages, kept[:i])
		for bit := range 8 {
			b := append([]byte{}, kept...)
			b[i] ^= 1 << bit
			damages = append(damages, b)
		}
	}
	for _, b := range damages {
		got, err := read(b)
		if err == nil && got != id {
			t.Fatalf("%q is %q, who is somebody else", b, got)
		}
		if err != nil && !strings.Contains(err.Error(), path+" is damaged; ") {
			t.Fatalf("%q: %v", b, err)
		}
	}
}
