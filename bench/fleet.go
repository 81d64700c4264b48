package bench

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/agent"
	"github.com/berth-dev/berth/pki"
	"github.com/berth-dev/berth/worker"
	"github.com/berth-dev/berth/worker/runtime/fake"
)

// fleet is many workers in this process, whose containers only pretend.
type fleet struct {
	workers []*agent.Worker
	cancel  context.CancelFunc
	loop    sync.WaitGroup
}

// herd is how many workers may be on their way to their servers. Thousands of
// handshakes at once would be most of what the machine does for a minute.
const herd = 64

// fleetConfig says what a fleet is made of.
type fleetConfig struct {
	workers int
	servers []string // RPC addresses
	version string
	source  func(name string) (*pki.Source, error)
	// registered is how many nodes the cluster knows.
	registered func(ctx context.Context) (int, error)
}

// startFleet starts workers, and waits until they are registered.
func startFleet(ctx context.Context, c fleetConfig) (_ *fleet, err error) {
	run, cancel := context.WithCancel(context.Background())
	f := &fleet{cancel: cancel}
	defer func() {
		if err != nil {
			f.stop()
		}
	}()
	timeline := fake.NewTimeline(nil)
	f.loop.Go(func() { timeline.Run(run) })
	for i := range c.workers {
		if i%herd == 0 {
			if err := c.await(ctx, i); err != nil {
				return nil, err
			}
		}
		name := nodeName(i)
		tls, err := c.source(name)
		if err != nil {
			return nil, err
		}
		w, err := agent.StartWorker(agent.WorkerConfig{
			Node: worker.NodeConfig{
				Name: name, Addresses: []string{"127.0.0.1"}, Capacity: nodeCapacity(), Version: c.version,
				Labels: map[string]string{corev1.LabelTopologyZone: zoneName(i)},
			},
			Runtime: "fake", Timeline: timeline, TLS: tls,
			Servers: func() []string { return c.servers },
		})
		if err != nil {
			return nil, err
		}
		f.workers = append(f.workers, w)
	}
	return f, c.await(ctx, c.workers)
}

// await waits until so many workers are registered.
func (c *fleetConfig) await(ctx context.Context, workers int) error {
	seen, moved := -1, time.Now()
	for {
		n, err := c.registered(ctx)
		switch {
		case err == nil && n >= workers:
			return nil
		case err == nil && n != seen:
			seen, moved = n, time.Now()
		case time.Since(moved) > stallTimeout:
			return errors.Join(fmt.Errorf("of %d workers only %d have registered", workers, seen), err)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(poll):
		}
	}
}

func (f *fleet) stop() {
	var stopping sync.WaitGroup
	for _, w := range f.workers {
		stopping.Go(w.Stop)
	}
	stopping.Wait()
	f.cancel()
	f.loop.Wait()
}
