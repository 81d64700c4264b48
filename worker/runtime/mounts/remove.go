package mounts

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// deepLevels is how deep a removal goes: a directory that lies deeper is moved up first.
const deepLevels = 1024

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
// dir while it is removed, and what is in there is not the pod's. It goes on after an error, and ends with ctx.
func removeBelow(ctx context.Context, dir string) error {
	parent, err := os.Open(filepath.Dir(dir))
	if os.IsNotExist(err) {
		return nil
	}
	if err != nil {
		return err
	}
	defer parent.Close()
	if err := removeAt(ctx, int(parent.Fd()), filepath.Base(dir)); err != nil {
		return fmt.Errorf("removing %s: %w", dir, err)
	}
	return nil
}

// removeAt removes what has a name in a directory.
func removeAt(ctx context.Context, parent int, name string) error {
	if err := awaitTurn(ctx); err != nil {
		return err
	}
	err := unlink(parent, name, 0)
	if err == nil || !errors.Is(err, unix.EISDIR) && !errors.Is(err, unix.EPERM) {
		return err
	}
	root, oerr := openIn(parent, name)
	if errors.Is(oerr, unix.ENOTDIR) {
		return err
	}
	if oerr != nil {
		return mountedThere(oerr)
	}
	defer func() { _ = unix.Close(root) }() // nothing was written
	r := removal{ctx: ctx, root: root}
	w := Walk{Enter: r.enter, Left: r.left}
	for {
		r.removed = 0
		if err := w.Below(ctx, root); err != nil {
			return err
		}
		// What was removed may have moved the others, and what lay too deep was moved here.
		if err := unlink(parent, name, unix.AT_REMOVEDIR); !errors.Is(err, unix.ENOTEMPTY) || r.removed == 0 {
			return err
		}
	}
}

// removal removes all that is in a directory.
type removal struct {
	ctx     context.Context // whose turns it takes
	root    int
	removed int // entries, those included that were moved up
}

func (r *removal) enter(e *Entry) error {
	if awaitTurn(r.ctx) != nil {
		return ErrSkip // the walk ends
	}
	if e.Mounted {
		return mountedThere(unix.EXDEV)
	}
	if e.FD < 0 {
		err := unlink(e.Dir, e.Name, 0)
		if errors.Is(err, unix.EISDIR) || errors.Is(err, unix.EPERM) {
			if derr := unlink(e.Dir, e.Name, unix.AT_REMOVEDIR); !errors.Is(derr, unix.ENOTDIR) {
				err = derr
			}
		}
		if err != nil {
			return err
		}
		e.Closed = nil
		r.removed++
		return nil
	}
	if e.Depth >= deepLevels {
		up := fmt.Sprintf(".up.%016x", rand.Uint64()) // #nosec G404 -- a name that is taken is tried again by the next look
		if again(func() error { return unix.Renameat2(e.Dir, e.Name, r.root, up, unix.RENAME_NOREPLACE) }) == nil {
			r.removed++
			return ErrSkip
		}
	}
	return nil
}

func (r *removal) left(e *Entry) (repeat bool, err error) {
	err = unlink(e.Dir, e.Name, unix.AT_REMOVEDIR)
	if errors.Is(err, unix.ENOTEMPTY) && e.Seen { // what was removed may have moved the others
		return true, nil
	}
	if err == nil {
		r.removed++
	}
	return false, err
}

// unlink removes one name. That there is nothing of the name is no error.
func unlink(dir int, name string, flags int) error {
	return missing(again(func() error { return unix.Unlinkat(dir, name, flags) }))
}

// mountedThere says of what is mounted why it is left.
func mountedThere(err error) error {
	if errors.Is(err, unix.EXDEV) {
		return errors.New("it is not removed: something is mounted there")
	}
	return missing(err)
}
