package worker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/model"
	"github.com/berth-dev/berth/worker/runtime"
)

// LogOptions selects what of a container's output is returned, as `kubectl logs` does.
type LogOptions struct {
	Follow       bool
	Previous     bool
	TailLines    *int64
	SinceSeconds *int64
	SinceTime    *time.Time
	Timestamps   bool
	LimitBytes   *int64
	Stream       string // "", "All", "Stdout" or "Stderr"
}

var (
	// ErrUnknownPod says that the node does not have the pod.
	ErrUnknownPod = errors.New("pod is not on this node")
	// ErrNoLogs is what every error is that says, in Kubernetes' words, why there is nothing to read from a container.
	ErrNoLogs = errors.New("no logs")
)

type noLogs string

func (e noLogs) Error() string { return string(e) }

// Is makes it an ErrNoLogs.
func (e noLogs) Is(target error) bool { return target == ErrNoLogs }

func noLogsf(format string, args ...any) error { return noLogs(fmt.Sprintf(format, args...)) }

// Logs returns what a container of the pod wrote. The caller closes it.
func (a *Agent) Logs(ctx context.Context, pod types.UID, container string, o LogOptions) (io.ReadCloser, error) {
	now := a.clock.Now()
	a.mu.Lock()
	object, status, ok := a.core.Pod(pod, now)
	a.mu.Unlock()
	if !ok {
		return nil, fmt.Errorf("%w: uid %s", ErrUnknownPod, pod)
	}
	ref, err := logSource(object.Name, &status, container, o.Previous)
	if err != nil {
		return nil, err
	}
	var id runtime.ID
	a.locked(func() { id, ok = a.core.Run(pod, ref) })
	if !ok {
		return nil, noLogsf("the logs of container %q in pod %q are not kept any more", container, object.Name)
	}
	ro := runtime.LogOptions{Follow: o.Follow, TailLines: o.TailLines, Timestamps: o.Timestamps, LimitBytes: o.LimitBytes, Stream: o.Stream}
	switch {
	case o.SinceTime != nil:
		ro.Since = *o.SinceTime
	case o.SinceSeconds != nil:
		ro.Since = now.Add(-model.Seconds(*o.SinceSeconds))
	}
	rc, err := a.runtime.Logs(ctx, id, ro)
	if errors.Is(err, runtime.ErrNotFound) {
		return nil, noLogsf("the logs of container %q in pod %q are not kept any more", container, object.Name)
	}
	if err != nil {
		return nil, fmt.Errorf("logs of container %s: %w", container, err)
	}
	return rc, nil
}

// logSource finds the run of the container whose output is meant.
// One that never came to run has written nothing: why is what there is to say.
func logSource(pod string, s *corev1.PodStatus, name string, previous bool) (containerID string, err error) {
	var cs *corev1.ContainerStatus
	for _, list := range [][]corev1.ContainerStatus{s.ContainerStatuses, s.InitContainerStatuses, s.EphemeralContainerStatuses} {
		for i := range list {
			if list[i].Name == name {
				cs = &list[i]
			}
		}
	}
	if cs == nil {
		return "", noLogsf("container %q in pod %q is not available", name, pod)
	}
	last := cs.LastTerminationState.Terminated
	var ended *corev1.ContainerStateTerminated
	switch {
	case previous:
		if last == nil || last.ContainerID == "" {
			return "", noLogsf("previous terminated container %q in pod %q not found", name, pod)
		}
		ended = last
	case cs.State.Running != nil:
		return cs.ContainerID, nil
	case cs.State.Terminated != nil && cs.State.Terminated.ContainerID != "":
		ended = cs.State.Terminated
	case last != nil && last.ContainerID != "":
		ended = last
	case cs.State.Waiting != nil:
		why := cs.State.Waiting.Reason
		if message := cs.State.Waiting.Message; message != "" {
			why += ": " + message
		}
		return "", noLogsf("container %q in pod %q is waiting to start: %s", name, pod, why)
	default:
		return "", noLogsf("container %q in pod %q is terminated", name, pod)
	}
	if ended.Reason == runtime.ReasonStartError {
		return "", noLogsf("container %q in pod %q could not be started: %s", name, pod, ended.Message)
	}
	return ended.ContainerID, nil
}
