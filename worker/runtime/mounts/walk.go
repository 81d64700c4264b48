package mounts

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	// openLevels are how many of the innermost directories of a walk are open at a time, beside the outermost; namesBytes is what each of them has
	// read of its names.
	openLevels, namesBytes = 32, 8 << 10
	// maxLevels is how deep a walk goes. Nobody comes there by a path: the longest has 4096 bytes.
	maxLevels = 1 << 16
	// toldErrors are how many errors of entries are told, and toldBytes how long their paths are.
	toldErrors, toldBytes = 8, 256
)

// ErrTooDeep: there are directories in which a walk does not look.
var ErrTooDeep = fmt.Errorf("directories lie one in the other more than %d deep", maxLevels)

// ErrSkip is what Walk.Enter returns of a directory that is not to be gone into.
var ErrSkip = errors.New("this one is left out")

// Walk goes through all that is below a directory, whoever makes, moves and removes what is there meanwhile: from descriptor to descriptor, so no
// path is ever too long and no link leads anywhere, and never into what is mounted. What it holds does not grow with what it finds, but for a name
// for each directory that it is in. What goes wrong with an entry is told at the end, and the walk goes on.
type Walk struct {
	// Enter is called with every entry, with a directory before what is in it.
	Enter func(e *Entry) error
	// Left is called with a directory when nothing went wrong with what is in it; nil: nothing is done then. again has the directory read once more.
	Left func(e *Entry) (again bool, err error)

	levels []level // those that it is in, the outermost first
	failed failures
	free   [][]byte
}

// Entry is what has a name in a directory.
type Entry struct {
	// Dir is the descriptor of that directory.
	Dir  int
	Name string
	// FD is the entry's own descriptor if it is a directory that is gone into; else -1. Both are the walk's.
	FD int
	// Mounted: it is not what has that name in the directory, but what is mounted there. Nobody has asked that for anything.
	Mounted bool
	// Depth is 1 in the directory that is walked through.
	Depth int
	// Seen, of Walk.Left: there was something in the directory when it was read last.
	Seen bool
	// Closed is why a directory cannot be gone into: it is told after Enter, unless that has set it to nil.
	Closed error
}

// level is a directory that a walk is in.
type level struct {
	name string // in the one above; of the outermost none
	id   fileID
	fd   int // -1: it is closed
	// at is where in the directory what was visited ends, and names what was read behind it.
	at     int64
	buf    []byte
	names  []byte
	seen   bool // there was something when it was read last
	failed bool // something in it went wrong
}

// fileID is which file it is, of all that there are.
type fileID struct{ dev, ino uint64 }

func idOf(fd int) (fileID, error) {
	var st unix.Stat_t
	err := again(func() error { return unix.Fstat(fd, &st) })
	return fileID{uint64(st.Dev), st.Ino}, err
}

