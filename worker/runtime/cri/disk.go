package cri

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"k8s.io/apimachinery/pkg/types"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-dev/berth/worker/runtime"
	"github.com/berth-dev/berth/worker/runtime/mounts"
)

// DiskUse implements runtime.DiskUser: the layers that containers write to, as the runtime says, their logs, and the files of the agent's that they have
// mounted: their last words, and the pod's names.
func (r *Runtime) DiskUse(ctx context.Context, pod types.UID) (runtime.DiskUse, error) {
	out := runtime.DiskUse{Bytes: map[string]int64{}}
	asks, cancel := context.WithTimeout(ctx, countTimeout)
	defer cancel()
	stats, err := r.runtime.ListContainerStats(asks, &criv1.ListContainerStatsRequest{Filter: &criv1.ContainerStatsFilter{
		LabelSelector: map[string]string{labelNode: r.opts.Node, labelPodUID: string(pod)}}})
	if err != nil {
		err = fmt.Errorf("asking what containers have written: %w", asked(err))
	}
	for _, s := range stats.GetStats() {
		out.Bytes[s.GetAttributes().GetLabels()[labelContainer]] += int64(s.GetWritableLayer().GetUsedBytes().GetValue())
		out.Inodes += int64(s.GetWritableLayer().GetInodesUsed().GetValue())
	}
	for _, dir := range [...]string{r.logDir(pod), filepath.Join(r.podDir(pod), containersDir)} {
		entries, rerr := os.ReadDir(dir)
		if rerr != nil && !os.IsNotExist(rerr) {
			err = errors.Join(err, rerr)
		}
		for _, e := range entries {
			used, uerr := mounts.Usage(ctx, filepath.Join(dir, e.Name()))
			if uerr != nil {
				err = errors.Join(err, fmt.Errorf("measuring what container %s holds: %w", e.Name(), uerr))
			}
			out.Bytes[e.Name()] += used.Bytes
			out.Inodes += used.Inodes
		}
	}
	hosts, herr := mounts.Usage(ctx, filepath.Join(r.podDir(pod), hostsFile))
	out.Shared, out.Inodes = hosts.Bytes, out.Inodes+hosts.Inodes
	return out, errors.Join(err, herr)
}
