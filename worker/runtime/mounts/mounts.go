// Package mounts removes directories in which somebody may have mounted something: what is mounted is never removed with
// them, be it the agent's own, or what a container that shares its mounts has put there.
package mounts

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// RemoveAll unmounts what is mounted at a directory and below it, as far as this mount namespace shows, and removes it. An
// error means that something is left, mounted or not. That nothing is there is none.
func RemoveAll(dir string) error {
	if err := Unmount(dir); err != nil {
		return err
	}
	return os.RemoveAll(dir)
}

// Unmount is RemoveAll without the removal.
func Unmount(dir string) error {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	above, err := filepath.EvalSymlinks(filepath.Dir(dir))
	if os.IsNotExist(err) {
		return nil
	}
	if err != nil {
		return err
	}
	resolved := filepath.Join(above, filepath.Base(dir)) // as the kernel names it
	// Whoever shares its mounts may mount until its last process has ended: so it is looked again.
	for range 3 {
		points, err := below(resolved)
		if err != nil {
			return fmt.Errorf("what is mounted below %s: %w", dir, err)
		}
		if len(points) == 0 {
			return nil
		}
		for _, point := range points {
			err := unix.Unmount(point, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
			if err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
				return fmt.Errorf("unmounting %s: %w", point, err)
			}
		}
	}
	return fmt.Errorf("something is mounted below %s again and again", dir)
}

// below lists where something is mounted at a directory and below it, the innermost and newest first.
func below(dir string) ([]string, error) {
	all, err := mountinfo.GetMounts(mountinfo.PrefixFilter(dir))
	if err != nil {
		return nil, err
	}
	var points []string
	for _, m := range all {
		if m.Mountpoint == dir || strings.HasPrefix(m.Mountpoint, dir+"/") {
			points = append(points, m.Mountpoint)
		}
	}
	slices.Reverse(points) // the kernel lists them in the order of their mounting
	return points, nil
}
