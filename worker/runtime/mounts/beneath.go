package mounts

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// MakeBeneath makes directories of a path below dir where there is nothing, and never leaves dir. They have the mode of dir, whatever the umask of the process
// is, as with a kubelet: who may write in a volume may write in a part of it, and who may not remove there what others made may not here.
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
	mode := top.Mode() & (fs.ModePerm | fs.ModeSetgid | fs.ModeSticky)
	at := ""
	for name := range strings.SplitSeq(filepath.Clean(path), "/") {
		at = filepath.Join(at, name)
		err := root.Mkdir(at, mode.Perm())
		if errors.Is(err, fs.ErrExist) {
			continue
		}
		if err == nil {
			err = setMode(root, at, mode)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// setMode sets the mode of a directory that was just made. One that somebody has put in its place meanwhile is not followed if it is a link.
func setMode(root *os.Root, at string, mode fs.FileMode) error {
	above, err := root.Open(filepath.Dir(at))
	if err != nil {
		return err
	}
	defer above.Close()
	fd, err := unix.Openat(int(above.Fd()), filepath.Base(at), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: at, Err: err}
	}
	defer unix.Close(fd)
	bits := uint32(mode.Perm())
	if mode&fs.ModeSetgid != 0 {
		bits |= unix.S_ISGID
	}
	if mode&fs.ModeSticky != 0 {
		bits |= unix.S_ISVTX
	}
	if err := unix.Fchmod(fd, bits); err != nil {
		return &os.PathError{Op: "chmod", Path: at, Err: err}
	}
	return nil
}
