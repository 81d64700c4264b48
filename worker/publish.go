package worker

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// dataLink is the symbolic link over which the files of a volume are seen, as in Kubernetes: NAME leads to ..data/NAME,
// and ..data to the directory with the files of the moment. Changing where it leads changes all files at once.
const dataLink = "..data"

// volumeFile is one file of a configMap, secret, downwardAPI or projected volume.
type volumeFile struct {
	data  []byte
	mode  *int32 // nil: the volume's
	owner *int64 // nil: the agent's
}

// publish makes files what a volume holds, all at once. Where it holds them already nothing is touched.
func publish(dir string, files map[string]volumeFile, defaultMode *int32, group *int64) error {
	for path := range files {
		if !filepath.IsLocal(path) || strings.HasPrefix(path, "..") {
			return fmt.Errorf("a volume has no file %q", path)
		}
	}
	if err := os.MkdirAll(dir, 0o755); err != nil { // #nosec G301 -- whoever the containers run as has to get there
		return err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	current, err := root.Readlink(dataLink)
	switch {
	case os.IsNotExist(err):
		if err := removeEntries(root, func(string) bool { return false }); err != nil { // what an earlier version of the agent had written
			return err
		}
	case err != nil:
		return err
	case holds(root, current, files):
		return showFiles(root, current, files) // whoever wrote them may have ended before that
	}
	made, err := os.MkdirTemp(dir, time.Now().UTC().Format("..2006_01_02_15_04_05."))
	if err != nil {
		return err
	}
	next := filepath.Base(made)
	if err := exchange(root, next, files, defaultMode, group); err != nil {
		return errors.Join(err, root.RemoveAll(next)) // nobody sees it, and each try makes another one
	}
	return showFiles(root, next, files)
}

// exchange has ..data lead to a new directory with the files.
func exchange(root *os.Root, next string, files map[string]volumeFile, defaultMode *int32, group *int64) error {
	if err := writeFiles(root, next, files, defaultMode); err != nil {
		return err
	}
	dir, err := root.Open(".")
	if err != nil {
		return err
	}
	defer func() { _ = dir.Close() }() // nothing was written
	if err := giveToGroup(context.Background(), dir, group, readOnlyBits); err != nil {
		return err
	}
	const before = dataLink + "_tmp"
	if err := root.Remove(before); err != nil && !os.IsNotExist(err) {
		return err
	}
	if err := root.Symlink(next, before); err != nil {
		return err
	}
	return root.Rename(before, dataLink)
}

// showFiles makes what leads to the files of the moment, and removes what is not part of the volume any more.
func showFiles(root *os.Root, current string, files map[string]volumeFile) error {
	for name := range topNames(files) {
		if err := root.Symlink(dataLink+"/"+name, name); err != nil && !os.IsExist(err) {
			return err
		}
	}
	return tidyVolume(root, current, files)
}

// writeFiles writes files below a directory of the volume that ..data does not lead to yet. Whatever somebody makes of it meanwhile, nothing is
// written outside of the volume.
func writeFiles(volume *os.Root, dir string, files map[string]volumeFile, defaultMode *int32) error {
	root, err := volume.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	if err := root.Chmod(".", 0o755); err != nil {
		return err
	}
	for _, path := range slices.Sorted(maps.Keys(files)) {
		f := files[path]
		mode := os.FileMode(0o644)
		if defaultMode != nil {
			mode = os.FileMode(*defaultMode) & os.ModePerm
		}
		if f.mode != nil {
			mode = os.FileMode(*f.mode) & os.ModePerm
		}
		if i := strings.LastIndexByte(path, '/'); i > 0 {
			if err := root.MkdirAll(path[:i], 0o755); err != nil {
				return err
			}
		}
		if err := writeNew(root, path, f.data, mode); err != nil {
			return err
		}
		if err := root.Chmod(path, mode); err != nil {
			return err
		}
		if f.owner != nil {
			if err := root.Chown(path, int(*f.owner), -1); err != nil {
				return err
			}
		}
	}
	return nil
}

// writeNew fails where there is something already: whoever may write into the volume might have made a pipe there.
func writeNew(root *os.Root, path string, data []byte, mode os.FileMode) error {
	f, err := root.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	return errors.Join(err, f.Close())
}

// errOther ends a comparison.
var errOther = errors.New("the volume holds something else")

// holds says whether a directory of the volume has these files and no others.
func holds(root *os.Root, dir string, files map[string]volumeFile) bool {
	found := 0
	err := fs.WalkDir(root.FS(), dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		rel, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		f, wanted := files[rel]
		if !wanted {
			return errOther
		}
		if !says(root, path, f.data) {
			return errOther
		}
		found++
		return nil
	})
	return err == nil && found == len(files)
}

// says whether a file has this text. Whatever a pod has made of it, of a pipe or something large it is not read.
func says(root *os.Root, path string, text []byte) bool {
	f, err := root.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return false
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil || !fi.Mode().IsRegular() || fi.Size() != int64(len(text)) {
		return false
	}
	data, err := io.ReadAll(io.LimitReader(f, fi.Size()+1))
	return err == nil && bytes.Equal(data, text)
}

func topNames(files map[string]volumeFile) map[string]bool {
	out := map[string]bool{}
	for path := range files {
		name, _, _ := strings.Cut(path, "/")
		out[name] = true
	}
	return out
}

// tidyVolume removes what is not part of the volume any more.
func tidyVolume(root *os.Root, current string, files map[string]volumeFile) error {
	names := topNames(files)
	return removeEntries(root, func(name string) bool { return name == dataLink || name == current || names[name] })
}

func removeEntries(root *os.Root, keep func(name string) bool) error {
	entries, err := fs.ReadDir(root.FS(), ".")
	if err != nil {
		return err
	}
	for _, e := range entries {
		if !keep(e.Name()) {
			if err := root.RemoveAll(e.Name()); err != nil {
				return err
			}
		}
	}
	return nil
}
