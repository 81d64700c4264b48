package process

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"github.com/berth-dev/berth/worker/runtime"
	"github.com/berth-dev/berth/worker/runtime/cgroup"
	"github.com/berth-dev/berth/worker/runtime/record"
)

var _ runtime.Resizer = (*Runtime)(nil)

// Resize implements runtime.Resizer. There is no cgroup of the whole pod that bounds anything.
func (r *Runtime) Resize(ctx context.Context, z runtime.Resize) error {
	if r.cgroups != nil {
		for i := range z.Containers {
			limit, lower := z.LowersMemory(&z.Containers[i])
			if !lower {
				continue
			}
			used, err := r.cgroups.Use(r.cgroups.name(z.Containers[i].ID))
			switch {
			case errors.Is(err, fs.ErrNotExist): // it has ended meanwhile
			case err != nil:
				return err
			case used.MemoryBytes >= limit:
				return runtime.BelowUse(z.Containers[i].ID.Container, limit, used.MemoryBytes)
			}
		}
	}
	if err := record.Write(r.podDir(z.Pod.UID), z.Pod); err != nil {
		return fmt.Errorf("keeping the pod's object: %w", err)
	}
	if r.cgroups == nil {
		return nil
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
	return nil
}
