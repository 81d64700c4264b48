package worker

import (
	"context"
	"errors"
	"io"
	"net"
	"testing"
)

// What one end says the other hears, until one of them closes.
func TestSplice(t *testing.T) {
	pair := func() (net.Conn, net.Conn) { return net.Pipe() }
	client, a := pair()
	b, server := pair()
	done := make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		defer close(done)
		splice(ctx, a, b)
	}()
	for _, ends := range [][2]net.Conn{{client, server}, {server, client}} {
		go func() { _, _ = ends[0].Write([]byte("said")) }()
		got := make([]byte, 4)
		if _, err := io.ReadFull(ends[1], got); err != nil || string(got) != "said" {
			t.Fatalf("%q, %v", got, err)
		}
	}
	_ = server.Close()
	<-done
	if _, err := client.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("the other end is open: %v", err)
	}
	c, _ := pair()
	d, _ := pair()
	cancel()
	splice(ctx, c, d) // ends with its context
}

// A pod and a node have so many connections and no more, and streams are counted on their own.
func TestDialsAreBounded(t *testing.T) {
	var s streams
	for range maxPodDials {
		if err := s.enterUpTo("a", maxDials, maxPodDials); err != nil {
			t.Fatal(err)
		}
	}
	var refused *StreamError
	if err := s.enterUpTo("a", maxDials, maxPodDials); !errors.As(err, &refused) || refused.Code != 429 {
		t.Errorf("%v", err)
	}
	for range maxDials - maxPodDials {
		if err := s.enterUpTo("b", maxDials, maxPodDials); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.enterUpTo("c", maxDials, maxPodDials); !errors.As(err, &refused) || refused.Code != 429 {
		t.Errorf("%v", err)
	}
	s.leave("a")
	if err := s.enterUpTo("c", maxDials, maxPodDials); err != nil {
		t.Error(err)
	}
}
