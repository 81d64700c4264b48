package cri

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"golang.org/x/sys/unix"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-dev/berth/worker/runtime"
)

const (
	// collectInterval is how often the disk of the images is looked at.
	collectInterval = 5 * time.Minute
	// unusedAge is how long an image stays at least after it was last wanted, or first seen.
	unusedAge = 2 * time.Minute
	// removeTimeout bounds the removal of one thing on the disk.
	removeTimeout = 2 * time.Minute
)

// collect removes images that nobody uses while their disk is fuller than it should be, until the runtime is closed.
func (r *Runtime) collect() {
	tick := time.NewTicker(collectInterval)
	defer tick.Stop()
	for {
		select {
		case <-r.ctx.Done():
			return
		case <-tick.C:
		}
		if err := r.collectImages(r.ctx); err != nil && r.ctx.Err() == nil {
			r.log.Warn("images could not be collected", "error", err)
		}
	}
}

// collectImages looks at the disk once.
func (r *Runtime) collectImages(ctx context.Context) error {
	at, err := r.ImageDir(ctx)
	if err != nil {
		return err
	}
	total, available, err := room(at)
	if err != nil {
		return err
	}
	need := toFree(total, available, r.opts.ImagesHigh, r.opts.ImagesLow)
	freed, err := r.freeImages(ctx, need, time.Now())
	if freed < need && err == nil {
		r.log.Warn("the disk of the images stays too full: the others are in use", "disk", at, "freed", freed, "wanted", need)
	}
	return err
}

// room is how many bytes the images' disk has, and how many of them are free.
func room(at string) (total, available int64, err error) {
	var fs unix.Statfs_t
	if err := unix.Statfs(at, &fs); err != nil {
		return 0, 0, fmt.Errorf("reading the free space of the images' disk, %s: %w", at, err)
	}
	return int64(fs.Blocks) * fs.Bsize, int64(fs.Bavail) * fs.Bsize, nil
}

// toFree is how many bytes of a disk are to be freed so that no more than low percent of it are in use, once more than
// high percent are.
func toFree(total, available int64, high, low int) int64 {
	used := total - available
	if total <= 0 || used*100 <= total*int64(high) {
		return 0
	}
	return used - total/100*int64(low)
}

// freeImages removes images that nobody uses, those first that have not been wanted for longest, until so many bytes are
// free. It looks at all of them also when nothing is to be freed: that is how it knows since when they are there.
func (r *Runtime) freeImages(ctx context.Context, need int64, now time.Time) (freed int64, err error) {
	list, err := r.listImages(ctx)
	if err != nil {
		return 0, err
	}
	all, err := r.listContainers(ctx, nil) // everybody's
	if err != nil {
		return 0, err
	}
	used := map[string]bool{}
	for _, c := range all {
		used[c.GetImage().GetImage()], used[c.ImageRef], used[c.ImageId] = true, true, true
	}
	if err := r.pinnedImages(used); err != nil {
		return 0, err
	}
	for _, i := range r.unused(list, used, now) {
		if freed >= need {
			break
		}
		if rerr := asked(r.removeImage(ctx, i.Id)); rerr != nil {
			err = errors.Join(err, fmt.Errorf("removing image %s: %w", i.Id, rerr))
			if errors.Is(rerr, runtime.ErrUnavailable) {
				break // else it would be waited for once for each image
			}
			continue
		}
		freed += int64(i.Size)
		r.log.Info("removed an image that nobody uses", "image", i.Id, "names", i.RepoTags, "bytes", i.Size)
	}
	return freed, err
}

func (r *Runtime) removeImage(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeout(ctx, removeTimeout)
	defer cancel()
	_, err := r.images.RemoveImage(ctx, &criv1.RemoveImageRequest{Image: &criv1.ImageSpec{Image: id}})
	return err
}

// unused are the images that may be removed, the one that was not wanted for longest first.
func (r *Runtime) unused(list []*criv1.Image, used map[string]bool, now time.Time) []*criv1.Image {
	r.mu.Lock()
	defer r.mu.Unlock()
	there := map[string]bool{}
	var out []*criv1.Image
	for _, i := range list {
		there[i.Id] = true
		inUse := i.Pinned || used[i.Id]
		for _, name := range slices.Concat(i.RepoTags, i.RepoDigests) {
			inUse = inUse || used[name] || name == r.about.pause
		}
		if _, known := r.lastUsed[i.Id]; inUse || !known {
			r.lastUsed[i.Id] = now
		}
		if now.Sub(r.lastUsed[i.Id]) >= unusedAge {
			out = append(out, i)
		}
	}
	gone := func(id string) bool { return !there[id] }
	maps.DeleteFunc(r.lastUsed, func(id string, _ time.Time) bool { return gone(id) })
	maps.DeleteFunc(r.users, func(id string, _ imageUser) bool { return gone(id) })
	slices.SortFunc(out, func(a, b *criv1.Image) int {
		return cmp.Or(r.lastUsed[a.Id].Compare(r.lastUsed[b.Id]), cmp.Compare(a.Id, b.Id))
	})
	return out
}
