package cri

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

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
	for i := range z.Containers {
		c, err := r.find(z.Containers[i].ID)
		if err != nil {
			continue // it has ended, and starts again with what it is to have
		}
		name := z.Containers[i].ID.Container
		spec := &corev1.Container{Name: name, Resources: *z.ResourcesOf(name)}
		_, err = r.runtime.UpdateContainerResources(ctx, &criv1.UpdateContainerResourcesRequest{ContainerId: c.ref, Linux: r.resources(z.Pod, spec)})
		if err != nil && !notFound(err) {
			return fmt.Errorf("giving container %s other resources: %w", name, asked(err))
		}
	}
	if !z.Last {
		return nil
	}
	return r.boundPod(z.Pod)
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
