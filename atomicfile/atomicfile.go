// Package atomicfile replaces files whole: whenever the process or the machine
// stops, a file is the old one or the new one, and what a call that returned
// has written is still there afterwards.
//
// Its functions are for the machine's own files; Files is the same on any disk.
//
// It must never know what is in a file.
package atomicfile

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"strings"

	"github.com/berth-dev/berth/disk"
)

// prefix begins the names of files that are not finished.
const prefix = ".unfinished-"

// Files are those of a disk.
type Files struct{ disk.Disk }

// Write is Files.Write on this machine.
func Write(path string, b []byte, mode fs.FileMode) error {
	return Files{disk.OS{}}.Write(path, b, mode)
}

// WriteFrom is Files.WriteFrom on this machine.
func WriteFrom(path string, mode fs.FileMode, fill func(w io.Writer, path string) error) error {
	return Files{disk.OS{}}.WriteFrom(path, mode, fill)
}

// Rename is Files.Rename on this machine.
func Rename(from, to string) error { return Files{disk.OS{}}.Rename(from, to) }

// Sweep is Files.Sweep on this machine.
func Sweep(dir string) error { return Files{disk.OS{}}.Sweep(dir) }

// Write puts b at path, with the permissions of mode. The bytes, the name and
// the directory are synced before it returns.
func (d Files) Write(path string, b []byte, mode fs.FileMode) error {
	return d.WriteFrom(path, mode, func(w io.Writer, _ string) error {
		_, err := w.Write(b)
		return err
	})
}

// WriteFrom is Write for what fill writes into a file that is for now at a path of
// its own. If fill fails, nothing changes, and its error is returned.
func (d Files) WriteFrom(path string, mode fs.FileMode, fill func(w io.Writer, path string) error) error {
	dir := filepath.Dir(path)
	f, temp, err := disk.CreateTemp(d, dir, prefix+filepath.Base(path)+"-*")
	if err != nil {
		return err
	}
	if err = fill(f, temp); err == nil {
		err = f.Chmod(mode)
	}
	if err == nil {
		err = f.Sync()
	}
	if closing := f.Close(); err == nil {
		err = closing
	}
	if err == nil {
		err = d.Disk.Rename(temp, path)
	}
	if err != nil {
		return errors.Join(err, d.Disk.Remove(temp))
	}
	return disk.SyncDir(d, dir)
}

// Rename gives a file of a directory another name there, for good.
func (d Files) Rename(from, to string) error {
	if filepath.Dir(from) != filepath.Dir(to) {
		return fmt.Errorf("rename %s to %s: they are in two directories", from, to)
	}
	if err := d.Disk.Rename(from, to); err != nil {
		return err
	}
	return disk.SyncDir(d, filepath.Dir(to))
}

// Remove takes a file away for good. It may be gone already.
func (d Files) Remove(path string) error {
	if err := d.Disk.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return disk.SyncDir(d, filepath.Dir(path))
}

// Sweep removes what writes that were cut off have left in a directory. Nobody
// may be writing there. A directory that is not there has nothing left over.
func (d Files) Sweep(dir string) error {
	entries, err := d.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), prefix) || !e.Type().IsRegular() {
			continue
		}
		if err := d.Disk.Remove(filepath.Join(dir, e.Name())); err != nil {
			return err
		}
	}
	return nil
}
