package apiserver

import (
	"context"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/fsm"
)

// held is a double whose proposals wait to be let through.
type held struct {
	*double
	arrived chan struct{}
	release chan struct{}
}

func (h *held) Propose(ctx context.Context, ps ...fsm.Proposal) ([]fsm.Result, error) {
	h.arrived <- struct{}{}
	<-h.release
	return h.double.Propose(ctx, ps...)
}

// TestShutdown: watches end at once, and what is in flight is carried out and
// answered.
func TestShutdown(t *testing.T) {
	h := &held{newDouble(t), make(chan struct{}), make(chan struct{})}
	s := start(t, h.double, func(c *Config) { c.Backend = h })
	client := s.client(t).CoreV1()
	ctx := context.Background()
	w, err := client.Pods("default").Watch(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	created := make(chan error, 1)
	go func() {
		_, err := client.Pods("default").Create(ctx, testPod("a"), metav1.CreateOptions{})
		created <- err
	}()
	<-h.arrived
	stopped := make(chan struct{})
	go func() { defer close(stopped); s.stop() }()
	for range w.ResultChan() { // until it is closed
	}
	select {
	case <-stopped:
		t.Fatal("the server stopped with a request in flight")
	default:
	}
	close(h.release)
	if err := <-created; err != nil {
		t.Fatal(err)
	}
	<-stopped
}
