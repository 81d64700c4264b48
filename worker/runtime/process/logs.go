package process

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/worker/runtime"
	"github.com/berth-dev/berth/worker/runtime/logfile"
	"github.com/berth-dev/berth/worker/runtime/process/shim"
	"github.com/berth-dev/berth/worker/runtime/record"
)

// Logs implements runtime.Runtime.
func (r *Runtime) Logs(ctx context.Context, id runtime.ID, opts runtime.LogOptions) (io.ReadCloser, error) {
	dir := r.dir(id)
	rc, err := logfile.Open(ctx, filepath.Join(dir, shim.LogFile), opts, func() (bool, error) { return locked(dir) })
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("logs of container %s: %w", id, runtime.ErrNotFound)
	}
	if err != nil {
		return nil, fmt.Errorf("logs of container %s: %w", id, err)
	}
	return rc, nil
}

func (r *Runtime) terminationMessage(id runtime.ID, failed bool) string {
	var policy corev1.TerminationMessagePolicy
	if failed {
		if pod, err := record.Read(r.podDir(id.Pod), id.Pod); err == nil {
			policy = logfile.TerminationPolicy(pod, id.Container)
		}
	}
	dir := r.dir(id)
	return logfile.TerminationMessage(filepath.Join(dir, shim.TerminationFile), filepath.Join(dir, shim.LogFile), policy, failed)
}
