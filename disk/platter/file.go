package platter

import (
	"errors"
	"io"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/berth-dev/berth/disk"
)

// openFile is a file of one process.
type openFile struct {
	disk   *Mounted
	inode  *inode
	path   string
	at     int64 // where Read and Write go on
	closed bool
}

// use is called with mu held.
func (f *openFile) use(op string) error {
	switch {
	case f.closed:
		return pathError(op, f.path, fs.ErrClosed)
	case op != "read" && op != "stat" && f.disk.burn(f.path), f.disk.dead, op == "read" && f.disk.unreadable != "" && strings.Contains(f.path, f.disk.unreadable):
		return pathError(op, f.path, syscall.EIO)
	}
	return nil
}

// Read implements disk.File.
func (f *openFile) Read(b []byte) (int, error) {
	n, err := f.ReadAt(b, f.at)
	f.at += int64(n)
	if n > 0 && errors.Is(err, io.EOF) {
		err = nil
	}
	return n, err
}

// ReadAt implements disk.File.
func (f *openFile) ReadAt(b []byte, at int64) (int, error) {
	f.disk.mu.Lock()
	defer f.disk.mu.Unlock()
	if err := f.use("read"); err != nil {
		return 0, err
	}
	if at >= f.inode.seen.size {
		return 0, io.EOF
	}
	n := f.inode.seen.read(b, at)
	if n < len(b) {
		return n, io.EOF
	}
	return n, nil
}

// Write implements disk.File.
func (f *openFile) Write(b []byte) (int, error) {
	n, err := f.WriteAt(b, f.at)
	f.at += int64(n)
	return n, err
}

// WriteAt implements disk.File.
func (f *openFile) WriteAt(b []byte, at int64) (int, error) {
	f.disk.mu.Lock()
	defer f.disk.mu.Unlock()
	if err := f.use("write"); err != nil {
		return 0, err
	}
	if f.disk.full && at+int64(len(b)) > f.inode.seen.size {
		return 0, pathError("write", f.path, syscall.ENOSPC)
	}
	f.inode.seen.overwrite(at, b)
	f.inode.since = append(f.inode.since, write{at: at, bytes: slices.Clone(b)})
	return len(b), nil
}

func (n *inode) resize(size int64) {
	n.seen.resize(size)
	n.since = append(n.since, write{size: size})
}

// Truncate implements disk.File.
func (f *openFile) Truncate(size int64) error {
	f.disk.mu.Lock()
	defer f.disk.mu.Unlock()
	if err := f.use("truncate"); err != nil {
		return err
	}
	f.inode.resize(size)
	return nil
}

// Reserve implements disk.File.
func (f *openFile) Reserve(size int64) error {
	f.disk.mu.Lock()
	defer f.disk.mu.Unlock()
	if err := f.use("fallocate"); err != nil {
		return err
	}
	if size <= f.inode.seen.size {
		return nil
	}
	if f.disk.full {
		return pathError("fallocate", f.path, syscall.ENOSPC)
	}
	f.inode.resize(size)
	return nil
}

// Stat implements disk.File.
func (f *openFile) Stat() (fs.FileInfo, error) {
	f.disk.mu.Lock()
	defer f.disk.mu.Unlock()
	if err := f.use("stat"); err != nil {
		return nil, err
	}
	return f.inode.info(filepath.Base(f.path)), nil
}

// Chmod implements disk.File. Nobody is kept out here.
func (f *openFile) Chmod(fs.FileMode) error {
	f.disk.mu.Lock()
	defer f.disk.mu.Unlock()
	return f.use("chmod")
}

// Sync implements disk.File. A process that ends meanwhile has not synced.
func (f *openFile) Sync() error {
	f.disk.beginSync(f.path)
	if d := f.disk.delay(); d > 0 {
		<-time.After(d)
	}
	f.disk.mu.Lock()
	defer f.disk.mu.Unlock()
	if err := f.use("sync"); err != nil {
		return err
	}
	n := f.inode
	for _, w := range n.since {
		if w.bytes == nil {
			n.synced.resize(w.size)
		} else {
			n.synced.overwrite(w.at, w.bytes)
		}
	}
	n.since = nil
	for _, m := range n.moved {
		m.apply(n.kept)
	}
	n.moved = nil
	return nil
}

// Hold implements disk.File.
func (f *openFile) Hold(shared bool) error {
	f.disk.mu.Lock()
	defer f.disk.mu.Unlock()
	if err := f.use("flock"); err != nil {
		return err
	}
	for o, sharing := range f.inode.held {
		if o != f && !(shared && sharing) {
			return disk.ErrHeld
		}
	}
	if f.inode.held == nil {
		f.inode.held = map[*openFile]bool{}
	}
	f.inode.held[f] = shared
	return nil
}

// Close implements disk.File.
func (f *openFile) Close() error {
	f.disk.mu.Lock()
	defer f.disk.mu.Unlock()
	if f.closed {
		return pathError("close", f.path, fs.ErrClosed)
	}
	f.closed = true
	delete(f.inode.held, f)
	return nil
}
