package cri

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/worker/runtime"
	"github.com/berth-dev/berth/worker/runtime/mounts"
)

// A part of a volume that a container had keeps nothing of it once the pod's volumes are given back.
func TestUnpin(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("mounts need root")
	}
	t.Parallel()
	r := openOver(t, &stub{}, nil)
	volume := t.TempDir()
	if err := unix.Mount("berth", volume, "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := mounts.Unmount(volume); err != nil {
			t.Error(err)
		}
	})
	var pins []string
	for attempt := range int32(2) {
		at := filepath.Join(r.dir(runtime.ID{Pod: "p", Container: "c", Attempt: attempt}), pinsDir, "0")
		if err := pinSubPath(t.Context(), &runtime.Mount{Source: volume, SubPath: "part"}, at); err != nil {
			t.Fatal(err)
		}
		pins = append(pins, at)
	}
	held := filepath.Join(r.podDir("p"), "containers/c/1", terminationFile)
	if err := os.WriteFile(held, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := r.Unpin("p"); err != nil {
			t.Error(err)
		}
	}
	for _, at := range pins {
		if _, err := os.Lstat(at); !os.IsNotExist(err) {
			t.Errorf("%s: %v", at, err)
		}
	}
	if _, err := os.Stat(filepath.Join(volume, "part")); err != nil {
		t.Errorf("what the volume has: %v", err)
	}
	if _, err := os.Stat(held); err != nil {
		t.Errorf("what the container said last: %v", err)
	}
}
