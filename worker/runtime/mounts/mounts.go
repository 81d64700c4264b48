// Package mounts removes directories in which somebody may have mounted something: what is mounted is never removed with
// them, be it the agent's own, or what a container that shares its mounts has put there.
package mounts

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// RemoveAll unmounts what is mounted at a directory and below it, as far as this mount namespace shows, and removes it. An
// error means that something is left, mounted or not. That nothing is there is none.
func RemoveAll(dir string) error {
	if err := Unmount(dir); err != nil {
		return err
	}
	return removeBelow(dir)
}

// Unmount is RemoveAll without the removal.
func Unmount(dir string) error {
	resolved, err := resolve(dir)
	if resolved == "" {
		return err
	}
	var failed error
	// Whoever shares its mounts may mount until its last process has ended: so it is looked again.
	for round := range 3 {
		points, err := below(resolved)
		if err != nil {
			return fmt.Errorf("what is mounted below %s: %w", dir, err)
		}
		if len(points) == 0 {
			return nil
		}
		failed = nil
		for _, m := range points {
			err := detach(m, round)
			if err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
				failed = errors.Join(failed, fmt.Errorf("unmounting %s: %w", m.Mountpoint, err))
			}
		}
	}
	if failed != nil {
		return failed
	}
	return fmt.Errorf("something is mounted below %s again and again", dir)
}

// resolve is a directory as the kernel names it; empty: there is none, or it is not known.
func resolve(dir string) (string, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	above, err := filepath.EvalSymlinks(filepath.Dir(dir))
	if os.IsNotExist(err) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	return filepath.Join(above, filepath.Base(dir)), nil
}

// unmountPatience is how long a file system of another machine has to let itself be unmounted.
const unmountPatience = 5 * time.Second

// detach takes what is mounted somewhere, and below it, out of sight. The last that lets go of a file system of another machine waits for
// that: so another process does it, which hangs alone and keeps nothing of this one's. Where that did not help, it is tried here.
func detach(m *mountinfo.Info, round int) error {
	const flags = unix.MNT_DETACH | unix.UMOUNT_NOFOLLOW
	if !remote(m.FSType) {
		return unix.Unmount(m.Mountpoint, flags)
	}
	ctx, cancel := context.WithTimeoutCause(context.Background(), unmountPatience, errors.New("it does not come to an end"))
	defer cancel()
	return Apart(ctx, func() error {
		if program, err := exec.LookPath("umount"); err == nil && round == 0 {
			// Neither a program of the file system's own nor a look at what is mounted: either might wait for the other machine.
			return exec.Command(program, "-l", "-i", "-n", "-c", "--", m.Mountpoint).Run() // #nosec G204 -- the kernel has named it
		}
		return unix.Unmount(m.Mountpoint, flags)
	})
}

// remote says whether a file system is one of another machine, or of a process, which may not answer.
func remote(kind string) bool {
	return strings.HasPrefix(kind, "nfs") || strings.HasPrefix(kind, "fuse") || slices.Contains([]string{"cifs", "smb3", "ceph", "9p", "afs"}, kind)
}

// At says whether something is mounted at a directory, without asking what is mounted there.
func At(dir string) (bool, error) {
	resolved, err := resolve(dir)
	if resolved == "" {
		return false, err
	}
	points, err := below(resolved)
	return slices.ContainsFunc(points, func(m *mountinfo.Info) bool { return m.Mountpoint == resolved }), err
}

// below lists what is mounted at a directory and below it, the outermost first: with it goes what is mounted in it, and nobody has to find the
// way there through a file system that does not answer. Of several at one place the newest is reached first.
func below(dir string) ([]*mountinfo.Info, error) {
	points, err := mountinfo.GetMounts(func(m *mountinfo.Info) (skip, stop bool) {
		return m.Mountpoint != dir && !strings.HasPrefix(m.Mountpoint, strings.TrimSuffix(dir, "/")+"/"), false
	})
	slices.SortStableFunc(points, func(a, b *mountinfo.Info) int { return len(a.Mountpoint) - len(b.Mountpoint) })
	return points, err
}
