package cri

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/types"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-dev/berth/worker/runtime"
)

var _ runtime.Meter = (*Runtime)(nil)

// Use implements runtime.Meter, by what the container runtime says.
func (r *Runtime) Use(ctx context.Context) ([]runtime.ContainerUse, error) {
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
