package disk

import (
	"errors"
	"io/fs"
	"os"
	"syscall"
)

// OS is this machine's files.
type OS struct{}

var _ Disk = OS{}

// OpenFile implements Disk.
func (OS) OpenFile(path string, flag int, mode fs.FileMode) (File, error) {
	f, err := os.OpenFile(path, flag, mode)
	if err != nil {
		return nil, err
	}
	return &osFile{File: f, written: flag&(os.O_RDWR|os.O_WRONLY) != 0}, nil
}

// Mkdir implements Disk.
func (OS) Mkdir(path string, mode fs.FileMode) error { return os.Mkdir(path, mode) }

// Remove implements Disk.
func (OS) Remove(path string) error { return os.Remove(path) }

// Rename implements Disk.
func (OS) Rename(from, to string) error { return os.Rename(from, to) }

// Lstat implements Disk.
func (OS) Lstat(path string) (fs.FileInfo, error) { return os.Lstat(path) }

// ReadDir implements Disk.
func (OS) ReadDir(path string) ([]fs.DirEntry, error) { return os.ReadDir(path) }

type osFile struct {
	*os.File
	written bool
}

// Sync implements File. The length of a file that has grown is synced with its
// data; other attributes need not be.
func (f *osFile) Sync() error {
	if !f.written {
		return f.File.Sync()
	}
	for {
		if err := syscall.Fdatasync(int(f.Fd())); !errors.Is(err, syscall.EINTR) {
			return os.NewSyscallError("fdatasync", err)
		}
	}
}

// Reserve implements File.
func (f *osFile) Reserve(size int64) error {
	return os.NewSyscallError("fallocate", syscall.Fallocate(int(f.Fd()), 0, 0, size))
}

// Hold implements File.
func (f *osFile) Hold(shared bool) error {
	how := syscall.LOCK_EX
	if shared {
		how = syscall.LOCK_SH
	}
	for {
		switch err := syscall.Flock(int(f.Fd()), how|syscall.LOCK_NB); {
		case errors.Is(err, syscall.EWOULDBLOCK):
			return ErrHeld
		case !errors.Is(err, syscall.EINTR):
			return os.NewSyscallError("flock", err)
		}
	}
}
