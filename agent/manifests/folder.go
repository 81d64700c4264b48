package manifests

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"
	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/worker"
)

const (
	// maxFiles bounds the files of a folder, and maxBytes one of them.
	maxFiles = 500
	maxBytes = 1 << 20
	// lookInterval is how often the folder is looked at.
	lookInterval = time.Second
)

// Folder is a folder with one pod in each file.
type Folder struct {
	Dir    string
	Node   string // its name
	Logger hclog.Logger
	// Tell is told why a pod of the folder is not run as its file has it, or why the folder is not read; nil: that is logged and no more. It must
	// not block.
	Tell func(message string)

	files map[string]file
	told  string // what was wrong with the folder when that was told last
}

// file is a file as it was read last.
type file struct {
	modified time.Time
	size     int64
	inode    uint64
	pod      *corev1.Pod // nil: it holds none that can be run
	key      string      // namespace/name of the pod
}

// Run looks at the folder until ctx ends, and hands over what it holds whenever that is another thing.
func (f *Folder) Run(ctx context.Context, take func(worker.Manifests)) {
	for {
		if m, changed := f.look(); changed {
			take(m)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(lookInterval):
		}
	}
}

// look reads what is new, and says whether anything is. A folder that cannot be read says nothing: what runs goes on.
func (f *Folder) look() (worker.Manifests, bool) {
	names, err := f.names()
	if err != nil {
		if text := err.Error(); text != f.told {
			f.told = text
			f.Logger.Warn("the folder of static pods cannot be read; those that run go on", "folder", f.Dir, "error", err)
			f.tell(fmt.Sprintf("The folder of static pods cannot be read; those that run go on: %v", err))
		}
		return worker.Manifests{}, false
	}
	f.told = ""
	changed := f.files == nil
	now := make(map[string]file, len(names))
	for _, name := range names {
		old, known := f.files[name]
		one, same := f.read(name, old, known)
		now[name] = one
		changed = changed || !same
	}
	changed = changed || len(now) != len(f.files)
	f.files = now
	if !changed {
		return worker.Manifests{}, false
	}
	return f.manifests(names), true
}

// manifests puts together what the files hold. Of two with the same pod the first by name counts.
func (f *Folder) manifests(names []string) worker.Manifests {
	var m worker.Manifests
	by := map[string]string{}
	for _, name := range names {
		one := f.files[name]
		if one.pod == nil {
			m.Broken = append(m.Broken, name)
			continue
		}
		if first, taken := by[one.key]; taken {
			f.Logger.Warn("two static pods have the same name; the second is not run", "pod", one.key, "file", name, "first", first)
			f.tell(fmt.Sprintf("The static pod %s of %s is not run: %s has one of the same name", one.key, name, first))
			continue
		}
		by[one.key] = name
		m.Pods = append(m.Pods, one.pod)
	}
	return m
}

// names are the folder's files, sorted. Names that begin with a dot are of editors and of mounted volumes.
func (f *Folder) names() ([]string, error) {
	dir, err := os.Open(f.Dir)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	var names []string
	for {
		entries, err := dir.ReadDir(maxFiles)
		for _, e := range entries {
			if !strings.HasPrefix(e.Name(), ".") && !e.IsDir() {
				names = append(names, e.Name())
			}
		}
		if len(names) > maxFiles {
			return nil, fmt.Errorf("it has more than %d files", maxFiles)
		}
		if errors.Is(err, io.EOF) {
			slices.Sort(names)
			return names, nil
		}
		if err != nil {
			return nil, err
		}
	}
}

// read reads a file, unless it is as it was. Of one that cannot be read, or holds no pod, what it held before goes on.
func (f *Folder) read(name string, old file, known bool) (now file, same bool) {
	path := filepath.Join(f.Dir, name)
	fi, err := os.Stat(path)
	if err == nil {
		now = file{modified: fi.ModTime(), size: fi.Size()}
		if st, ok := fi.Sys().(*syscall.Stat_t); ok {
			now.inode = st.Ino
		}
	}
	if known && now.modified.Equal(old.modified) && now.size == old.size && now.inode == old.inode {
		return old, true
	}
	var pod *corev1.Pod
	if err == nil {
		pod, err = f.decode(path, name, fi)
	}
	if err != nil {
		f.Logger.Warn("a static pod cannot be run as its file has it now; one that runs goes on as it is", "file", path, "error", err)
		f.tell(fmt.Sprintf("A static pod cannot be run as its file has it now; one that runs goes on as it is: %v", err))
		now.pod, now.key = old.pod, old.key
		return now, known
	}
	now.pod, now.key = pod, pod.Namespace+"/"+pod.Name
	return now, old.pod != nil && old.pod.UID == pod.UID
}

func (f *Folder) tell(message string) {
	if f.Tell != nil {
		f.Tell(message)
	}
}

// decode reads a file. Its errors name it.
func (f *Folder) decode(path, name string, fi os.FileInfo) (*corev1.Pod, error) {
	if !fi.Mode().IsRegular() {
		return nil, fmt.Errorf("%s: it is no regular file", name)
	}
	// It may have become something else meanwhile, which would hold up whoever opens it.
	in, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer in.Close()
	data, err := io.ReadAll(io.LimitReader(in, maxBytes+1))
	if err != nil {
		return nil, err
	}
	if len(data) > maxBytes {
		return nil, fmt.Errorf("%s: it has more than %d bytes", name, maxBytes)
	}
	return decode(name, data, f.Node)
}