// again calls what a signal may have interrupted.
func again(call func() error) error {
	for {
		if err := call(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// Below walks through a directory, which its caller has opened. It ends early with ctx alone.
func (w *Walk) Below(ctx context.Context, dir int) error {
	id, err := idOf(dir)
	if err != nil {
		return err
	}
	w.failed = failures{}
	w.levels = append(w.levels[:0], level{id: id, fd: dir, buf: w.buffer()})
	// Whoever has the directory may have read of it.
	if err := again(func() error { _, err := unix.Seek(dir, 0, unix.SEEK_SET); return err }); err != nil {
		return err
	}
	defer func() {
		for i := 1; i < len(w.levels); i++ {
			w.close(&w.levels[i])
		}
	}()
	for {
		if err := ctx.Err(); err != nil {
			return errors.Join(context.Cause(ctx), w.failed.err())
		}
		l := &w.levels[len(w.levels)-1]
		name, kind, err := l.next()
		switch {
		case err != nil:
			w.fail(".", err)
			fallthrough
		case name == "":
			if len(w.levels) == 1 {
				return w.failed.err()
			}
			w.leave()
		default:
			w.visit(l, name, kind)
		}
	}
}

// visit calls Enter with one entry, and goes into it if it is a directory.
func (w *Walk) visit(l *level, name string, kind byte) {
	l.seen = true
	e := Entry{Dir: l.fd, Name: name, FD: -1, Depth: len(w.levels)}
	if kind == unix.DT_DIR || kind == unix.DT_UNKNOWN {
		var err error
		if e.FD, err = openIn(l.fd, name); err != nil {
			e.FD = -1
		}
		switch {
		case errors.Is(err, unix.ENOENT):
			return // it has gone
		case errors.Is(err, unix.EXDEV):
			e.Mounted = true
		case !errors.Is(err, unix.ENOTDIR) && !errors.Is(err, unix.ELOOP): // else it is none, or none any more
			e.Closed = err
		}
	}
	err := w.Enter(&e)
	skipped := errors.Is(err, ErrSkip)
	if skipped || errors.Is(err, unix.ENOENT) {
		err = nil
	}
	if err == nil && !skipped {
		err = e.Closed
	}
	if err == nil && !skipped && e.FD >= 0 && len(w.levels) > maxLevels {
		skipped, err = true, ErrTooDeep
	}
	if err != nil {
		w.fail(name, err)
	}
	if e.FD < 0 {
		return
	}
	var id fileID
	if !skipped { // whatever Enter had to say of it
		if id, err = idOf(e.FD); err != nil {
			w.fail(name, err)
		}
	}
	if skipped || id == (fileID{}) {
		_ = unix.Close(e.FD) // nothing was written
		return
	}
	w.levels = append(w.levels, level{name: name, id: id, fd: e.FD, buf: w.buffer()})
	if i := len(w.levels) - 1 - openLevels; i > 0 {
		w.close(&w.levels[i])
	}
}

// leave goes back from the innermost directory into the one above.
func (w *Walk) leave() {
	n := len(w.levels) - 1
	l := &w.levels[n]
	if w.levels[n-1].fd < 0 {
		w.reopen(n-1, l.fd)
	}
	if above := &w.levels[n-1]; above.fd < 0 {
		w.fail(".", errors.New("what it was in has been moved meanwhile, and is left"))
	} else if w.Left != nil && !l.failed {
		repeat, err := w.Left(&Entry{Dir: above.fd, Name: l.name, FD: l.fd, Depth: n, Seen: l.seen})
		if err == nil && repeat {
			l.seen, err = false, l.rewind(0)
		}
		if err == nil && repeat {
			return
		}
		if err != nil && !errors.Is(err, unix.ENOENT) {
			w.fail(".", err)
		}
	}
	// What was moved away cannot be gone on with.
	for w.close(l); w.levels[n-1].fd < 0; n-- {
		w.levels[n-1].failed = true
	}
	failed := w.levels[n].failed
	w.levels = w.levels[:n]
	w.levels[n-1].failed = w.levels[n-1].failed || failed
}

// reopen opens a directory again that was closed, from the one below it or else from above. Where neither leads there, somebody has moved it: then it stays
// closed, as do those around it that are not found, and the innermost one that is found is open.
func (w *Walk) reopen(n, below int) {
	l := &w.levels[n]
	fd, err := openIn(below, "..")
	if err == nil {
		if id, ierr := idOf(fd); ierr == nil && id == l.id && l.take(fd, w.buffer()) == nil {
			return
		}
		_ = unix.Close(fd) // nothing was written
	}
	at := w.levels[0].fd
	for i := 1; i <= n; i++ {
		fd, err := openIn(at, w.levels[i].name)
		found := err == nil
		if found {
			id, err := idOf(fd)
			found = err == nil && id == w.levels[i].id
			if !found {
				_ = unix.Close(fd) // nothing was written
			}
		}
		if !found { // the one above is
			n = i - 1
			break
		}
		if i > 1 {
			_ = unix.Close(at) // nothing was written
		}
		at = fd
	}
	if n > 0 && w.levels[n].take(at, w.buffer()) != nil {
		_ = unix.Close(at) // nothing was written
	}
}

// take goes on with a directory where it was left.
func (l *level) take(fd int, buf []byte) error {
	l.fd, l.buf = fd, buf
	if err := l.rewind(l.at); err != nil {
		l.fd, l.buf = -1, nil
		return err
	}
	return nil
}

// rewind goes on at some place of the directory.
func (l *level) rewind(at int64) error {
	l.at, l.names = at, nil
	return again(func() error { _, err := unix.Seek(l.fd, at, unix.SEEK_SET); return err })
}

func (w *Walk) close(l *level) {
	if l.fd < 0 {
		return
	}
	_ = unix.Close(l.fd) // nothing was written
	w.free = append(w.free, l.buf)
	l.fd, l.buf, l.names = -1, nil, nil
}

func (w *Walk) buffer() []byte {
	if n := len(w.free); n > 0 {
		b := w.free[n-1]
		w.free = w.free[:n-1]
		return b
	}
	return make([]byte, namesBytes)
}

// fail takes note of what went wrong with an entry of the innermost directory.
func (w *Walk) fail(name string, err error) {
	w.levels[len(w.levels)-1].failed = true
	w.failed.add(err, func() string {
		path := name
		for i := len(w.levels) - 1; i > 0 && len(path) < toldBytes; i-- {
			path = w.levels[i].name + "/" + path
		}
		return strings.TrimSuffix(path, "/.")
	})
}

// next is the next entry's name, and its kind as far as the file system tells; empty: there is none.
func (l *level) next() (name string, kind byte, err error) {
	const behindAt, lengthAt, kindAt, nameAt = 8, 16, 18, 19 // of struct linux_dirent64
	for {
		if len(l.names) == 0 {
			var n int
			err := again(func() (err error) { n, err = unix.Getdents(l.fd, l.buf); return err })
			if errors.Is(err, unix.ENOENT) { // it was removed
				return "", 0, nil
			}
			if err != nil || n <= 0 {
				return "", 0, err
			}
			l.names = l.buf[:n]
		}
		length := int(binary.NativeEndian.Uint16(l.names[lengthAt:]))
		entry := l.names[:length]
		l.names = l.names[length:]
		l.at = int64(binary.NativeEndian.Uint64(entry[behindAt:]))
		text, _, _ := bytes.Cut(entry[nameAt:], []byte{0})
		if s := string(text); s != "." && s != ".." {
			return s, entry[kindAt], nil
		}
	}
}

// openIn opens a directory within a directory. Something that is mounted there is EXDEV, and nobody has asked that for anything; a link is ELOOP.
func openIn(dir int, name string) (int, error) {
	return openHow(dir, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC)
}

func openHow(dir int, name string, flags int) (fd int, err error) {
	how := &unix.OpenHow{Flags: uint64(flags), Resolve: unix.RESOLVE_NO_XDEV | unix.RESOLVE_NO_SYMLINKS}
	err = again(func() (err error) { fd, err = unix.Openat2(dir, name, how); return err })
	if !errors.Is(err, unix.ENOSYS) {
		return fd, err
	}
	// A kernel before 5.6 does not tell what is mounted from the same file system.
	if err := again(func() (err error) { fd, err = unix.Openat(dir, name, flags, 0); return err }); err != nil {
		return -1, err
	}
	above, err := idOf(dir)
	is, ierr := idOf(fd)
	if err = errors.Join(err, ierr); err == nil && above.dev != is.dev {
		err = unix.EXDEV
	}
	if err != nil {
		_ = unix.Close(fd) // nothing was written
		return -1, err
	}
	return fd, nil
}

// Hold calls f with a descriptor of what the entry is at this moment: whatever has its name in the next one, what is done to the descriptor is done to that.
// It can be read if it is a directory that is gone into (Read opens others). Of what is mounted, and of what has gone, f is not called.
func (e *Entry) Hold(f func(fd int, is *unix.Stat_t) error) error {
	fd := e.FD
	if e.Mounted {
		return nil
	}
	if fd < 0 {
		var err error
		fd, err = openHow(e.Dir, e.Name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC)
		if errors.Is(err, unix.EXDEV) || errors.Is(err, unix.ENOENT) {
			return nil
		}
		if err != nil {
			return err
		}
		defer func() { _ = unix.Close(fd) }() // nothing was written
	}
	var st unix.Stat_t
	if err := again(func() error { return unix.Fstat(fd, &st) }); err != nil {
		return err
	}
	return f(fd, &st)
}

// PathOf is a name of what a descriptor is of, whatever others call it.
func PathOf(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }

// failures are what went wrong, of which the first are told.
type failures struct {
	first []error
	more  int
	deep  bool
}

func (f *failures) add(err error, path func() string) {
	if errors.Is(err, ErrTooDeep) { // it is asked for, also after many others
		if f.deep {
			f.more++
			return
		}
		f.deep = true
	} else if len(f.first) >= toldErrors {
		f.more++
		return
	}
	at := path()
	if len(at) > toldBytes {
		at = "…" + at[len(at)-toldBytes:]
	}
	f.first = append(f.first, &os.PathError{Op: "at", Path: at, Err: err})
}

func (f *failures) err() error {
	all := slices.Clone(f.first)
	if f.more > 0 {
		all = append(all, fmt.Errorf("and %d more", f.more))
	}
	return errors.Join(all...)
}
