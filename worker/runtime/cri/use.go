package cri

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"path"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-dev/berth/worker/runtime"
)

var _ runtime.Meter = (*Runtime)(nil)

// Use implements runtime.Meter, by what the container runtime says.
func (r *Runtime) Use(ctx context.Context) ([]runtime.ContainerUse, error) {
	ctx, cancel := context.WithTimeout(ctx, countTimeout)
	defer cancel()
	stats, err := r.runtime.ListContainerStats(ctx, &criv1.ListContainerStatsRequest{Filter: &criv1.ContainerStatsFilter{
		LabelSelector: map[string]string{labelNode: r.opts.Node}}})
	if err != nil {
		return nil, fmt.Errorf("asking what containers use: %w", asked(err))
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []runtime.ContainerUse
	for _, s := range stats.Stats {
		a := s.GetAttributes()
		id := runtime.ID{Pod: types.UID(a.GetLabels()[labelPodUID]), Container: a.GetMetadata().GetName(), Attempt: int32(a.GetMetadata().GetAttempt())}
		run, runs := r.running[id]
		if !runs || s.GetCpu().GetUsageCoreNanoSeconds() == nil || s.GetMemory().GetWorkingSetBytes() == nil {
			continue
		}
		at := time.Now()
		if n := s.Cpu.Timestamp; n > 0 {
			at = time.Unix(0, n)
		}
		memory := int64(s.Memory.GetUsageBytes().GetValue())
		workingSet := int64(s.Memory.WorkingSetBytes.Value)
		out = append(out, runtime.ContainerUse{ID: id, StartedAt: run.startedAt, At: at, Counted: runtime.Counted{
			CPU:         time.Duration(s.Cpu.UsageCoreNanoSeconds.Value),
			MemoryBytes: max(memory, workingSet), WorkingSetBytes: workingSet, AnonymousBytes: int64(s.Memory.GetRssBytes().GetValue()),
		}})
	}
	return out, nil
}

var _ runtime.ProcessCounter = (*Runtime)(nil)

// Processes implements runtime.ProcessCounter, by the pods' cgroups or, where systemd makes those, by what the container runtime says.
func (r *Runtime) Processes(ctx context.Context) (map[types.UID]int64, error) {
	out := map[types.UID]int64{}
	if r.cgroups == nil || r.known().systemd {
		ctx, cancel := context.WithTimeout(ctx, countTimeout)
		defer cancel()
		stats, err := r.runtime.ListPodSandboxStats(ctx, &criv1.ListPodSandboxStatsRequest{Filter: &criv1.PodSandboxStatsFilter{
			LabelSelector: map[string]string{labelNode: r.opts.Node}}})
		if err != nil {
			return nil, fmt.Errorf("asking how many processes pods have: %w", asked(err))
		}
		for _, s := range stats.Stats {
			if n := s.GetLinux().GetProcess().GetProcessCount(); n != nil {
				out[types.UID(s.GetAttributes().GetLabels()[labelPodUID])] += int64(n.Value)
			}
		}
		return out, nil
	}
	r.mu.Lock()
	pods := slices.Collect(maps.Keys(r.sandboxes))
	r.mu.Unlock()
	for _, pod := range pods {
		for _, class := range classes() {
			n, err := r.cgroups.Processes(path.Join(class, "pod"+string(pod)))
			switch {
			case errors.Is(err, fs.ErrNotExist): // it is of another class, or has gone meanwhile
			case err != nil:
				return nil, err
			default:
				out[pod] += n
			}
		}
	}
	return out, nil
}

var (
	_ runtime.Reclaimer = (*Runtime)(nil)
	_ runtime.ImageDisk = (*Runtime)(nil)
)

// Reclaim implements runtime.Reclaimer.
func (r *Runtime) Reclaim(ctx context.Context) error {
	all, err := r.listContainers(ctx, map[string]string{labelNode: r.opts.Node})
	if err != nil {
		return err
	}
	type name struct {
		pod       types.UID
		container string
	}
	newest := map[name]int32{}
	for _, c := range all {
		id := idOf(c)
		newest[name{id.Pod, id.Container}] = max(newest[name{id.Pod, id.Container}], id.Attempt)
	}
	var earlier []func() error
	for _, c := range all {
		id := idOf(c)
		if c.State != criv1.ContainerState_CONTAINER_EXITED || id.Attempt == newest[name{id.Pod, id.Container}] {
			continue
		}
		earlier = append(earlier, func() error {
			ctx, cancel := context.WithTimeout(ctx, removeTimeout)
			defer cancel()
			if err := r.removeContainer(ctx, c.Id); err != nil {
				return err
			}
			return r.forget(ctx, id)
		})
	}
	var before int64
	at, aerr := r.ImageDir(ctx)
	if aerr == nil {
		_, before, aerr = room(at)
	}
	err = severalAtOnce(earlier)
	_, ferr := r.freeImages(ctx, math.MaxInt64, time.Now())
	if aerr == nil && len(earlier) > 0 {
		aerr = awaitRoom(ctx, at, before)
	}
	return errors.Join(err, ferr, aerr)
}

const (
	// roomPatience is how long it is waited for room that was given back, roomSettles how long it has to stay the same then.
	roomPatience, roomSettles = 10 * time.Second, time.Second
	roomEvery                 = 100 * time.Millisecond
)

// awaitRoom waits until the disk shows that something was removed from it: containerd forgets a container's files at once, and takes them away behind that.
func awaitRoom(ctx context.Context, at string, before int64) error {
	tick := time.NewTicker(roomEvery)
	defer tick.Stop()
	latest := time.Now().Add(roomPatience)
	last, since := before, time.Now()
	for now := since; now.Before(latest); {
		_, free, err := room(at)
		if err != nil {
			return err
		}
		if free != last {
			last, since = free, now
		}
		if free > before && now.Sub(since) >= roomSettles {
			return nil
		}
		select {
		case <-ctx.Done():
			return nil
		case now = <-tick.C:
		}
	}
	return nil
}

// ImageDir implements runtime.ImageDisk.
func (r *Runtime) ImageDir(ctx context.Context) (string, error) {
	ctx, cancel := asking(ctx)
	defer cancel()
	info, err := r.images.ImageFsInfo(ctx, &criv1.ImageFsInfoRequest{})
	if err != nil {
		return "", fmt.Errorf("asking where the images are: %w", asked(err))
	}
	if len(info.ImageFilesystems) == 0 {
		return "", errors.New("the container runtime does not say where its images are")
	}
	return info.ImageFilesystems[0].GetFsId().GetMountpoint(), nil
}
