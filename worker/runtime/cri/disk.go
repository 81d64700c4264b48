package cri

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"k8s.io/apimachinery/pkg/types"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-dev/berth/worker/runtime"
	"github.com/berth-dev/berth/worker/runtime/mounts"
)

// DiskUse implements runtime.DiskUser: the layers that containers write to, as the runtime says, and their logs.
func (r *Runtime) DiskUse(ctx context.Context, pod types.UID) (runtime.DiskUse, error) {
	out := runtime.DiskUse{Bytes: map[string]int64{}}
	asks, cancel := context.WithTimeout(ctx, countTimeout)
	defer cancel()
	stats, err := r.runtime.ListContainerStats(asks, &criv1.ListContainerStatsRequest{Filter: &criv1.ContainerStatsFilter{
		LabelSelector: map[string]string{labelNode: r.opts.Node, labelPodUID: string(pod)}}})
	if err != nil {
		return out, fmt.Errorf("asking what containers have written: %w", asked(err))
	}
	for _, s := range stats.Stats {
		out.Bytes[s.GetAttributes().GetLabels()[labelContainer]] += int64(s.GetWritableLayer().GetUsedBytes().GetValue())
		out.Inodes += int64(s.GetWritableLayer().GetInodesUsed().GetValue())
	}
	logs, err := os.ReadDir(r.logDir(pod))
	if err != nil && !os.IsNotExist(err) {
		return out, err
	}
	for _, e := range logs {
		used, err := mounts.Usage(ctx, filepath.Join(r.logDir(pod), e.Name()))
		if err != nil {
			return out, fmt.Errorf("measuring the logs of container %s: %w", e.Name(), err)
		}
		out.Bytes[e.Name()] += used.Bytes
		out.Inodes += used.Inodes
	}
	return out, nil
}
