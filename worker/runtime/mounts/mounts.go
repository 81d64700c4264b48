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
// error means that something is left, mounted or not. That nothing is there is none, nor that others remove the same. As little is left as can be. It ends with ctx, between
// one file and the next, and has those of WithTurns wait there.
func RemoveAll(ctx context.Context, dir string) error {
	if err := Unmount(dir); err != nil {
		return err
	}
	return removeBelow(ctx, dir)
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
			err := detach(m.Mountpoint, mayWait(points, m.Mountpoint), round)
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

// mayWait says whether one of the file systems that are mounted at a place, or below it, is of another machine. Which of several at one place is
// reached first, and goes first, need not be known.
func mayWait(points []*mountinfo.Info, at string) bool {
	return slices.ContainsFunc(points, func(m *mountinfo.Info) bool { return remote(m.FSType) && within(m.Mountpoint, at) })
}

// within says whether a path is a directory, or below it.
func within(path, dir string) bool {
	return path == dir || strings.HasPrefix(path, strings.TrimSuffix(dir, "/")+"/")
}

// detach takes what is mounted somewhere, and below it, out of sight. The last that lets go of a file system of another machine waits for
// that: so another process does it, where it may be one, which hangs alone and keeps nothing of this one's. Where that did not help, it is tried here.
func detach(at string, waits bool, round int) error {
	const flags = unix.MNT_DETACH | unix.UMOUNT_NOFOLLOW
	if !waits {
		return unix.Unmount(at, flags)
	}
	ctx, cancel := context.WithTimeoutCause(context.Background(), unmountPatience, errors.New("it does not come to an end"))
	defer cancel()
	return Apart(ctx, func() error {
		if program, err := exec.LookPath("umount"); err == nil && round == 0 {
			// Neither a program of the file system's own nor a look at what is mounted: either might wait for the other machine.
			return exec.Command(program, "-l", "-i", "-n", "-c", "--", at).Run() // #nosec G204 -- the kernel has named it
		}
		return unix.Unmount(at, flags)
	})
}

// remote says whether a file system is one of another machine, or of a process, which may not answer.
func remote(kind string) bool {
	return strings.HasPrefix(kind, "nfs") || strings.HasPrefix(kind, "fuse") || slices.Contains([]string{"cifs", "smb3", "ceph", "9p", "afs"}, kind)
}

// ServerOf is the machine on whose file system a path is, as far as its words and this mount namespace tell: nobody there is asked. Empty: none.
func ServerOf(path string) string {
	all, err := mountinfo.GetMounts(func(m *mountinfo.Info) (skip, stop bool) { return !within(filepath.Clean(path), m.Mountpoint), false })
	if err != nil {
		return ""
	}
	return serverAbove(all)
}

// serverAbove is that of the innermost of file systems that are mounted one in the other: the newest of those at one place.
func serverAbove(points []*mountinfo.Info) string {
	var in *mountinfo.Info
	for _, m := range points {
		if in == nil || len(m.Mountpoint) >= len(in.Mountpoint) {
			in = m
		}
	}
	if in == nil || !remote(in.FSType) {
		return ""
	}
	server, _, _ := strings.Cut(in.Source, ":/")
	return server
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
		return !within(m.Mountpoint, dir), false
	})
	slices.SortStableFunc(points, func(a, b *mountinfo.Info) int { return len(a.Mountpoint) - len(b.Mountpoint) })
	return points, err
}
