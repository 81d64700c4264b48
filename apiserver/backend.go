package apiserver

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/api/berthv1"
	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/sample"
	"github.com/berth-dev/berth/store"
)

// Backend is what the API needs of the server that it belongs to.
type Backend interface {
	// Propose carries commands out through the log and returns a result for
	// each, once this server's own state has applied them. Its errors wrap
	// ErrNoLeader, ErrBusy or ErrUnknownOutcome.
	Propose(ctx context.Context, ps ...fsm.Proposal) ([]fsm.Result, error)
	// View is this server's latest state, Feed the changes that lead to it.
	View() *fsm.View
	Feed() *store.Feed
	// ReadIndex returns when this server's state is at least as new as every
	// write that was acknowledged anywhere before the call.
	ReadIndex(ctx context.Context) error
	// NowUnixNano is the state's time now: what an entry would be stamped with.
	NowUnixNano() int64
}

// Errors that a Backend wraps.
var (
	// ErrNoLeader: nothing was done, because no leader is known or reachable.
	ErrNoLeader = errors.New("the cluster has no leader at the moment")
	// ErrBusy: nothing was done, because the bounded queue of proposals is full.
	ErrBusy = errors.New("too many writes are waiting")
	// ErrUnknownOutcome: the write may or may not have been carried out.
	ErrUnknownOutcome = errors.New("the outcome is unknown")
)

// Logs opens the log of a container. The options are validated; the container
// is one of the pod's. An error that carries an API status is answered as it is.
type Logs interface {
	Open(ctx context.Context, pod *corev1.Pod, container string, options *corev1.PodLogOptions) (io.ReadCloser, error)
}

// Streams leads into pods: what is "exec", "attach" or "portforward". The
// connection is to the pod's worker, who answers one HTTP request on it as a
// kubelet would; it ends with ctx. An error that carries an API status is answered
// as it is.
type Streams interface {
	Open(ctx context.Context, pod *corev1.Pod, what, container string) (net.Conn, error)
	// Dial connects to what listens at the pod's address. The connection ends with ctx.
	Dial(ctx context.Context, pod *corev1.Pod, port uint16) (net.Conn, error)
}

// Usage knows what nodes and their pods use, as workers tell it.
type Usage interface {
	// Of finds out what is known of nodes, wherever their workers are connected, and
	// waits for a few seconds at most.
	Of(ctx context.Context, nodes []string) (Samples, error)
}

// Samples are the newest ones.
type Samples interface {
	// Sample is a node's; false: there is none.
	Sample(node string) (sample.Taken, bool)
}

// Nodes leads to workers: on the connection the worker of a node answers one HTTP
// request, as a kubelet does. It ends with ctx. An error that carries an API status is
// answered as it is.
type Nodes interface {
	Open(ctx context.Context, node string) (net.Conn, error)
}

// Planner answers what would become of pods. It works on a copy of the view, on
// which it carries out setup first; pods are complete but not admitted. A
// refusal of setup is its error. It calls GoOn between bounded pieces of work.
type Planner interface {
	Plan(ctx context.Context, view *fsm.View, user string, groups []string, setup []fsm.Command, pods []*corev1.Pod) (*berthv1.PlanStatus, error)
	// ScaleIn says which of a ReplicaSet's pods would go, if there were to be so
	// many fewer.
	ScaleIn(view *fsm.View, rs *appsv1.ReplicaSet, fewer int) []berthv1.PlanRemoval
}

// retryAfterSeconds is what a client is told to wait when nothing was done.
const retryAfterSeconds = 1

// NoLeaderError is ErrNoLeader with what is known of the reason.
type NoLeaderError struct {
	// Reason says who does not answer, as the end of a sentence; it may be empty.
	Reason string
	Err    error
}

func (e *NoLeaderError) Error() string {
	if e.Reason == "" {
		return ErrNoLeader.Error()
	}
	return ErrNoLeader.Error() + ": " + e.Reason
}

// Unwrap gives the cause, and ErrNoLeader.
func (e *NoLeaderError) Unwrap() []error { return []error{ErrNoLeader, e.Err} }

// apiError turns an error of the backend into the answer of the API. Nothing
// that the client may safely repeat is reported like something it may not.
func apiError(err error) error {
	var (
		status     apierrors.APIStatus
		leaderless *NoLeaderError
	)
	switch {
	case err == nil:
		return nil
	case errors.As(err, &status):
		return err
	case errors.As(err, &leaderless):
		return retryable(http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable, leaderless.Error()+"; nothing was done, try again")
	case errors.Is(err, ErrNoLeader):
		return retryable(http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable, ErrNoLeader.Error()+"; nothing was done, try again")
	case errors.Is(err, ErrBusy):
		return retryable(http.StatusTooManyRequests, metav1.StatusReasonTooManyRequests,
			"too many writes are waiting; nothing was done, try again")
	case errors.Is(err, ErrUnknownOutcome), errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return apierrors.NewTimeoutError("the outcome is unknown: the write may or may not have been carried out; look before repeating it", 0)
	}
	return apierrors.NewInternalError(err)
}

// readError is apiError for a request that changes nothing.
func readError(err error) error {
	if errors.Is(err, ErrUnknownOutcome) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return apierrors.NewTimeoutError("the server could not make sure in time that its state is the latest; nothing was changed, try again", retryAfterSeconds)
	}
	return apiError(err)
}

func retryable(code int32, reason metav1.StatusReason, message string) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: code, Reason: reason, Message: message,
		Details: &metav1.StatusDetails{RetryAfterSeconds: retryAfterSeconds},
	}}
}
