// Package atomicfile replaces files whole: whenever the process or the machine
// stops, a file is the old one or the new one, and what a call that returned
// has written is still there afterwards.
//
// It must never know what is in a file.
package atomicfile

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// prefix begins the names of files that are not finished.
const prefix = ".unfinished-"

// Write puts b at path, with the permissions of mode. The bytes, the name and
// the directory are synced before it returns.
func Write(path string, b []byte, mode fs.FileMode) error {
	return WriteFrom(path, mode, func(f *os.File) error {
		_, err := f.Write(b)
		return err
	})
}

// WriteFrom is Write for what fill writes. If fill fails, nothing changes at
// path, and its error is returned. fill does not close the file.
func WriteFrom(path string, mode fs.FileMode, fill func(f *os.File) error) error {
	dir := filepath.Dir(path)
	f, err := os.CreateTemp(dir, prefix+filepath.Base(path)+"-*")
	if err != nil {
		return err
	}
	err = fill(f)
	if err == nil {
		err = errors.Join(f.Chmod(mode), f.Sync())
	}
	if closing := f.Close(); err == nil {
		err = closing
	}
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return SyncDir(dir)
}

// Rename gives a file of a directory another name there, for good.
func Rename(from, to string) error {
	if filepath.Dir(from) != filepath.Dir(to) {
		return fmt.Errorf("rename %s to %s: they are in two directories", from, to)
	}
	if err := os.Rename(from, to); err != nil {
		return err
	}
	return SyncDir(filepath.Dir(to))
}

// Remove takes a file away for good. It may be gone already.
func Remove(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return SyncDir(filepath.Dir(path))
}

// SyncDir makes the names in a directory outlast a loss of power: a file that is
// synced may be gone as long as the directory that names it is not.
func SyncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// Sweep removes what writes that were cut off have left in a directory. Nobody
// may be writing there. A directory that is not there has nothing left over.
func Sweep(dir string) error {
	entries, err := os.ReadDir(dir)
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
		if err := os.Remove(filepath.Join(dir, e.Name())); err != nil {
			return err
		}
	}
	return nil
}

// Read is os.ReadFile with a bound: a damaged or foreign file may be of any
// size. The error of a larger one names it.
func Read(path string, atMost int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, atMost+1))
	if err != nil {
		return nil, err
	}
	if int64(len(b)) > atMost {
		return nil, fmt.Errorf("%s is larger than %d bytes", path, atMost)
	}
	return b, nil
}
