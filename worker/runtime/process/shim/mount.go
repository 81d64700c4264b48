package shim

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"
)

// mountAll puts the container's volumes where it expects them, in the mount namespace that the shim was started in. A
// mount point that is not there is made, on the host too: an empty directory or file.
func mountAll(mounts []Mount) error {
	if len(mounts) == 0 {
		return nil
	}
	// What the host mounts and unmounts from now on is seen here; what is mounted here is not seen there.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
		return fmt.Errorf("parting from the host's mounts: %w", err)
	}
	mounts = slices.Clone(mounts)
	// Outer ones first, or they would hide the inner ones.
	slices.SortStableFunc(mounts, func(a, b Mount) int { return cmp.Compare(len(filepath.Clean(a.Target)), len(filepath.Clean(b.Target))) })
	// A mount may hide the source of a later one: hold all of them first.
	sources := make([]*os.File, len(mounts))
	for i, m := range mounts {
		f, err := os.OpenFile(m.Source, unix.O_PATH, 0)
		if err != nil {
			return fmt.Errorf("volume for %s: %w", m.Target, err)
		}
		defer f.Close()
		sources[i] = f
	}
	for i, m := range mounts {
		if err := bind(sources[i], m); err != nil {
			return err
		}
	}
	return nil
}

func bind(source *os.File, m Mount) error {
	target := filepath.Clean(m.Target)
	if !filepath.IsAbs(target) || target == "/" {
		return fmt.Errorf("mounting a volume at %q: the path must be absolute and not the root", m.Target)
	}
	fi, err := source.Stat()
	if err != nil {
		return fmt.Errorf("volume for %s: %w", target, err)
	}
	if _, err := os.Stat(target); os.IsNotExist(err) {
		if err := makePoint(target, fi.IsDir()); err != nil {
			return fmt.Errorf("making the mount point %s: %w", target, err)
		}
	}
	from := fmt.Sprintf("/proc/self/fd/%d", source.Fd())
	if err := unix.Mount(from, target, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("mounting a volume at %s: %w", target, err)
	}
	if m.ReadOnly {
		if err := unix.Mount("", target, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
			return fmt.Errorf("making the volume at %s read-only: %w", target, err)
		}
	}
	return nil
}

func makePoint(path string, dir bool) error {
	if dir {
		return os.MkdirAll(path, 0o755)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDONLY, 0o644)
	if err != nil {
		return err
	}
	return f.Close()
}
