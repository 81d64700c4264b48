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

// beginTimeout is how long a worker may take to find what a tunnel is to.
const beginTimeout = 10 * time.Second

// openTunnel opens a tunnel to the worker of a node, whichever server
// holds its connection, and returns when the worker has found what is asked for.
// Its errors are the API's.
func (s *Server) openTunnel(ctx context.Context, node, kind string, body []byte) (*rpc.Tunnel, error) {
	tunnel, err := s.tunneler.Open(ctx, node, kind, body)
	if err != nil {
		return nil, tunnelError(node, err)
	}
	if err := awaitBegin(ctx, tunnel); err != nil {
		_ = tunnel.Close() // the first error is the one that matters
		return nil, tunnelError(node, err)
	}
	return tunnel, nil
}

// awaitBegin returns when the worker has found what is asked for, or with its
// refusal: a status can be told only before the first byte of the answer.
func awaitBegin(ctx context.Context, tunnel *rpc.Tunnel) error {
	if err := tunnel.SetReadDeadline(time.Now().Add(beginTimeout)); err != nil {
		return err
	}
	var begin [1]byte
	if _, err := io.ReadFull(tunnel, begin[:]); err != nil {
		if errors.Is(err, os.ErrDeadlineExceeded) {
			err = context.DeadlineExceeded
		}
		return errors.Join(err, ctx.Err())
	}
	if begin[0] != rpc.Begin {
		return fmt.Errorf("%w: the worker does not say that it begins", rpc.ErrInvalid)
	}
	return tunnel.SetReadDeadline(time.Time{})
}

func noHost(pod *corev1.Pod) error {
	return apierrors.NewBadRequest(fmt.Sprintf("pod %s does not have a host assigned", pod.Name))
}

// tunnelError gives what went wrong with a tunnel the form of the API's refusals.
func tunnelError(node string, err error) error {
	var refused *rpc.TunnelError
	switch {
	case errors.As(err, &refused):
		return &apierrors.StatusError{ErrStatus: metav1.Status{
			Status: metav1.StatusFailure, Code: int32(refused.Code), Message: refused.Message,
			Reason: reasonOf(refused.Code),
		}}
	case errors.Is(err, rpc.ErrBusy):
		return apierrors.NewTooManyRequests(fmt.Sprintf("the worker of node %s has too many connections open", node), 1)
	case errors.Is(err, rpc.ErrNotHeld):
		return apierrors.NewServiceUnavailable(fmt.Sprintf("the worker of node %s is not connected to any server that answers: %v", node, err))
	case errors.Is(err, context.DeadlineExceeded):
		return apierrors.NewTimeoutError(fmt.Sprintf("the worker of node %s does not answer", node), 1)
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
	case http.StatusNotImplemented:
		return metav1.StatusReason("NotImplemented")
	case http.StatusServiceUnavailable:
		return metav1.StatusReasonServiceUnavailable
	}
	return metav1.StatusReasonInternalError
}
