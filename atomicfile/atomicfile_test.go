package atomicfile

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/berth-dev/berth/disk"
)

func files() Files { return Files{disk.OS{}} }

func names(t *testing.T, dir string) (out []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}

func TestWriteReplacesWhole(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "key")
	for _, text := range []string{"a long first one", "short"} {
		if err := Write(path, []byte(text), 0o640); err != nil {
			t.Fatal(err)
		}
		b, err := disk.ReadFile(disk.OS{}, path, 100)
		if err != nil || string(b) != text {
			t.Errorf("%q, %v", b, err)
		}
	}
	if st, err := os.Stat(path); err != nil || st.Mode().Perm() != 0o640 {
		t.Errorf("%v, %v", st.Mode(), err)
	}
	if got := names(t, dir); len(got) != 1 {
		t.Errorf("left: %v", got)
	}
	if _, err := disk.ReadFile(disk.OS{}, path, 4); err == nil {
		t.Error("a file beyond the bound was read")
	}
}

func TestAFailedWriteChangesNothing(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "key")
	if err := Write(path, []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	broken := errors.New("broken")
	err := WriteFrom(path, 0o600, func(w io.Writer, _ string) error {
		_, _ = io.WriteString(w, "ne")
		return broken
	})
	if !errors.Is(err, broken) {
		t.Error(err)
	}
	if b, _ := disk.ReadFile(disk.OS{}, path, 10); string(b) != "old" || len(names(t, dir)) != 1 {
		t.Errorf("%q among %v", b, names(t, dir))
	}
}

func TestSweepTakesOnlyWhatIsUnfinished(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{prefix + "key-123", "key", ".hidden"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(dir, prefix+"dir"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := files().Sweep(dir); err != nil {
		t.Fatal(err)
	}
	if got := names(t, dir); len(got) != 3 {
		t.Errorf("left: %v", got)
	}
	if err := files().Sweep(filepath.Join(dir, "nothing")); err != nil {
		t.Error(err)
	}
}

func TestRenameAndRemove(t *testing.T) {
	dir := t.TempDir()
	a, b := filepath.Join(dir, "a"), filepath.Join(dir, "b")
	if err := Write(a, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := files().Rename(a, b); err != nil {
		t.Fatal(err)
	}
	if err := files().Rename(b, filepath.Join(t.TempDir(), "b")); err == nil {
		t.Error("a rename into another directory, which would not be synced")
	}
	for range 2 {
		if err := files().Remove(b); err != nil {
			t.Error(err)
		}
	}
	if _, err := os.Stat(b); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}
