package mounts

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestRemoveStaysHere: what comes to be mounted while a directory is removed is nobody's to remove.
func TestRemoveStaysHere(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root may mount")
	}
	others, dir := t.TempDir(), filepath.Join(t.TempDir(), "volumes")
	kept := filepath.Join(others, "kept")
	for _, d := range []string{filepath.Join(dir, "a/b"), filepath.Join(dir, "share"), kept} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(others, filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount(others, filepath.Join(dir, "share"), "", unix.MS_BIND, ""); err != nil {
		t.Skipf("this machine does not let mount: %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(filepath.Join(dir, "share"), unix.MNT_DETACH) })
	if err := removeBelow(t.Context(), dir); err == nil || !strings.Contains(err.Error(), "something is mounted there") {
		t.Errorf("with a mount below: %v", err)
	}
	if _, err := os.Stat(kept); err != nil {
		t.Error(err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 1 || left[0].Name() != "share" {
		t.Errorf("beside it there is %v, %v", left, err)
	}
	if err := RemoveAll(t.Context(), dir); err != nil {
		t.Error(err)
	}
	for path, there := range map[string]bool{kept: true, dir: false} {
		if _, err := os.Lstat(path); (err == nil) != there {
			t.Errorf("%s: %v", path, err)
		}
	}
	if err := RemoveAll(t.Context(), dir); err != nil {
		t.Errorf("once more: %v", err)
	}
}
