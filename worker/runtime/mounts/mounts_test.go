package mounts_test

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/worker/runtime/mounts"
)

// What somebody has mounted in a directory outlives it, whatever the directories are called and however deep it is.
func TestRemoveAllLeavesWhatIsMounted(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root may mount")
	}
	for _, at := range []string{"a", "sub/0/sub/1", "containers/with space/x", `back\slash`, "."} {
		t.Run(at, func(t *testing.T) {
			kept, parent, link := t.TempDir(), t.TempDir(), filepath.Join(t.TempDir(), "link")
			file, dir := filepath.Join(kept, "file"), filepath.Join(parent, "dir")
			point := filepath.Join(dir, at)
			for _, err := range []error{os.WriteFile(file, nil, 0o600), os.MkdirAll(point, 0o700), os.Symlink(parent, link)} {
				if err != nil {
					t.Fatal(err)
				}
			}
			for range 2 { // over one another
				if err := unix.Mount(kept, point, "", unix.MS_BIND, ""); err != nil {
					t.Skipf("this machine does not let mount: %v", err)
				}
			}
			if err := mounts.RemoveAll(t.Context(), filepath.Join(link, "dir")); err != nil {
				t.Fatal(err)
			}
			if _, err := os.Stat(file); err != nil {
				t.Error("what was mounted is gone", err)
			}
			if _, err := os.Stat(dir); !os.IsNotExist(err) {
				t.Error("the directory is still there", err)
			}
		})
	}
	if err := mounts.RemoveAll(t.Context(), filepath.Join(t.TempDir(), "nothing")); err != nil {
		t.Error(err)
	}
}
