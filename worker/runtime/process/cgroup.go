package process

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/worker/runtime"
	"github.com/berth-dev/berth/worker/runtime/cgroup"
	"github.com/berth-dev/berth/worker/runtime/process/shim"
)

// cgroupTree is where containers get their cgroups. A nil *cgroupTree has none and does nothing.
type cgroupTree struct {
	*cgroup.Tree
	pids int64

	mu   sync.Mutex
	left map[runtime.ID]bool // cgroups that could not be removed, and are to go
}

// openCgroups finds out whether this process may make cgroups below parent.
func openCgroups(parent string, pids int64) (*cgroupTree, error) {
	t, err := cgroup.Open(parent)
	if err != nil {
		return nil, err
	}
	return &cgroupTree{Tree: t, pids: pids, left: map[runtime.ID]bool{}}, nil
}

func (t *cgroupTree) name(id runtime.ID) string {
	return path.Join(string(id.Pod), fmt.Sprintf("%s_%d", id.Container, id.Attempt))
}

// forContainer makes the container's cgroup and tells the shim how to get into it.
func (t *cgroupTree) forContainer(spec *runtime.Spec, c *shim.Config) error {
	if t == nil {
		return nil
	}
	if t.pids > 0 {
		if _, err := t.Create(string(spec.ID.Pod), &specs.LinuxResources{Pids: &specs.LinuxPids{Limit: &t.pids}}); err != nil {
			return err
		}
	}
	dirs, err := t.Create(t.name(spec.ID), cgroup.Resources(&spec.Container.Resources, t.pids))
	if err != nil {
		return err
	}
	// The pod's cgroup is there now for as long as its container's is.
	if err := t.boundPod(spec.Pod); err != nil {
		return err
	}
	if t.Unified {
		if err := t.EndTogether(t.name(spec.ID)); err != nil {
			return err
		}
		c.CgroupV2 = dirs[0]
		return nil
	}
	for _, d := range dirs {
		c.TasksV1 = append(c.TasksV1, filepath.Join(d, "tasks"))
		root := strings.TrimSuffix(d, path.Join(t.Parent, t.name(spec.ID)))
		c.HomeV1 = append(c.HomeV1, filepath.Join(root, "tasks"))
	}
	return nil
}

// boundPod gives a pod's cgroup what spec.resources lets all its containers have together. A pod without has no bounds of its own.
func (t *cgroupTree) boundPod(pod *corev1.Pod) error {
	if pod.Spec.Resources == nil {
		return nil
	}
	return t.Update(string(pod.UID), cgroup.Resources(pod.Spec.Resources, 0))
}

// outOfMemory says whether the kernel killed a process of the container for its memory limit.
func (t *cgroupTree) outOfMemory(id runtime.ID) bool {
	if t == nil {
		return false
	}
	dirs, err := t.Dirs(t.name(id))
	if err != nil {
		return false
	}
	for _, d := range dirs {
		for _, file := range [...]string{"memory.events", "memory.oom_control"} {
			b, err := os.ReadFile(filepath.Join(d, file))
			if err != nil {
				continue
			}
			for line := range strings.Lines(string(b)) {
				if v, ok := strings.CutPrefix(strings.TrimSpace(line), "oom_kill "); ok {
					n, _ := strconv.Atoi(v)
					return n > 0
				}
			}
		}
	}
	return false
}

// kill ends what is in the container's cgroup and below it, without waiting for it. It returns how many processes there were.
func (t *cgroupTree) kill(id runtime.ID) (int, error) {
	if t == nil {
		return 0, nil
	}
	return t.Kill(t.name(id))
}

// end is kill until nothing is left, or until ctx ends.
func (t *cgroupTree) end(ctx context.Context, id runtime.ID) error {
	if t == nil {
		return nil
	}
	return t.End(ctx, t.name(id))
}

// close takes the parent away if nothing is left in it.
func (t *cgroupTree) close() {
	if t != nil {
		_ = t.Remove("") // where containers run on it stays, for whoever comes next
	}
}

func (t *cgroupTree) removeContainer(id runtime.ID) error {
	if t == nil {
		return nil
	}
	return t.Remove(t.name(id))
}

// leave takes note of a cgroup that could not be removed, and says whether it is the first of those that there are.
func (t *cgroupTree) leave(id runtime.ID) (first bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	first = len(t.left) == 0
	t.left[id] = true
	return first
}

// keep says whether a cgroup was to go, which it is not any more.
func (t *cgroupTree) keep(id runtime.ID) (was bool) {
	if t == nil {
		return false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	was = t.left[id]
	delete(t.left, id)
	return was
}

// removeLeft removes what could not be removed, until nothing is left or ctx ends, and says of each that it is gone.
func (t *cgroupTree) removeLeft(ctx context.Context, gone func(runtime.ID)) {
	for pause := 100 * time.Millisecond; t.tryLeft(gone) > 0; pause = min(2*pause, time.Minute) {
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return
		}
	}
}

func (t *cgroupTree) tryLeft(gone func(runtime.ID)) (left int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	maps.DeleteFunc(t.left, func(id runtime.ID, _ bool) bool {
		if t.removeContainer(id) != nil {
			return false
		}
		gone(id)
		return true
	})
	return len(t.left)
}
