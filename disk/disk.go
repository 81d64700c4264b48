// Package disk is the directories and files that a server keeps its data in, as
// the packages need them that write there. OS is the machine's.
//
// What is promised is what POSIX promises: bytes and names are there after a loss
// of power once the file, or the directory that names it, was synced.
package disk

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
)

// Disk opens and names files. Errors are as those of package os.
type Disk interface {
	// OpenFile takes the flags of package os. A directory can be opened for
	// reading, to be synced or held.
	OpenFile(path string, flag int, mode fs.FileMode) (File, error)
	Mkdir(path string, mode fs.FileMode) error
	// Remove takes a file or an empty directory away.
	Remove(path string) error
	Rename(from, to string) error
	Lstat(path string) (fs.FileInfo, error)
	// ReadDir lists a directory, sorted by name.
	ReadDir(path string) ([]fs.DirEntry, error)
}

// File is an open file or directory.
type File interface {
	io.ReadWriteCloser
	io.ReaderAt
	io.WriterAt
	Stat() (fs.FileInfo, error)
	Chmod(mode fs.FileMode) error
	Truncate(size int64) error
	// Reserve makes a file reach to a size, with zeroes; what is there stays.
	Reserve(size int64) error
	// Sync returns when the bytes and the length are on the disk; of a
	// directory, the names in it.
	Sync() error
	// Hold takes a file or directory for this process, until it is closed;
	// shared, with others who share it. It does not wait: ErrHeld.
	Hold(shared bool) error
}

// ErrHeld means that somebody else holds the file or directory.
var ErrHeld = errors.New("it is held by another process")

// Open opens a file for reading.
func Open(d Disk, path string) (File, error) { return d.OpenFile(path, os.O_RDONLY, 0) }

// Create makes a file, or empties one that is there.
func Create(d Disk, path string, mode fs.FileMode) (File, error) {
	return d.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_TRUNC, mode)
}

// CreateTemp makes a file that nobody else has, for its owner alone; the last * of
// pattern becomes a number.
func CreateTemp(d Disk, dir, pattern string) (_ File, path string, err error) {
	head, tail, _ := cutLast(pattern, '*')
	for range 10000 {
		path = filepath.Join(dir, fmt.Sprint(head, rand.Uint32(), tail)) // #nosec G404 -- a name that is taken is tried again, as by os.CreateTemp
		f, err := d.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
		if !errors.Is(err, fs.ErrExist) {
			return f, path, err
		}
	}
	return nil, "", &fs.PathError{Op: "createtemp", Path: filepath.Join(dir, pattern), Err: fs.ErrExist}
}

func cutLast(s string, sep byte) (before, after string, found bool) {
	if i := strings.LastIndexByte(s, sep); i >= 0 {
		return s[:i], s[i+1:], true
	}
	return s, "", false
}

// MkdirAll makes a directory and those above it. Their names outlast a loss of
// power: what is synced in a directory that nothing names is lost. That holds too
// where a process that made some of them was ended before it could sync: each is
// synced before the one below it is made, so only the lowest that is there can be
// without a name.
func MkdirAll(d Disk, path string, mode fs.FileMode) error {
	parent := filepath.Dir(path)
	st, err := d.Lstat(path)
	switch {
	case err == nil && st.Mode().IsRegular():
		return &fs.PathError{Op: "mkdir", Path: path, Err: fs.ErrExist}
	case err == nil:
		// Who may not read a directory did not make what is in it, and its name
		// is another's care.
		if err := SyncDir(d, parent); !errors.Is(err, fs.ErrPermission) {
			return err
		}
		return nil
	case !errors.Is(err, fs.ErrNotExist) || parent == path:
		return err
	}
	if err := MkdirAll(d, parent, mode); err != nil {
		return err
	}
	if err := d.Mkdir(path, mode); err != nil && !errors.Is(err, fs.ErrExist) { // somebody else made it meanwhile
		return err
	}
	return SyncDir(d, parent)
}

// RemoveAll takes away what is at a path and below it; nothing may be.
func RemoveAll(d Disk, path string) error {
	st, err := d.Lstat(path)
	if err == nil && st.IsDir() {
		var entries []fs.DirEntry
		entries, err = d.ReadDir(path)
		for _, e := range entries {
			if err := RemoveAll(d, filepath.Join(path, e.Name())); err != nil {
				return err
			}
		}
	}
	if err == nil {
		err = d.Remove(path)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// ReadFile reads a file of at most so many bytes. The error of a larger one names
// it.
func ReadFile(d Disk, path string, atMost int64) ([]byte, error) {
	f, err := Open(d, path)
	if err != nil {
		return nil, err
	}
	b, err := io.ReadAll(io.LimitReader(f, atMost+1))
	if err = errors.Join(err, f.Close()); err != nil {
		return nil, err
	}
	if int64(len(b)) > atMost {
		return nil, fmt.Errorf("%s is larger than %d bytes", path, atMost)
	}
	return b, nil
}

// SyncDir makes the names in a directory outlast a loss of power: a file that is
// synced may be gone as long as the directory that names it is not.
func SyncDir(d Disk, dir string) error {
	f, err := Open(d, dir)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
