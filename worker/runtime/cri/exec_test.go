package cri

import (
	"context"
	"errors"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-dev/berth/worker/runtime"
)

// holder is a stub whose commands have output that does not end, until it is let go.
type holder struct {
	stub
	versions chan func() error // what it does when it is asked whether it is there
	letGo    chan struct{}
	begun    chan struct{}
}

func (s *holder) Version(ctx context.Context, req *criv1.VersionRequest) (*criv1.VersionResponse, error) {
	select {
	case do := <-s.versions:
		if err := do(); err != nil {
			return nil, err
		}
	default:
	}
	return s.stub.Version(ctx, req)
}

func (s *holder) ExecSync(ctx context.Context, _ *criv1.ExecSyncRequest) (*criv1.ExecSyncResponse, error) {
	close(s.begun)
	select {
	case <-s.letGo:
		return &criv1.ExecSyncResponse{ExitCode: 3}, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// A command that has left something running with its output has not ended, as far as the interface tells. At its time it counts as one that does
// not, if the runtime answers at all; if that does not, nothing is known. Who asks and goes away does not wait.
func TestOutputThatDoesNotEnd(t *testing.T) {
	t.Parallel()
	id := runtime.ID{Pod: "p", Container: "c"}
	away := func() error { return status.Error(codes.Unavailable, "not now") }
	there := func() error { return nil }
	open := func(t *testing.T, patience time.Duration) (*Runtime, *holder) {
		s := &holder{versions: make(chan func() error, 2), letGo: make(chan struct{}), begun: make(chan struct{})}
		r, _ := openFor(t, s, s, nil)
		r.execPatience = patience
		r.mu.Lock()
		r.running[id] = running{ref: "c"}
		r.mu.Unlock()
		return r, s
	}
	for name, c := range map[string]struct {
		versions []func() error
		unknown  bool
	}{
		"it answers":           {nil, false},
		"it does not":          {[]func() error{away}, true},
		"it does not any more": {[]func() error{there, away}, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, s := open(t, 0)
			for _, do := range c.versions {
				s.versions <- do
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			res, err := r.Exec(ctx, id, []string{"fork"})
			if err == nil || errors.Is(err, runtime.ErrUnavailable) != c.unknown {
				t.Errorf("%+v, %v", res, err)
			}
		})
	}
	t.Run("it is let go late", func(t *testing.T) {
		t.Parallel()
		r, s := open(t, time.Minute)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		s.versions <- func() error { close(s.letGo); return nil }
		if res, err := r.Exec(ctx, id, []string{"fork"}); err != nil || res.Code != 3 {
			t.Errorf("%+v, %v", res, err)
		}
	})
	for name, timeout := range map[string]time.Duration{"cut, with a time": time.Hour, "cut, without one": 0} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, s := open(t, time.Hour)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			asks := ctx
			if timeout > 0 {
				var over context.CancelFunc
				asks, over = context.WithTimeout(ctx, timeout)
				defer over()
			}
			go func() {
				<-s.begun
				cancel()
			}()
			if res, err := r.Exec(asks, id, []string{"fork"}); !errors.Is(err, context.Canceled) {
				t.Errorf("%+v, %v", res, err)
			}
		})
	}
}
