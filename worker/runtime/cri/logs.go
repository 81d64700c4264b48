package cri

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-dev/berth/worker/runtime"
	"github.com/berth-dev/berth/worker/runtime/logfile"
	"github.com/berth-dev/berth/worker/runtime/record"
)

// Logs implements runtime.Runtime.
func (r *Runtime) Logs(ctx context.Context, id runtime.ID, opts runtime.LogOptions) (io.ReadCloser, error) {
	rc, err := logfile.Open(ctx, r.logFile(id), opts, func() (bool, error) {
		_, err := r.find(id)
		return err == nil, nil
	})
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("logs of container %s: %w", id, runtime.ErrNotFound)
	}
	if err != nil {
		return nil, fmt.Errorf("logs of container %s: %w", id, err)
	}
	return rc, nil
}

// terminationMessage is a container's last word. pod is its object, if it is at hand.
func (r *Runtime) terminationMessage(id runtime.ID, pod *corev1.Pod, failed bool) string {
	if pod == nil && failed {
		pod, _ = record.Read(r.podDir(id.Pod), id.Pod) // without it there is no policy to follow
	}
	var policy corev1.TerminationMessagePolicy
	if pod != nil {
		policy = logfile.TerminationPolicy(pod, id.Container)
	}
	return logfile.TerminationMessage(filepath.Join(r.dir(id), terminationFile), r.logFile(id), policy, failed)
}

// rotateLogs begins new log files for the containers whose newest has become too large.
func (r *Runtime) rotateLogs(ctx context.Context) {
	r.mu.Lock()
	ids := make(map[runtime.ID]string, len(r.running))
	for id, c := range r.running {
		ids[id] = c.ref
	}
	r.mu.Unlock()
	var large []func() error
	for id, ref := range ids {
		path := r.logFile(id)
		fi, err := os.Stat(path)
		if os.IsNotExist(err) {
			// A rotation went wrong: it writes into a file of another name, or into none.
			large = append(large, func() error {
				if err := r.reopen(ctx, ref); err != nil {
					r.log.Warn("a container's log could not be begun", "container", id.String(), "error", err)
				}
				return nil
			})
		}
		if err != nil || fi.Size() < r.opts.LogBytes {
			continue
		}
		large = append(large, func() error {
			if err := r.rotate(ctx, path, ref); err != nil {
				r.log.Warn("a container's log could not be rotated", "container", id.String(), "error", err)
			}
			return nil
		})
	}
	_ = severalAtOnce(large) // each has told
}

func (r *Runtime) rotate(ctx context.Context, path, ref string) error {
	keep := r.opts.LogFiles
	if err := os.Remove(logfile.Name(path, keep-1)); err != nil && !os.IsNotExist(err) {
		return err
	}
	for i := keep - 2; i >= 0; i-- {
		if err := os.Rename(logfile.Name(path, i), logfile.Name(path, i+1)); err != nil && !os.IsNotExist(err) {
			return err
		}
	}
	// Until this is done the container writes to the file that was renamed: nothing is lost.
	err := r.reopen(ctx, ref)
	if err == nil {
		return nil
	}
	// What it still writes to gets its name back, so that it is seen and does not grow without bound; unless it was begun anew although nobody said so.
	for i := range keep - 1 {
		switch rerr := unix.Renameat2(unix.AT_FDCWD, logfile.Name(path, i+1), unix.AT_FDCWD, logfile.Name(path, i), unix.RENAME_NOREPLACE); {
		case i == 0 && errors.Is(rerr, unix.EEXIST):
			return nil
		case rerr != nil && !errors.Is(rerr, unix.ENOENT):
			return errors.Join(err, rerr)
		}
	}
	return err
}

// reopen has a container write into the file that has its log's name, which is made.
func (r *Runtime) reopen(ctx context.Context, ref string) error {
	ctx, cancel := asking(ctx)
	defer cancel()
	_, err := r.runtime.ReopenContainerLog(ctx, &criv1.ReopenContainerLogRequest{ContainerId: ref})
	return asked(err)
}
