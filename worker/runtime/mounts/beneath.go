package mounts

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// MakeBeneath makes directories of a path below dir where there is nothing, and never leaves dir. They have the mode of dir, whatever the umask of the process
// is, as with a kubelet: who may write in a volume may write in a part of it.
func MakeBeneath(dir, path string) error {
	if path == "" {
		return nil
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	if _, err := root.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	top, err := root.Stat(".")
	if err != nil {
		return err
	}
	at := ""
	for name := range strings.SplitSeq(filepath.Clean(path), "/") {
		at = filepath.Join(at, name)
		err := root.Mkdir(at, top.Mode().Perm())
		if errors.Is(err, fs.ErrExist) {
			continue
		}
		var made fs.FileInfo
		if err == nil {
			made, err = root.Lstat(at)
		}
		if err == nil && made.IsDir() { // its group's bit it has from where it was made
			err = root.Chmod(at, top.Mode().Perm()|made.Mode()&fs.ModeSetgid)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
