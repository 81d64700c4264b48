package mounts

import (
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// Used is what is held of a file system.
type Used struct{ Bytes, Inodes int64 }

// Usage is what is allocated below a directory, itself included. A file with several names counts once for each, so a pod cannot
// hide any. What vanishes meanwhile counts nothing, nor does what is on another device: it is mounted there, and may not answer.
func Usage(ctx context.Context, dir string) (sum Used, err error) {
	result := make(chan Used, 1)
	err = Apart(ctx, func() error {
		used, err := usage(ctx, dir)
		result <- used
		return err
	})
	select {
	case sum = <-result:
	default: // it was given up
	}
	return sum, err
}

func usage(ctx context.Context, dir string) (Used, error) {
	var sum Used
	var device uint64
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if os.IsNotExist(err) {
			return nil
		}
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			return err
		}
		fi, err := e.Info()
		if err != nil {
			return nil // it vanished
		}
		st, ok := fi.Sys().(*syscall.Stat_t)
		switch {
		case !ok:
		case path == dir:
			device = uint64(st.Dev)
		case uint64(st.Dev) != device && e.IsDir():
			return fs.SkipDir
		case uint64(st.Dev) != device:
			return nil
		}
		sum.Inodes++
		if ok && !e.IsDir() {
			sum.Bytes += st.Blocks * 512
		}
		return nil
	})
	return sum, err
}
