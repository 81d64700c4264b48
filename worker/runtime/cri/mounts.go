package cri

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-dev/berth/worker/runtime"
)

// mounts are what the container sees of the host: its volumes, its last word and the pod's names.
func (r *Runtime) mounts(spec *runtime.Spec) ([]*criv1.Mount, error) {
	var out []*criv1.Mount
	taken := map[string]bool{}
	for i, m := range spec.Mounts {
		source := m.Source
		if m.SubPath != "" {
			var err error
			if source, err = pinSubPath(&m, filepath.Join(r.dir(spec.ID), "sub", strconv.Itoa(i))); err != nil {
				return nil, fmt.Errorf("volume %q, sub path %q: %w", m.Volume, m.SubPath, err)
			}
		}
		one := &criv1.Mount{HostPath: source, ContainerPath: m.Target, Readonly: m.ReadOnly,
			RecursiveReadOnly: m.ReadOnly && m.Recursive && r.known().readOnlyBelow}
		switch {
		case m.Share:
			one.Propagation = criv1.MountPropagation_PROPAGATION_BIDIRECTIONAL
		case m.Follow:
			one.Propagation = criv1.MountPropagation_PROPAGATION_HOST_TO_CONTAINER
		}
		taken[filepath.Clean(m.Target)] = true
		out = append(out, one)
	}
	// A volume over one of these is what the pod wants there.
	if hosts := filepath.Join(r.podDir(spec.ID.Pod), hostsFile); !taken["/etc/hosts"] && exists(hosts) {
		out = append(out, &criv1.Mount{HostPath: hosts, ContainerPath: "/etc/hosts"})
	}
	last := spec.Container.TerminationMessagePath
	if last == "" {
		last = defaultTerminationPath
	}
	if !taken[filepath.Clean(last)] {
		out = append(out, &criv1.Mount{HostPath: filepath.Join(r.dir(spec.ID), terminationFile), ContainerPath: last})
	}
	return out, nil
}

// pinSubPath mounts what a sub path is at this moment at a place of the agent's own: whatever becomes a symbolic link
// meanwhile, the container runtime mounts what was looked at. A directory is made where there is nothing.
func pinSubPath(m *runtime.Mount, at string) (string, error) {
	root, err := os.OpenRoot(m.Source)
	if err != nil {
		return "", err
	}
	defer root.Close()
	if _, err := root.Stat(m.SubPath); os.IsNotExist(err) {
		err = root.MkdirAll(m.SubPath, 0o755)
		if err != nil {
			return "", err
		}
	}
	f, err := openBeneath(m.Source, m.SubPath)
	if err != nil {
		return "", err
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(filepath.Dir(at), 0o700); err != nil {
		return "", err
	}
	if fi.IsDir() {
		err = os.Mkdir(at, 0o700)
	} else {
		err = os.WriteFile(at, nil, 0o600)
	}
	if err != nil {
		return "", err
	}
	if err := unix.Mount(fmt.Sprintf("/proc/self/fd/%d", f.Fd()), at, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return "", fmt.Errorf("pinning it: %w", err)
	}
	return at, nil
}

// openBeneath opens what is below a directory, without reading: a pipe would wait, and a file may not be readable. The
// kernel sees to it that no link leads out.
func openBeneath(dir, path string) (*os.File, error) {
	base, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer base.Close()
	how := &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_MAGICLINKS}
	fd, err := unix.Openat2(int(base.Fd()), path, how)
	if err != nil {
		return nil, fmt.Errorf("opening %s below %s: %w", path, dir, err)
	}
	return os.NewFile(uintptr(fd), path), nil
}
