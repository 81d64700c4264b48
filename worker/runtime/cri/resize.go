package cri

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"

	corev1 "k8s.io/api/core/v1"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-dev/berth/worker/runtime"
	"github.com/berth-dev/berth/worker/runtime/cgroup"
	"github.com/berth-dev/berth/worker/runtime/record"
)

var _ runtime.Resizer = (*Runtime)(nil)

// Resize implements runtime.Resizer.
func (r *Runtime) Resize(ctx context.Context, z runtime.Resize) error {
	if err := r.mayLower(ctx, &z); err != nil {
		return err
	}
	if err := record.Write(r.podDir(z.Pod.UID), z.Pod); err != nil {
		return fmt.Errorf("keeping the pod's object: %w", err)
	}
	if err := r.boundPod(z.Most); err != nil {
		return err
	}
	bound := z.Pod // its limits are those of containers without limits of their own
	if !z.Last {
		bound = z.Most
	}
	for i := range z.Containers {
		id := z.Containers[i].ID
		c := &corev1.Container{Name: id.Container, Resources: *z.ResourcesOf(id.Container)}
		what := r.resources(z.Pod, c)
		most := limits(cgroup.Resources(bounds(bound, c), 0))
		what.CpuQuota, what.CpuPeriod, what.MemoryLimitInBytes = most.CpuQuota, most.CpuPeriod, most.MemoryLimitInBytes
		if err := r.update(ctx, id, what); err != nil {
			return err
		}
	}
	for _, id := range r.others(&z) {
		if what := borrowed(bound, z.ResourcesOf(id.Container)); what != nil {
			if err := r.update(ctx, id, what); err != nil {
				return err
			}
		}
	}
	if !z.Last {
		return nil
	}
	return r.boundPod(z.Pod)
}

// update gives a container other resources; of what is zero it keeps what it has. One that has ended starts again with what it is to have.
func (r *Runtime) update(ctx context.Context, id runtime.ID, what *criv1.LinuxContainerResources) error {
	c, err := r.find(id)
	if err != nil {
		return nil
	}
	_, err = r.runtime.UpdateContainerResources(ctx, &criv1.UpdateContainerResourcesRequest{ContainerId: c.ref, Linux: what})
	if err != nil && !notFound(err) {
		return fmt.Errorf("giving container %s other resources: %w", id.Container, asked(err))
	}
	return nil
}

// others are the pod's containers that are not named.
func (r *Runtime) others(z *runtime.Resize) (ids []runtime.ID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	// order does not matter: each is changed for itself.
	for id := range r.running {
		if id.Pod == z.Pod.UID && !slices.ContainsFunc(z.Containers, func(c runtime.ContainerResize) bool { return c.ID == id }) {
			ids = append(ids, id)
		}
	}
	return ids
}

// borrowed are the limits that a container has of its pod's, which may be others now; nil: none.
func borrowed(pod *corev1.Pod, own *corev1.ResourceRequirements) *criv1.LinuxContainerResources {
	if pod.Spec.Resources == nil {
		return nil
	}
	of := corev1.ResourceRequirements{Limits: corev1.ResourceList{}}
	for name, limit := range pod.Spec.Resources.Limits {
		if q := own.Limits[name]; q.IsZero() {
			of.Limits[name] = limit
		}
	}
	out := limits(cgroup.Resources(&of, 0))
	if out.CpuQuota == 0 && out.MemoryLimitInBytes == 0 {
		return nil
	}
	return out
}

// boundPod lets the pod as a whole have what its object says.
func (r *Runtime) boundPod(pod *corev1.Pod) error {
	r.mu.Lock()
	_, there := r.sandboxes[pod.UID]
	r.mu.Unlock()
	groups := r.podCgroups()
	if !there || groups == nil {
		return nil // it is bounded when its sandbox is made
	}
	if err := groups.Update(podCgroupName(pod), cgroup.Resources(podResources(pod), r.opts.PIDs)); err != nil {
		return fmt.Errorf("giving the pod other resources: %w", err)
	}
	return r.weigh(groups, pod)
}

// mayLower fails where a limit of memory would be below what is in use.
func (r *Runtime) mayLower(ctx context.Context, z *runtime.Resize) error {
	var errs []error
	for i := range z.Containers {
		limit, lower := z.LowersMemory(&z.Containers[i])
		c, err := r.find(z.Containers[i].ID)
		if !lower || err != nil {
			continue
		}
		s, err := r.runtime.ContainerStats(ctx, &criv1.ContainerStatsRequest{ContainerId: c.ref})
		if err != nil {
			if !notFound(err) {
				errs = append(errs, fmt.Errorf("unable to read memory usage of container %s: %w", z.Containers[i].ID.Container, asked(err)))
			}
			continue
		}
		m := s.GetStats().GetMemory()
		used := int64(max(m.GetUsageBytes().GetValue(), m.GetWorkingSetBytes().GetValue()))
		if used >= limit {
			errs = append(errs, runtime.BelowUse(z.Containers[i].ID.Container, limit, used))
		}
	}
	return errors.Join(append(errs, r.mayLowerAll(z))...)
}

// mayLowerAll is mayLower for the pod as a whole.
func (r *Runtime) mayLowerAll(z *runtime.Resize) error {
	limit, lower := z.LowersMemoryOfAll()
	groups := r.podCgroups()
	if !lower || groups == nil {
		return nil
	}
	used, err := groups.Use(podCgroupName(z.Pod))
	switch {
	case errors.Is(err, fs.ErrNotExist): // it is bounded when its sandbox is made
		return nil
	case err != nil:
		return fmt.Errorf("unable to read memory usage of the pod: %w", err)
	case used.MemoryBytes >= limit:
		return runtime.AllBelowUse(limit, used.MemoryBytes)
	}
	return nil
}
