package raftnode

import (
	"fmt"
	"io/fs"
	"sync"
	"sync/atomic"
	"time"

	"github.com/berth-dev/berth/disk"
)

// hangSteps and hangStep say how long the disk may take for one call before it counts as one that failed: until then a leader goes on with
// its heartbeats, nobody else is elected, and nothing is written. A pause of the whole machine is one step, however long.
const hangSteps, hangStep = 5, 3 * time.Second

// patientSteps is that for the files of a snapshot. They are large, and are written beside what Raft waits for: what makes them last is asked for in
// pieces (snapshotPiece), so that a disk that is slow with them comes back from each, and one that hangs does not.
const patientSteps = 40

// HungError: the disk has not come back from a call.
type HungError struct {
	What string // what was being done
	Path string
	For  time.Duration
}

// Error implements error.
func (e *HungError) Error() string {
	return fmt.Sprintf("the disk hangs, and this server stops rather than lead or follow without it: to %s %s takes longer than %s", e.What, e.Path, e.For)
}

// watchedDisk is a disk that is told of when it does not come back from a call: Raft's own goroutine waits in it, and stops nothing. Many
// calls that are slow, or wait for each other, are no failure.
type watchedDisk struct {
	disk.Disk
	steps int
	hangs *atomic.Pointer[func(*HungError)] // nil in it: nobody is told
}

// watchDisk watches the calls of a disk.
func watchDisk(d disk.Disk) *watchedDisk {
	return &watchedDisk{d, hangSteps, new(atomic.Pointer[func(*HungError)])}
}

// patient is the same disk, for calls that may take longer. Who is told is the same.
func (d *watchedDisk) patient() *watchedDisk { return &watchedDisk{d.Disk, patientSteps, d.hangs} }

// call is one of the disk.
func (d *watchedDisk) call(what, path string, f func() error) error {
	w := &watch{left: d.steps}
	w.timer = time.AfterFunc(time.Duration(1<<62), func() {
		if !w.step() {
			return
		}
		if tell := d.hangs.Load(); tell != nil {
			(*tell)(&HungError{what, path, time.Duration(d.steps) * hangStep})
		}
	})
	w.timer.Reset(hangStep)
	defer w.end()
	return f()
}

// valued is a call of the disk that has a value.
func valued[T any](d *watchedDisk, what, path string, f func() (T, error)) (v T, err error) {
	err = d.call(what, path, func() (err error) { v, err = f(); return err })
	return v, err
}

// watch is over one call of the disk.
type watch struct {
	timer *time.Timer

	mu   sync.Mutex
	left int // steps
	over bool
}

// step says whether the call has had its last step. One that comes back just as the timer fires, as after a pause of the machine, has had none.
func (w *watch) step() (last bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.over {
		return false
	}
	if w.left--; w.left > 0 {
		w.timer.Reset(hangStep)
	}
	return w.left == 0
}

// end is for a call that has come back.
func (w *watch) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.over = true
	w.timer.Stop()
}

// OpenFile implements disk.Disk.
func (d *watchedDisk) OpenFile(path string, flag int, mode fs.FileMode) (disk.File, error) {
	f, err := valued(d, "open", path, func() (disk.File, error) { return d.Disk.OpenFile(path, flag, mode) })
	if err != nil {
		return nil, err
	}
	return &watchedFile{f, d, path}, nil
}

// Mkdir implements disk.Disk.
func (d *watchedDisk) Mkdir(path string, mode fs.FileMode) error {
	return d.call("make", path, func() error { return d.Disk.Mkdir(path, mode) })
}

// Remove implements disk.Disk.
func (d *watchedDisk) Remove(path string) error {
	return d.call("remove", path, func() error { return d.Disk.Remove(path) })
}

// Rename implements disk.Disk.
func (d *watchedDisk) Rename(from, to string) error {
	return d.call("rename", from, func() error { return d.Disk.Rename(from, to) })
}

// Lstat implements disk.Disk.
func (d *watchedDisk) Lstat(path string) (fs.FileInfo, error) {
	return valued(d, "look at", path, func() (fs.FileInfo, error) { return d.Disk.Lstat(path) })
}

// ReadDir implements disk.Disk.
func (d *watchedDisk) ReadDir(path string) ([]fs.DirEntry, error) {
	return valued(d, "list", path, func() ([]fs.DirEntry, error) { return d.Disk.ReadDir(path) })
}

// watchedFile is a file of a watchedDisk.
type watchedFile struct {
	disk.File
	on   *watchedDisk
	path string
}

func (f *watchedFile) call(what string, do func() error) error { return f.on.call(what, f.path, do) }

// Read implements io.Reader.
func (f *watchedFile) Read(b []byte) (int, error) {
	return valued(f.on, "read", f.path, func() (int, error) { return f.File.Read(b) })
}

// ReadAt implements io.ReaderAt.
func (f *watchedFile) ReadAt(b []byte, at int64) (int, error) {
	return valued(f.on, "read", f.path, func() (int, error) { return f.File.ReadAt(b, at) })
}

// Write implements io.Writer.
func (f *watchedFile) Write(b []byte) (int, error) {
	return valued(f.on, "write", f.path, func() (int, error) { return f.File.Write(b) })
}

// WriteAt implements io.WriterAt.
func (f *watchedFile) WriteAt(b []byte, at int64) (int, error) {
	return valued(f.on, "write", f.path, func() (int, error) { return f.File.WriteAt(b, at) })
}

// Stat implements disk.File.
func (f *watchedFile) Stat() (fs.FileInfo, error) {
	return valued(f.on, "look at", f.path, f.File.Stat)
}

// Chmod implements disk.File.
func (f *watchedFile) Chmod(mode fs.FileMode) error {
	return f.call("change", func() error { return f.File.Chmod(mode) })
}

// Truncate implements disk.File.
func (f *watchedFile) Truncate(size int64) error {
	return f.call("cut", func() error { return f.File.Truncate(size) })
}

// Reserve implements disk.File.
func (f *watchedFile) Reserve(size int64) error {
	return f.call("make room in", func() error { return f.File.Reserve(size) })
}

// Sync implements disk.File.
func (f *watchedFile) Sync() error { return f.call("sync", f.File.Sync) }

// Close implements io.Closer.
func (f *watchedFile) Close() error { return f.call("close", f.File.Close) }
