package process

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/atomicfile"
	"github.com/berth-dev/berth/worker/runtime"
	"github.com/berth-dev/berth/worker/runtime/mounts"
)

// asidePrefix begins the names, below Root, of what is on its way out: asidePrefix, the pod's UID, a dot and a number. What is a pod's is renamed to
// that before anything of it is deleted. So whenever the agent ends, a container's directory is whole or not a container's any more, and nobody who
// needs its place waits until all is deleted. No UID begins like that.
const asidePrefix = ".removed-"

// Remove implements runtime.Runtime.
func (r *Runtime) Remove(ctx context.Context, pod types.UID) error {
	if err := r.seen(pod); err != nil {
		return fmt.Errorf("removing pod %s: %w", pod, err)
	}
	r.mu.Lock()
	for id := range r.running {
		if id.Pod == pod {
			r.mu.Unlock()
			return fmt.Errorf("removing pod %s: container %s still runs", pod, id.Container)
		}
	}
	r.mu.Unlock()
	err := r.discard(ctx, pod)
	if err == nil {
		err = r.removeAside(ctx, asidePrefix+string(pod)+".")
	}
	if err != nil {
		return fmt.Errorf("removing pod %s: %w", pod, err)
	}
	return nil
}

// discard gives back what a pod holds of which nothing is to run any more, and puts aside what is kept of it.
func (r *Runtime) discard(ctx context.Context, pod types.UID) error {
	ids, err := r.attempts(pod)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, besideTimeout)
	defer cancel()
	for _, id := range ids {
		if err := r.giveBack(ctx, id); err != nil {
			return err
		}
	}
	return r.putAside(r.podDir(pod), pod)
}

// giveBack takes away a container's cgroup, and whatever may be left in it: nobody looks there any more once its directory is gone.
func (r *Runtime) giveBack(ctx context.Context, id runtime.ID) error {
	held, err := locked(r.dir(id))
	if err == nil && !held {
		err = r.cgroups.end(ctx, id)
	}
	if err != nil || held {
		return errors.Join(fmt.Errorf("container %s may still run", id), err)
	}
	r.removeCgroup(id)
	return nil
}

// removeCgroup takes away the cgroup of a container of which no process is left. One that cannot be removed keeps nobody waiting: that is told, and tried
// again until it goes.
func (r *Runtime) removeCgroup(id runtime.ID) {
	err := r.cgroups.removeContainer(id)
	if err == nil {
		return
	}
	r.log.Warn("a cgroup in which nothing runs could not be removed; it is tried again", "container", id.String(), "error", err)
	if err := os.Mkdir(r.cgroupMark(id), 0o700); err != nil && !os.IsExist(err) {
		r.log.Warn("the next agent will not know of a cgroup that is to go", "container", id.String(), "error", err)
	}
	r.leaveCgroup(id)
}

// leaveCgroup has a cgroup removed when it can be.
func (r *Runtime) leaveCgroup(id runtime.ID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if first := r.cgroups.leave(id); first && !r.closed {
		r.watch.Go(func() { r.cgroups.removeLeft(r.life, r.forgetCgroup) })
	}
}

// cgroupPrefix begins the names, below Root, of empty directories that say which cgroups are to go: the next agent goes on with them. No UID begins
// like that.
const cgroupPrefix = ".cgroup-"

func (r *Runtime) cgroupMark(id runtime.ID) string {
	return filepath.Join(r.opts.Root, cgroupPrefix+id.String())
}

// findCgroup goes on with a cgroup that an earlier agent could not remove.
func (r *Runtime) findCgroup(mark string) {
	parts := strings.Split(strings.TrimPrefix(mark, cgroupPrefix), "_")
	if r.cgroups == nil || len(parts) != 3 {
		return
	}
	attempt, err := strconv.ParseInt(parts[2], 10, 32)
	if err != nil {
		return
	}
	id := runtime.ID{Pod: types.UID(parts[0]), Container: parts[1], Attempt: int32(attempt)}
	if held, err := locked(r.dir(id)); held || err != nil {
		return // it was made anew
	}
	r.leaveCgroup(id)
}

// keepCgroup: a cgroup that was to go is made anew.
func (r *Runtime) keepCgroup(id runtime.ID) {
	if r.cgroups.keep(id) {
		r.forgetCgroup(id)
	}
}

func (r *Runtime) forgetCgroup(id runtime.ID) {
	if err := os.Remove(r.cgroupMark(id)); err != nil && !os.IsNotExist(err) {
		r.log.Warn("that a cgroup was to go could not be forgotten", "container", id.String(), "error", err)
	}
}

// putAside renames a directory that is a pod's, or below a pod's. That it is not there is no error.
func (r *Runtime) putAside(dir string, pod types.UID) error {
	for n := 0; ; n++ {
		aside := filepath.Join(r.opts.Root, fmt.Sprintf("%s%s.%d", asidePrefix, pod, n))
		if _, err := os.Lstat(aside); !os.IsNotExist(err) {
			if err != nil {
				return err
			}
			continue
		}
		rename := os.Rename
		if filepath.Dir(dir) == r.opts.Root {
			rename = atomicfile.Rename
		}
		err := rename(dir, aside)
		if errors.Is(err, syscall.ENOTEMPTY) || errors.Is(err, syscall.EEXIST) {
			continue // the name was taken meanwhile
		}
		if err != nil && !os.IsNotExist(err) {
			return fmt.Errorf("putting %s aside: %w", dir, err)
		}
		return nil
	}
}

// removeAside deletes what was put aside under names that begin so.
func (r *Runtime) removeAside(ctx context.Context, prefix string) error {
	entries, err := os.ReadDir(r.opts.Root)
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), prefix) {
			errs = append(errs, r.deleteAside(ctx, e.Name()))
		}
	}
	return errors.Join(errs...)
}

// deleteAside deletes what has a name below Root, when nobody else does any more: where two delete the same, one takes for moved what the other has deleted.
func (r *Runtime) deleteAside(ctx context.Context, name string) error {
	over, err := turn(ctx, r, r.deleting, name)
	if err != nil {
		return fmt.Errorf("waiting for who removes %s: %w", name, err)
	}
	defer over()
	return mounts.RemoveAll(ctx, filepath.Join(r.opts.Root, name))
}

// turn waits until nobody else has what the name in among stands for. Whoever has it calls over in the end.
func turn[K comparable](ctx context.Context, r *Runtime, among map[K]chan struct{}, name K) (over func(), err error) {
	mine := make(chan struct{})
	for {
		r.mu.Lock()
		other := among[name]
		if other == nil {
			among[name] = mine
		}
		r.mu.Unlock()
		if other == nil {
			break
		}
		select {
		case <-other:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(among, name)
		close(mine)
	}, nil
}

// sweep deletes all that was put aside, one after another and while others go on.
func (r *Runtime) sweep() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.again = true; r.sweeping || r.closed {
		return
	}
	r.sweeping = true
	r.watch.Go(func() {
		for {
			r.mu.Lock()
			if r.sweeping = r.again && !r.closed; !r.sweeping {
				r.mu.Unlock()
				return
			}
			r.again = false
			r.mu.Unlock()
			if err := r.removeAside(r.life, asidePrefix); err != nil && r.life.Err() == nil {
				r.log.Warn("what is left of containers could not be removed; it is tried again later", "error", err)
			}
		}
	})
}
