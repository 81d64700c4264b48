package bench

import (
	"context"
	"errors"
	"testing"

	"github.com/berth-dev/berth/server"
)

// Played nodes are nodes of Kubernetes; Berth takes kubelets, too, so here they are its.
func TestPlayedNodes(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	r := &run{Config: merge(Config{Nodes: 3, Pods: 30, Servers: 1, DataDir: t.TempDir(), Version: "test"}, Config{Clients: 4, Workers: FakeWorkers}), report: &Report{}}
	c, err := r.startServers(ctx, server.Consensus{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := c.stop(ctx); err != nil {
			t.Error(err)
		}
	}()
	clients, err := c.clients(1)
	if err != nil {
		t.Fatal(err)
	}
	nodes, err := playNodes(ctx, clients[0], r.Nodes)
	if err != nil {
		t.Fatal(err)
	}
	defer nodes.stop()
	at := &contestant{run: r, who: "Berth", client: clients[0]}
	// Pods that run until they are told to end, and some that end by themselves.
	if err := errors.Join(at.warmUp(ctx), at.oneJob(ctx), nodes.verify(ctx), nodes.lastError()); err != nil {
		t.Fatal(err)
	}
}
