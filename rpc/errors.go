package rpc

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Errors that keep their identity on the wire: errors.Is finds at the caller
// what the handler returned.
var (
	// ErrNoLeader: nothing was done, since no leader is known.
	ErrNoLeader = errors.New("the cluster has no leader")
	// ErrNotLeader is what every *NotLeaderError is.
	ErrNotLeader = errors.New("this server is not the leader")
	// ErrBusy: nothing was done, since a bounded queue is full. Try later.
	ErrBusy = errors.New("too many requests are waiting")
	// ErrUnknownOutcome: the request may or may not have been carried out.
	ErrUnknownOutcome = errors.New("the request may or may not have been carried out")
	// ErrNotSent: the request never left this process; to send it again, here
	// or elsewhere, is safe. It is made by the caller's side only.
	ErrNotSent = errors.New("the request was not sent")
	// ErrForwarded: a request came by more than one hop, and was refused.
	ErrForwarded = errors.New("a forwarded request was forwarded again")
	// ErrForbidden: the caller's certificate does not allow this.
	ErrForbidden = errors.New("the caller's certificate does not allow this")
	// ErrNotHeld: no stream of that worker ends here.
	ErrNotHeld = errors.New("the worker is not connected to this server")
	// ErrNodeTaken: another live worker has this node's name.
	ErrNodeTaken = errors.New("another worker is connected under this node's name")
	// ErrReplaced: a newer stream of the same worker has taken over.
	ErrReplaced = errors.New("a newer stream of this worker has taken over")
	// ErrNodeGone: the worker's node was deleted; it has to register anew.
	ErrNodeGone = errors.New("the node was deleted; its worker registers it again")
	// ErrNodeForgotten: the worker's node was lost, and is back; it has to register anew.
	ErrNodeForgotten = errors.New("the node was lost; its worker says anew what it is")
	// ErrDeaf: the worker does not read what it is sent.
	ErrDeaf = errors.New("the worker does not read what it is sent")
	// ErrNotFound: what was asked for is not there.
	ErrNotFound = errors.New("not found")
	// ErrTooLarge: nothing was done, since a command is larger than any may be.
	ErrTooLarge = errors.New("the command is too large")
	// ErrInvalid: the request makes no sense; to repeat it is useless.
	ErrInvalid = errors.New("invalid request")
	// ErrStopping: the server is shutting down; nothing was done.
	ErrStopping = errors.New("this server is shutting down")
)

// NotLeaderError says who may lead instead: a hint, possibly empty or old.
type NotLeaderError struct {
	Leader string // the leader's name
	Addr   string // its RPC address
}

func (e *NotLeaderError) Error() string {
	if e.Leader == "" {
		return ErrNotLeader.Error()
	}
	return fmt.Sprintf("%v: %s is", ErrNotLeader, e.Leader)
}

// Is makes every NotLeaderError an ErrNotLeader.
func (e *NotLeaderError) Is(target error) bool { return target == ErrNotLeader }

// remoteError is an error of the other side: its text, and which of ours it is.
type remoteError struct {
	is  error
	msg string
}

func (e *remoteError) Error() string { return e.msg }
func (e *remoteError) Unwrap() error { return e.is }

// errorDomain marks the details that are ours.
const errorDomain = "rpc.berth.dev"

// wireErrors gives each error that travels its code and its permanent reason.
// The order matters only for an error that is several of them.
func wireErrors() []wireErrorKind {
	return []wireErrorKind{
		{ErrUnknownOutcome, codes.Unknown, "UNKNOWN_OUTCOME"},
		{ErrNotLeader, codes.FailedPrecondition, "NOT_LEADER"},
		{ErrNoLeader, codes.Unavailable, "NO_LEADER"},
		{ErrBusy, codes.ResourceExhausted, "BUSY"},
		{ErrForwarded, codes.FailedPrecondition, "FORWARDED"},
		{ErrForbidden, codes.PermissionDenied, "FORBIDDEN"},
		{ErrNotHeld, codes.NotFound, "NOT_HELD"},
		{ErrNodeTaken, codes.AlreadyExists, "NODE_TAKEN"},
		{ErrReplaced, codes.Aborted, "REPLACED"},
		{ErrNodeGone, codes.Aborted, "NODE_GONE"},
		{ErrNodeForgotten, codes.Aborted, "NODE_FORGOTTEN"},
		{ErrDeaf, codes.Aborted, "DEAF"},
		{ErrNotFound, codes.NotFound, "NOT_FOUND"},
		{ErrTooLarge, codes.OutOfRange, "TOO_LARGE"},
		{ErrInvalid, codes.InvalidArgument, "INVALID"},
		{ErrStopping, codes.Unavailable, "STOPPING"},
	}
}

type wireErrorKind struct {
	err    error
	code   codes.Code
	reason string
}

// toStatus turns a handler's error into what gRPC sends.
func toStatus(err error) error {
	if err == nil {
		return nil
	}
	var already interface{ GRPCStatus() *status.Status }
	if errors.As(err, &already) {
		return err
	}
	for _, k := range wireErrors() {
		if !errors.Is(err, k.err) {
			continue
		}
		info := &errdetails.ErrorInfo{Reason: k.reason, Domain: errorDomain}
		var nl *NotLeaderError
		if errors.As(err, &nl) {
			info.Metadata = map[string]string{"leader": nl.Leader, "addr": nl.Addr}
		}
		st := status.New(k.code, err.Error())
		if with, derr := st.WithDetails(info); derr == nil {
			st = with
		}
		return st.Err()
	}
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return status.Error(codes.DeadlineExceeded, err.Error())
	case errors.Is(err, context.Canceled):
		return status.Error(codes.Canceled, err.Error())
	default:
		return status.Error(codes.Internal, err.Error())
	}
}

// fromStatus turns what gRPC returned into one of the errors above, which
// means that the other side has answered (typed is true); or into an error that
// says only what happened to the call.
func fromStatus(err error) (out error, typed bool) {
	if err == nil {
		return nil, false
	}
	st, ok := status.FromError(err)
	if !ok {
		return err, false
	}
	for _, d := range st.Details() {
		info, ok := d.(*errdetails.ErrorInfo)
		if !ok || info.GetDomain() != errorDomain {
			continue
		}
		for _, k := range wireErrors() {
			if k.reason != info.GetReason() {
				continue
			}
			if k.err == ErrNotLeader {
				return &NotLeaderError{Leader: info.GetMetadata()["leader"], Addr: info.GetMetadata()["addr"]}, true
			}
			return &remoteError{is: k.err, msg: st.Message()}, true
		}
	}
	switch st.Code() {
	case codes.DeadlineExceeded:
		return &remoteError{is: context.DeadlineExceeded, msg: st.Message()}, false
	case codes.Canceled:
		return &remoteError{is: context.Canceled, msg: st.Message()}, false
	default:
		return &remoteError{is: err, msg: st.Message()}, false
	}
}
