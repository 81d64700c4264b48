package rpc

import (
	"context"
	"errors"
	"testing"

	"google.golang.org/grpc"

	"github.com/berth-dev/berth/guard"
)

// broken is a stream whose messages make their decoder panic.
type broken struct{ grpc.ServerStream }

func (broken) RecvMsg(any) error { panic("a message breaks") }

func (broken) SendMsg(any) error { return nil }

// What a worker says that the server breaks over ends its stream, and is told.
func TestMessageThatPanicsEndsItsStream(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	told := make(chan string, 1)
	receiveWorker(ctx, func(what string, f func()) (ok bool) {
		defer func() {
			if recover() != nil {
				told <- what
			}
		}()
		f()
		return true
	}, cancel, broken{}, new(heard))
	<-ctx.Done()
	if err := context.Cause(ctx); !errors.Is(err, errBroke) || <-told != "worker's messages" {
		t.Errorf("%v", err)
	}
}

// A frame that it breaks over ends its tunnel.
func TestFrameThatPanicsEndsItsTunnel(t *testing.T) {
	finished := make(chan struct{})
	tunnel := newTunnel(t.Context(), broken{}, "n1", func() {}, func() { close(finished) })
	var p *guard.Panic
	if _, err := tunnel.Read(make([]byte, 1)); !errors.As(err, &p) || p.Value != "a message breaks" {
		t.Errorf("%v", err)
	}
	if err := proxyFrames(broken{}, broken{}); !errors.As(err, &p) {
		t.Errorf("%v", err)
	}
	_ = tunnel.Close()
	<-finished
}
