package process

import (
	"context"
	"errors"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/worker/runtime"
)

var _ runtime.Meter = (*Runtime)(nil)

// Use implements runtime.Meter, by the containers' cgroups.
func (r *Runtime) Use(ctx context.Context) ([]runtime.ContainerUse, error) {
	if r.cgroups == nil {
		return nil, runtime.ErrUnmeasured
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

var _ runtime.Reclaimer = (*Runtime)(nil)

// Reclaim implements runtime.Reclaimer: what is left of runs before the newest of their container goes.
func (r *Runtime) Reclaim(ctx context.Context) error {
	pods, err := os.ReadDir(r.opts.Root)
	if err != nil {
		return err
	}
	var errs []error
	for _, pod := range pods {
		if strings.HasPrefix(pod.Name(), asidePrefix) || strings.HasPrefix(pod.Name(), cgroupPrefix) {
			continue
		}
		ids, err := r.attempts(types.UID(pod.Name()))
		if err != nil {
			errs = append(errs, err)
			continue
		}
		newest := map[string]int32{}
		for _, id := range ids {
			newest[id.Container] = max(newest[id.Container], id.Attempt)
		}
		for _, id := range ids {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if id.Attempt == newest[id.Container] {
				continue
			}
			if held, err := locked(r.dir(id)); err != nil || held {
				errs = append(errs, err)
				continue
			}
			soon, cancel := context.WithTimeout(ctx, besideTimeout)
			err := r.giveBack(soon, id)
			cancel()
			if err != nil { // others go nevertheless
				errs = append(errs, err)
				continue
			}
			errs = append(errs, r.putAside(r.dir(id), id.Pod))
		}
	}
	errs = append(errs, r.removeAside(ctx, asidePrefix))
	return errors.Join(errs...)
}
