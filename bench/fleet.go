package bench

import (
	"context"
	"errors"
	"sync"

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

// startFleet starts workers that know the servers by their RPC addresses. They
// register as soon as they can.
func startFleet(n int, servers []string, version string, source func(name string) (*pki.Source, error)) (*fleet, error) {
	ctx, cancel := context.WithCancel(context.Background())
	f := &fleet{cancel: cancel}
	timeline := fake.NewTimeline(nil)
	f.loop.Go(func() { timeline.Run(ctx) })
	for i := range n {
		name := nodeName(i)
		tls, err := source(name)
		if err != nil {
			f.stop()
			return nil, err
		}
		w, err := agent.StartWorker(agent.WorkerConfig{
			Node:    worker.NodeConfig{Name: name, Addresses: []string{"127.0.0.1"}, Capacity: nodeCapacity(), Version: version},
			Runtime: "fake", Timeline: timeline, TLS: tls,
			Servers: func() []string { return servers },
		})
		if err != nil {
			f.stop()
			return nil, errors.Join(err)
		}
		f.workers = append(f.workers, w)
	}
	return f, nil
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
