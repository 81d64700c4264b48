package process

import (
	"context"
	"errors"
	"io/fs"
	"maps"
	"slices"
	"time"

	"github.com/berth-dev/berth/worker/runtime"
)

var _ runtime.Meter = (*Runtime)(nil)

// Use implements runtime.Meter, by the containers' cgroups: without them nothing is known.
func (r *Runtime) Use(ctx context.Context) ([]runtime.ContainerUse, error) {
	if r.cgroups == nil {
		return nil, nil
	}
	r.mu.Lock()
	started := make(map[runtime.ID]time.Time, len(r.running))
	for id, w := range r.running {
		started[id] = w.state.StartedAt
	}
	r.mu.Unlock()
	var out []runtime.ContainerUse
	var errs []error
	for _, id := range slices.Collect(maps.Keys(started)) {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		used, err := r.cgroups.Use(r.cgroups.name(id))
		if err != nil {
			if !errors.Is(err, fs.ErrNotExist) { // it has ended meanwhile
				errs = append(errs, err)
			}
			continue
		}
		out = append(out, runtime.ContainerUse{ID: id, StartedAt: started[id], At: time.Now(), Counted: used})
	}
	if len(out) == 0 {
		return nil, errors.Join(errs...)
	}
	return out, nil
}
