package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/rpc"
	"github.com/berth-dev/berth/worker"
)

// Tunnel implements rpc.WorkerAgent.
func (u *uplink) Tunnel(ctx context.Context, kind string, body []byte, conn net.Conn) error {
	switch kind {
	case rpc.KindLogs:
		return u.logs(ctx, body, conn)
	case rpc.KindStream:
		return u.stream(ctx, body, conn)
	case rpc.KindDial:
		return u.dial(ctx, body, conn)
	case rpc.KindNode:
		return u.nodeAPI.serve(ctx, conn)
	}
	return &rpc.TunnelError{Code: http.StatusNotImplemented, Message: fmt.Sprintf("this worker does not know tunnels of kind %q", kind)}
}

func (u *uplink) logs(ctx context.Context, body []byte, conn net.Conn) error {
	r, err := rpc.DecodeLogsRequest(body)
	if err != nil {
		return &rpc.TunnelError{Code: http.StatusBadRequest, Message: err.Error()}
	}
	o := worker.LogOptions{
		Follow: r.Follow, Previous: r.Previous, Timestamps: r.Timestamps,
		TailLines: r.TailLines, SinceSeconds: r.SinceSeconds, LimitBytes: r.LimitBytes,
	}
	if r.SinceTimeUnixNano != nil {
		at := time.Unix(0, *r.SinceTimeUnixNano)
		o.SinceTime = &at
	}
	from, err := u.agent.Logs(ctx, types.UID(r.PodUID), r.Container, o)
	if err != nil {
		return logsError(err)
	}
	defer func() { _ = from.Close() }() // it was only read
	stop := context.AfterFunc(ctx, func() { _ = from.Close() })
	defer stop()
	if _, err := conn.Write([]byte{rpc.Begin}); err != nil {
		return err
	}
	_, err = io.Copy(conn, from)
	return err
}

func logsError(err error) error {
	code := http.StatusInternalServerError
	switch {
	case errors.Is(err, worker.ErrUnknownPod):
		code = http.StatusNotFound
	case errors.Is(err, worker.ErrNoLogs):
		code = http.StatusBadRequest
	}
	return &rpc.TunnelError{Code: code, Message: err.Error()}
}

// stream lets a client into a pod.
func (u *uplink) stream(ctx context.Context, body []byte, conn net.Conn) error {
	r, err := rpc.DecodeStreamRequest(body)
	if err != nil {
		return &rpc.TunnelError{Code: http.StatusBadRequest, Message: err.Error()}
	}
	err = u.agent.Stream(ctx, worker.StreamKind(r.What), types.UID(r.PodUID), r.Container, conn, func() error {
		_, err := conn.Write([]byte{rpc.Begin})
		return err
	})
	return streamError(err)
}

func streamError(err error) error {
	var refused *worker.StreamError
	if errors.As(err, &refused) {
		return &rpc.TunnelError{Code: refused.Code, Message: refused.Message}
	}
	return err
}

// dial connects a client to what listens in a pod.
func (u *uplink) dial(ctx context.Context, body []byte, conn net.Conn) error {
	r, err := rpc.DecodeDialRequest(body)
	if err != nil {
		return &rpc.TunnelError{Code: http.StatusBadRequest, Message: err.Error()}
	}
	return streamError(u.agent.Dial(ctx, types.UID(r.PodUID), r.Port, conn, func() error {
		_, err := conn.Write([]byte{rpc.Begin})
		return err
	}))
}
