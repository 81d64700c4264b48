package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/rpc"
)

// logs opens containers' logs through the worker's own connection, whichever
// server holds it (apiserver.Logs).
type logs struct{ *Server }

// Open implements apiserver.Logs.
func (l logs) Open(ctx context.Context, pod *corev1.Pod, container string, o *corev1.PodLogOptions) (io.ReadCloser, error) {
	if pod.Spec.NodeName == "" {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("pod %s does not have a host assigned", pod.Name))
	}
	r := &rpc.LogsRequest{
		Namespace: pod.Namespace, Pod: pod.Name, PodUID: string(pod.UID), Container: container,
		Follow: o.Follow, Previous: o.Previous, Timestamps: o.Timestamps,
		TailLines: o.TailLines, SinceSeconds: o.SinceSeconds, LimitBytes: o.LimitBytes,
	}
	if o.SinceTime != nil {
		at := o.SinceTime.UnixNano()
		r.SinceTimeUnixNano = &at
	}
	body, err := r.Encode()
	if err != nil {
		return nil, err
	}
	tunnel, err := l.tunneler.Open(ctx, pod.Spec.NodeName, rpc.KindLogs, body)
	if err != nil {
		return nil, logError(pod, err)
	}
	if err := awaitLog(ctx, tunnel); err != nil {
		_ = tunnel.Close() // the first error is the one that matters
		return nil, logError(pod, err)
	}
	return logReader{tunnel, pod}, nil
}

// logTimeout is how long a worker may take to find a log.
const logTimeout = 10 * time.Second

// awaitLog returns when the worker has found the log, or with its refusal: a
// status can be told only before the first byte of the answer.
func awaitLog(ctx context.Context, tunnel *rpc.Tunnel) error {
	if err := tunnel.SetReadDeadline(time.Now().Add(logTimeout)); err != nil {
		return err
	}
	var begin [1]byte
	if _, err := io.ReadFull(tunnel, begin[:]); err != nil {
		if errors.Is(err, os.ErrDeadlineExceeded) {
			err = context.DeadlineExceeded
		}
		return errors.Join(err, ctx.Err())
	}
	if begin[0] != rpc.LogsBegin {
		return fmt.Errorf("%w: the worker does not say that a log begins", rpc.ErrInvalid)
	}
	return tunnel.SetReadDeadline(time.Time{})
}

// logReader gives the worker's refusals the form of the API's.
type logReader struct {
	*rpc.Tunnel
	pod *corev1.Pod
}

func (r logReader) Read(b []byte) (int, error) {
	n, err := r.Tunnel.Read(b)
	if err != nil && !errors.Is(err, io.EOF) {
		err = logError(r.pod, err)
	}
	return n, err
}

func logError(pod *corev1.Pod, err error) error {
	var refused *rpc.TunnelError
	switch {
	case errors.As(err, &refused):
		return &apierrors.StatusError{ErrStatus: metav1.Status{
			Status: metav1.StatusFailure, Code: int32(refused.Code), Message: refused.Message,
			Reason: reasonOf(refused.Code),
		}}
	case errors.Is(err, rpc.ErrBusy):
		return apierrors.NewTooManyRequests(fmt.Sprintf("the worker of node %s has too many connections open", pod.Spec.NodeName), 1)
	case errors.Is(err, rpc.ErrNotHeld):
		return apierrors.NewServiceUnavailable(fmt.Sprintf("the worker of node %s is not connected to any server that answers: %v", pod.Spec.NodeName, err))
	case errors.Is(err, context.DeadlineExceeded):
		return apierrors.NewTimeoutError(fmt.Sprintf("the worker of node %s does not answer", pod.Spec.NodeName), 1)
	}
	return err
}

func reasonOf(code int) metav1.StatusReason {
	switch code {
	case http.StatusBadRequest:
		return metav1.StatusReasonBadRequest
	case http.StatusNotFound:
		return metav1.StatusReasonNotFound
	case http.StatusTooManyRequests:
		return metav1.StatusReasonTooManyRequests
	}
	return metav1.StatusReasonInternalError
}
