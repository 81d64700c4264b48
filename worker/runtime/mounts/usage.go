package mounts

import (
	"context"
	"errors"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// Used is what is held of a file system.
type Used struct{ Bytes, Inodes int64 }

// Add adds what is held elsewhere.
func (u *Used) Add(v Used) { u.Bytes, u.Inodes = u.Bytes+v.Bytes, u.Inodes+v.Inodes }

// Usage is what is allocated below a directory, itself included, or for one file. A file with several names counts once for each, so a pod cannot
// hide any. What vanishes meanwhile counts nothing, nor does what is mounted there, and may not answer. With an error it is what was found
// until then, or beside what could not be looked at: so much is held in any case.
func Usage(ctx context.Context, dir string) (Used, error) {
	var bytes, inodes atomic.Int64 // who counts may be given up, and what was counted counts
	err := Apart(ctx, func() error {
		return usage(ctx, dir, func(st *unix.Statx_t) {
			inodes.Add(1)
			bytes.Add(int64(st.Blocks) * 512)
		})
	})
	return Used{bytes.Load(), inodes.Load()}, err
}

func usage(ctx context.Context, dir string, count func(*unix.Statx_t)) error {
	var root int
	err := again(func() (err error) {
		root, err = unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		return err
	})
	switch {
	case errors.Is(err, unix.ENOENT):
		return nil
	case errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ELOOP):
		st, err := look(unix.AT_FDCWD, dir)
		if err == nil {
			count(&st)
		}
		return missing(err)
	case err != nil:
		return err
	}
	defer func() { _ = unix.Close(root) }() // nothing was written
	is, err := look(root, "")
	if err != nil {
		return err
	}
	count(&is)
	w := Walk{Enter: func(e *Entry) error {
		if e.Mounted {
			return nil
		}
		at, name := e.Dir, e.Name
		if e.FD >= 0 {
			at, name = e.FD, ""
		}
		st, err := look(at, name)
		if err != nil {
			return err
		}
		// A file of another file system is mounted there.
		if st.Attributes&unix.STATX_ATTR_MOUNT_ROOT == 0 && (e.FD >= 0 || st.Dev_major == is.Dev_major && st.Dev_minor == is.Dev_minor) {
			count(&st)
		}
		return nil
	}}
	return w.Below(ctx, root)
}

// look asks what has a name in a directory, or what the directory itself is, without waiting for another machine.
func look(dir int, name string) (st unix.Statx_t, err error) {
	flags := unix.AT_SYMLINK_NOFOLLOW | unix.AT_NO_AUTOMOUNT | unix.AT_STATX_DONT_SYNC
	if name == "" {
		flags |= unix.AT_EMPTY_PATH
	}
	return st, again(func() error { return unix.Statx(dir, name, flags, unix.STATX_BASIC_STATS, &st) })
}

// missing: that it is not there is no error.
func missing(err error) error {
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}
