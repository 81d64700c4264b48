package rpc

import (
	"context"
	"errors"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// A call over which the server breaks is answered so, and counted; the server goes on.
func TestBrokenCallsAreAnswered(t *testing.T) {
	var broken []string
	s := &Server{config: ServerConfig{Guard: func(what string, f func()) (ok bool) {
		defer func() {
			if recover() != nil {
				broken = append(broken, what)
			}
		}()
		f()
		return true
	}}}
	_, err := s.answer(t.Context(), nil, &grpc.UnaryServerInfo{FullMethod: "/a"}, func(context.Context, any) (any, error) { panic("broken") })
	if st := status.Convert(err); st.Code() != codes.Internal || st.Message() != errBroke.Error() {
		t.Errorf("a call: %v", err)
	}
	err = s.stream(nil, nil, &grpc.StreamServerInfo{FullMethod: "/b"}, func(any, grpc.ServerStream) error { panic("broken") })
	if status.Code(err) != codes.Internal {
		t.Errorf("a stream: %v", err)
	}
	if got, err := s.answer(t.Context(), nil, &grpc.UnaryServerInfo{FullMethod: "/a"}, func(context.Context, any) (any, error) { return 1, nil }); got != 1 || err != nil {
		t.Errorf("one that is well: %v, %v", got, err)
	}
	if _, err := s.answer(t.Context(), nil, &grpc.UnaryServerInfo{}, func(context.Context, any) (any, error) { return nil, errors.New("no") }); status.Convert(err).Message() != "no" {
		t.Errorf("one that is refused: %v", err)
	}
	if len(broken) != 2 || broken[0] != "rpc /a" || broken[1] != "rpc /b" {
		t.Errorf("counted: %q", broken)
	}
}
