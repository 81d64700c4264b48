package mounts

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

type turnsKey struct{}

// WithTurns has wait called between one file and the next of what is removed. Files may be so many that it takes hours: whoever shares with others
// what they remove by lets them have their turn there.
func WithTurns(ctx context.Context, wait func()) context.Context {
	return context.WithValue(ctx, turnsKey{}, wait)
}

func awaitTurn(ctx context.Context) error {
	if wait, ok := ctx.Value(turnsKey{}).(func()); ok {
		wait()
	}
	if ctx.Err() != nil {
		return fmt.Errorf("removing is not over: %w", context.Cause(ctx))
	}
	return nil
}

// removeBelow is os.RemoveAll, but never goes into what is mounted: a file system of another machine may come to be mounted below
// dir while it is removed, and what is in there is not the pod's. A kernel before 5.6 cannot tell.
func removeBelow(ctx context.Context, dir string) error {
	parent, err := os.Open(filepath.Dir(dir))
	if os.IsNotExist(err) {
		return nil
	}
	if err != nil {
		return err
	}
	defer parent.Close()
	err = removeAt(ctx, parent, filepath.Base(dir))
	if errors.Is(err, unix.ENOSYS) {
		return os.RemoveAll(dir)
	}
	return err
}

// removeAt removes what has a name in a directory.
func removeAt(ctx context.Context, parent *os.File, name string) error {
	if err := awaitTurn(ctx); err != nil {
		return err
	}
	at := int(parent.Fd())
	err := unix.Unlinkat(at, name, 0)
	if err == nil || errors.Is(err, unix.ENOENT) {
		return nil
	}
	if !errors.Is(err, unix.EISDIR) && !errors.Is(err, unix.EPERM) {
		return &os.PathError{Op: "remove", Path: filepath.Join(parent.Name(), name), Err: err}
	}
	dir, err := openAt(parent, name)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return err
	}
	defer dir.Close()
	for left := true; left; {
		names, err := dir.Readdirnames(1024)
		if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, unix.ENOENT) { // somebody else has removed it
			return err
		}
		for _, name := range names {
			if err := removeAt(ctx, dir, name); err != nil {
				return err
			}
		}
		if left = len(names) > 0; left { // what was removed may have moved the others
			if _, err := dir.Seek(0, io.SeekStart); err != nil {
				return err
			}
		}
	}
	if err := unix.Unlinkat(at, name, unix.AT_REMOVEDIR); err != nil && !errors.Is(err, unix.ENOENT) {
		return &os.PathError{Op: "remove", Path: dir.Name(), Err: err}
	}
	return nil
}

// openAt opens a directory in which nothing is mounted on the way.
func openAt(parent *os.File, name string) (*os.File, error) {
	path := filepath.Join(parent.Name(), name)
	fd, err := unix.Openat2(int(parent.Fd()), name, &unix.OpenHow{
		Flags:   unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_NO_XDEV | unix.RESOLVE_NO_SYMLINKS,
	})
	switch {
	case errors.Is(err, unix.EXDEV):
		return nil, fmt.Errorf("%s is not removed: something is mounted there", path)
	case err != nil:
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	return os.NewFile(uintptr(fd), path), nil
}
