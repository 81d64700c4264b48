package rpc

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
)

func TestServerCalls(t *testing.T) {
	s := startServer(t, newCluster(), "s1", nil)
	p := startPool(t, nil)
	ctx := t.Context()
	f, err := p.Forward(ctx, s.addr, []byte("x"))
	if err != nil || string(f.Results) != "did x" || f.Index != 7 {
		t.Errorf("forward: %+v, %v", f, err)
	}
	if i, err := p.ReadIndex(ctx, s.addr); err != nil || i != 42 {
		t.Errorf("read index: %d, %v", i, err)
	}
	if d, err := p.Digest(ctx, s.addr, 9); err != nil || d.Digest != "d9" {
		t.Errorf("digest: %+v, %v", d, err)
	}
	if st, err := p.Status(ctx, s.addr); err != nil || st.Raft["state"] != "Leader" {
		t.Errorf("status: %+v, %v", st, err)
	}
	if err := p.ReportStreams(ctx, s.addr, []string{"a", "b"}); err != nil || !slices.Equal(s.reports["caller"], []string{"a", "b"}) {
		t.Errorf("report: %v, %v", s.reports, err)
	}
	if h, err := p.Holds(ctx, s.addr, "a"); err != nil || h {
		t.Errorf("holds: %v, %v", h, err)
	}
	big, err := p.Forward(ctx, s.addr, make([]byte, 20<<20))
	if err != nil || len(big.Results) < 20<<20 {
		t.Errorf("20 MiB: %v", err)
	}
}

// TestErrorsSurviveTheWire: what a handler returns is what the caller finds.
func TestErrorsSurviveTheWire(t *testing.T) {
	s := startServer(t, newCluster(), "s1", nil)
	p := startPool(t, nil)
	for _, k := range wireErrors() {
		s.setForward(func(context.Context, *ForwardRequest) (*ForwardResponse, error) {
			return nil, fmt.Errorf("while testing: %w", k.err)
		})
		_, err := p.Forward(t.Context(), s.addr, nil)
		if !errors.Is(err, k.err) {
			t.Errorf("%v became %v", k.err, err)
		}
		for _, other := range wireErrors() {
			if other.err != k.err && errors.Is(err, other.err) {
				t.Errorf("%v is also %v", k.err, other.err)
			}
		}
	}
	s.setForward(func(context.Context, *ForwardRequest) (*ForwardResponse, error) {
		return nil, &NotLeaderError{Leader: "s2", Addr: "10.0.0.2:4647"}
	})
	_, err := p.Forward(t.Context(), s.addr, nil)
	var nl *NotLeaderError
	if !errors.As(err, &nl) || *nl != (NotLeaderError{"s2", "10.0.0.2:4647"}) || !errors.Is(err, ErrNotLeader) {
		t.Errorf("got %v", err)
	}
	// An error of no kind leaves open what was done before it.
	s.setForward(func(context.Context, *ForwardRequest) (*ForwardResponse, error) { return nil, errors.New("oops") })
	if _, err = p.Forward(t.Context(), s.addr, nil); !errors.Is(err, ErrUnknownOutcome) {
		t.Errorf("got %v", err)
	}
}

func TestForwardNotSent(t *testing.T) {
	addr := nobodyAt(t)
	p := startPool(t, nil)
	if _, err := p.Forward(t.Context(), addr, nil); !errors.Is(err, ErrNotSent) || errors.Is(err, ErrUnknownOutcome) {
		t.Errorf("refused connection: %v", err)
	}
	if _, err := p.Forward(t.Context(), "", nil); !errors.Is(err, ErrNotSent) {
		t.Errorf("no address: %v", err)
	}
	// More than a message may hold never leaves.
	s := startServer(t, newCluster(), "s1", nil)
	if _, err := p.Forward(t.Context(), s.addr, make([]byte, MaxMessageBytes+1)); !errors.Is(err, ErrNotSent) {
		t.Errorf("too large: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := p.Forward(ctx, s.addr, nil); !errors.Is(err, ErrNotSent) || !errors.Is(err, context.Canceled) {
		t.Errorf("canceled before: %v", err)
	}
	p.Close()
	if _, err := p.Forward(t.Context(), s.addr, nil); !errors.Is(err, ErrNotSent) {
		t.Errorf("closed pool: %v", err)
	}
}

func TestForwardUnknownOutcome(t *testing.T) {
	s := startServer(t, newCluster(), "s1", nil)
	began := make(chan struct{}, 1)
	s.setForward(func(ctx context.Context, _ *ForwardRequest) (*ForwardResponse, error) {
		began <- struct{}{}
		<-ctx.Done()
		return nil, ctx.Err()
	})
	p := startPool(t, nil)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-began
		cancel()
	}()
	if _, err := p.Forward(ctx, s.addr, nil); !errors.Is(err, ErrUnknownOutcome) || !errors.Is(err, context.Canceled) {
		t.Errorf("canceled after: %v", err)
	}
	go func() {
		<-began
		s.servers.Stop() // as if the server died
	}()
	if _, err := p.Forward(t.Context(), s.addr, nil); !errors.Is(err, ErrUnknownOutcome) {
		t.Errorf("server died: %v", err)
	}
	if _, err := p.ReadIndex(t.Context(), s.addr); errors.Is(err, ErrUnknownOutcome) || err == nil {
		t.Errorf("a read has no outcome to be unknown: %v", err)
	}
}

func TestOneHopOnly(t *testing.T) {
	s := startServer(t, newCluster(), "s1", nil)
	p := startPool(t, nil)
	for _, hops := range []int{0, 2} {
		_, err := p.call(t.Context(), s.addr, methodForward, &ForwardRequest{Hops: hops}, new(ForwardResponse))
		if !errors.Is(err, ErrForwarded) {
			t.Errorf("%d hops: %v", hops, err)
		}
	}
}

func TestRetain(t *testing.T) {
	c := newCluster()
	a, b := startServer(t, c, "a", nil), startServer(t, c, "b", nil)
	p := startPool(t, nil)
	for range 2 {
		for _, s := range []*testServer{a, b} {
			if _, err := p.ReadIndex(t.Context(), s.addr); err != nil {
				t.Fatal(err)
			}
		}
		p.Retain([]string{a.addr})
		if len(p.conns) != 1 {
			t.Errorf("%d connections are kept", len(p.conns))
		}
	}
}
