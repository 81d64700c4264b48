package mounts

import (
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// Usage is what is allocated below a directory, in bytes. A file with several names counts once for each, so a pod cannot
// hide any. What vanishes meanwhile counts nothing, nor does what is on another device: it is mounted there.
func Usage(ctx context.Context, dir string) (int64, error) {
	var sum int64
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
		if ok && !e.IsDir() {
			sum += st.Blocks * 512
		}
		return nil
	})
	return sum, err
}
