package process

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/worker/runtime"
	"github.com/berth-dev/berth/worker/runtime/cgroup"
	"github.com/berth-dev/berth/worker/runtime/record"
)

var _ runtime.Resizer = (*Runtime)(nil)

// Resize implements runtime.Resizer.
func (r *Runtime) Resize(ctx context.Context, z runtime.Resize) error {
	if r.cgroups != nil {
		if err := r.mayLower(&z); err != nil {
			return err
		}
	}
	if err := record.Write(r.podDir(z.Pod.UID), z.Pod); err != nil {
		return fmt.Errorf("keeping the pod's object: %w", err)
	}
	if r.cgroups == nil {
		return nil
	}
	if err := r.boundRunning(z.Most); err != nil {
		return err
	}
	for i := range z.Containers {
		id := z.Containers[i].ID
		if err := ctx.Err(); err != nil {
			return err
		}
		if _, err := r.find(id); err != nil {
			continue // it has ended, and starts again with what it is to have
		}
		if err := r.cgroups.Update(r.cgroups.name(id), cgroup.Resources(z.ResourcesOf(id.Container), r.cgroups.pids)); err != nil {
			return fmt.Errorf("giving container %s other resources: %w", id.Container, err)
		}
	}
	if !z.Last {
		return nil
	}
	return r.boundRunning(z.Pod)
}

// mayLower fails where a limit of memory would be below what is in use.
func (r *Runtime) mayLower(z *runtime.Resize) error {
	used := func(name string, limit int64) (bytes int64, below bool, err error) {
		u, err := r.cgroups.Use(name)
		if errors.Is(err, fs.ErrNotExist) { // it has ended meanwhile
			return 0, false, nil
		}
		return u.MemoryBytes, u.MemoryBytes >= limit, err
	}
	for i := range z.Containers {
		limit, lower := z.LowersMemory(&z.Containers[i])
		if !lower {
			continue
		}
		if bytes, below, err := used(r.cgroups.name(z.Containers[i].ID), limit); err != nil {
			return err
		} else if below {
			return runtime.BelowUse(z.Containers[i].ID.Container, limit, bytes)
		}
	}
	limit, lower := z.LowersMemoryOfAll()
	if !lower {
		return nil
	}
	if bytes, below, err := used(string(z.Pod.UID), limit); err != nil {
		return err
	} else if below {
		return runtime.AllBelowUse(limit, bytes)
	}
	return nil
}

// boundRunning gives the cgroup of a pod of which something runs what spec.resources says. Else it is bounded when a container is started.
func (r *Runtime) boundRunning(pod *corev1.Pod) error {
	if !r.runs(pod.UID) {
		return nil
	}
	if err := r.cgroups.boundPod(pod); err != nil && r.runs(pod.UID) { // else its cgroup went with its last container
		return fmt.Errorf("giving the pod other resources: %w", err)
	}
	return nil
}

// runs says whether a container of a pod does.
func (r *Runtime) runs(pod types.UID) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for id := range r.running {
		if id.Pod == pod {
			return true
		}
	}
	return false
}
