package cgroup

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Kill ends every process in a cgroup and below it, and returns how many it has told. It does not wait: a cgroup can be removed when
// they are gone. One that is not there has none.
func (t *Tree) Kill(name string) (int, error) {
	roots, err := t.roots()
	if err != nil {
		return 0, err
	}
	told := map[int]bool{}
	var errs []error
	for _, root := range roots {
		err := filepath.WalkDir(filepath.Join(root, t.Parent, name), func(path string, e os.DirEntry, err error) error {
			switch {
			case errors.Is(err, os.ErrNotExist), errors.Is(err, unix.ENOTDIR):
				return nil // it went meanwhile, or there is none in this hierarchy
			case err != nil:
				return err
			case e.Name() != "cgroup.procs":
				return nil
			}
			pids, err := processesOf(path)
			for _, pid := range pids {
				if !told[pid] {
					told[pid] = true
					errs = append(errs, killIn(path, pid))
				}
			}
			return err
		})
		errs = append(errs, err)
	}
	return len(told), errors.Join(errs...)
}

// endPause is how long End waits at most before it looks again.
const endPause = 100 * time.Millisecond

// End kills what is in a cgroup and below it until nothing is: what a process has started in the moment of its end, too. One that waits in the
// kernel, for a disk or another machine, ends later: then it fails when ctx ends. So it does where it cannot be seen what is in there: only a cgroup that
// is not there, or that lists nothing, is empty.
func (t *Tree) End(ctx context.Context, name string) error {
	if err := untilNone(ctx, func() (int, error) { return t.Kill(name) }); err != nil {
		return fmt.Errorf("ending what is in cgroup %s: %w", path.Join(t.Parent, name), err)
	}
	return nil
}

// untilNone kills again and again, until there is nothing to kill and that is known.
func untilNone(ctx context.Context, kill func() (int, error)) error {
	for pause := time.Millisecond; ; pause = min(2*pause, endPause) {
		n, err := kill()
		if n == 0 && err == nil {
			return nil
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return errors.Join(fmt.Errorf("processes that do not end: %d: %w", n, context.Cause(ctx)), err)
		}
	}
}

func processesOf(file string) ([]int, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ENODEV) || errors.Is(err, unix.EOPNOTSUPP) { // it went, or its threads are told of above
			return nil, nil
		}
		return nil, err
	}
	var out []int
	for _, f := range strings.Fields(string(b)) {
		if pid, err := strconv.Atoi(f); err == nil && pid > 0 && pid != os.Getpid() {
			out = append(out, pid)
		}
	}
	return out, nil
}

// killIn kills a process of a cgroup, and not another that has come to its number, which a kernel before 5.3 cannot tell for sure.
func killIn(file string, pid int) error {
	kill := func() error { return unix.Kill(pid, unix.SIGKILL) }
	fd, err := unix.PidfdOpen(pid, 0)
	switch {
	case errors.Is(err, unix.ESRCH):
		return nil
	case errors.Is(err, unix.ENOSYS):
	case err != nil:
		return err
	default:
		defer func() { _ = unix.Close(fd) }() // nothing was written to it
		kill = func() error { return unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0) }
	}
	still, err := processesOf(file)
	if err != nil || !slices.Contains(still, pid) {
		return err
	}
	if err := kill(); err != nil && !errors.Is(err, unix.ESRCH) {
		return err
	}
	return nil
}
