package cri

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-dev/berth/worker/runtime"
	"github.com/berth-dev/berth/worker/runtime/mounts"
)

// pinsDir in a container's directory is where the sub paths of its volumes are mounted.
const pinsDir = "sub"

// mounts are what the container sees of the host: its volumes, its last word and the pod's names.
func (r *Runtime) mounts(ctx context.Context, spec *runtime.Spec) ([]*criv1.Mount, error) {
	var out []*criv1.Mount
	taken := map[string]bool{}
	for i, m := range spec.Mounts {
		one := &criv1.Mount{ContainerPath: m.Target, Readonly: m.ReadOnly,
			RecursiveReadOnly: m.ReadOnly && m.Recursive && r.known().readOnlyBelow}
		if m.Image != "" {
			if err := r.mountImage(ctx, spec.Pod, &m, one); err != nil {
				return nil, fmt.Errorf("volume %q: %w", m.Volume, err)
			}
		}
		if one.Image == nil {
			one.HostPath = m.Source
		}
		if one.Image == nil && m.SubPath != "" {
			one.HostPath = filepath.Join(r.dir(spec.ID), pinsDir, strconv.Itoa(i))
			if err := mounts.Apart(ctx, func() error { return pinSubPath(ctx, &m, one.HostPath) }); err != nil {
				return nil, fmt.Errorf("volume %q, sub path %q: %w", m.Volume, m.SubPath, err)
			}
		}
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
// meanwhile, the container runtime mounts what was looked at. A directory is made where there is nothing, but not in an image,
// whose links lead where they would if it were somebody's root.
func pinSubPath(ctx context.Context, m *runtime.Mount, at string) error {
	resolve := uint64(unix.RESOLVE_IN_ROOT)
	if m.Image == "" {
		resolve = unix.RESOLVE_BENEATH
		if err := mounts.MakeBeneath(m.Source, m.SubPath); err != nil {
			return err
		}
	}
	f, err := openBelow(m.Source, m.SubPath, resolve)
	if err != nil {
		return err
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return err
	}
	if ctx.Err() != nil { // its volume did not answer, and nobody waits for it any more
		return ctx.Err()
	}
	if err := os.MkdirAll(filepath.Dir(at), 0o700); err != nil {
		return err
	}
	if fi.IsDir() {
		err = os.Mkdir(at, 0o700)
	} else {
		err = os.WriteFile(at, nil, 0o600)
	}
	if err != nil {
		return err
	}
	if err := unix.Mount(fmt.Sprintf("/proc/self/fd/%d", f.Fd()), at, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("pinning it: %w", err)
	}
	return nil
}

// Unpin implements runtime.Pinner: a file system in memory would stay for as long as a part of it is mounted somewhere.
func (r *Runtime) Unpin(pod types.UID) error {
	pins, err := filepath.Glob(filepath.Join(globbed(r.podDir(pod)), containersDir, "*", "*", pinsDir))
	for _, dir := range pins {
		err = errors.Join(err, mounts.RemoveAll(context.Background(), dir))
	}
	return err
}

// openBelow opens what is below a directory, without reading: a pipe would wait, and a file may not be readable. The
// kernel sees to it that no link leads out.
func openBelow(dir, path string, resolve uint64) (*os.File, error) {
	base, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer base.Close()
	how := &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: resolve | unix.RESOLVE_NO_MAGICLINKS}
	fd, err := unix.Openat2(int(base.Fd()), path, how)
	if err != nil {
		return nil, fmt.Errorf("opening %s below %s: %w", path, dir, err)
	}
	return os.NewFile(uintptr(fd), path), nil
}
