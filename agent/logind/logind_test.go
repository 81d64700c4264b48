package logind

import (
	"context"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/berth-dev/berth/agent/logind/logindtest"
)

func TestTheMachineWaits(t *testing.T) {
	s := logindtest.Start(t, 3*time.Second)
	type call struct {
		within time.Duration
		back   bool
	}
	calls := make(chan call)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		Run(ctx, Options{
			Address: s.Address, Grace: time.Minute, Logger: hclog.NewNullLogger(),
			Down: func(_ context.Context, within time.Duration) { calls <- call{within: within} },
			Back: func() { calls <- call{back: true} },
		})
	}()
	defer func() { cancel(); <-done }()
	s.Await(1, 0)
	s.Prepare(true)
	if c := <-calls; c.back || c.within != 3*time.Second {
		t.Errorf("%+v: logind waits for three seconds", c)
	}
	s.Await(1, 1)
	s.Prepare(false)
	if c := <-calls; !c.back {
		t.Errorf("%+v", c)
	}
	s.Await(2, 1)
	cancel()
	s.Await(2, 2)
}
