package agent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/agent/logind"
	"github.com/berth-dev/berth/agent/manifests"
	"github.com/berth-dev/berth/guard"
	"github.com/berth-dev/berth/rpc"
	"github.com/berth-dev/berth/worker"
	"github.com/berth-dev/berth/worker/devices"
	"github.com/berth-dev/berth/worker/runtime"
)

// workerParts are what a worker is made of, opened, with nothing running in it yet.
type workerParts struct {
	config       *WorkerConfig
	link         *uplink
	forward      *forwarder // nil: pods reach no API through the worker
	runtime      runtime.Runtime
	closeRuntime func()
	plugins      *devices.Registry // nil: no device plugin registers
}

// keep runs a loop of the worker until ctx ends, again where it panics.
func (p *workerParts) keep(ctx context.Context, w *Worker, name string, loop func(ctx context.Context)) {
	guarded := guard.Telling(func(what string, broke *guard.Panic) {
		p.config.Logger.Error("something panicked; this is a mistake of Berth's. The rest goes on, and it is tried again", "loop", what, "panic", broke)
	})
	w.loops.Go(func() { guarded.Keep(ctx, name, loop) })
}

// openParts opens everything, or, with an error, leaves nothing open.
func openParts(c *WorkerConfig) (p *workerParts, err error) {
	if err := sweepWorker(c.DataDir); err != nil {
		return nil, fmt.Errorf("remove what was left unfinished: %w", err)
	}
	p = &workerParts{config: c, link: newUplink(c.Logger), closeRuntime: func() {}}
	if err := chooseRuntime(c); err != nil {
		return nil, err
	}
	if err := openServices(c, p.link); err != nil {
		return nil, err
	}
	p.forward = startForwarder(c, p.link.servers)
	containers, closeRuntime, err := openRuntime(c, p.link, p.forward)
	if err == nil {
		p.runtime, p.closeRuntime = containers, closeRuntime
		err = p.join()
	}
	if err != nil {
		p.close()
		return nil, err
	}
	return p, nil
}

// close ends the parts, the last first.
func (p *workerParts) close() {
	p.closeRuntime()
	p.forward.close()
	p.link.services.close()
}

// join makes the node's agent and its way to the servers over the parts.
func (p *workerParts) join() error {
	c, link := p.config, p.link
	node, err := newNode(c, p.runtime)
	if err != nil {
		return err
	}
	if p.plugins, err = openDevices(c, link); err != nil {
		return err
	}
	o := workerOptions(c, node, link, p.runtime, p.forward)
	if p.plugins != nil {
		o.Devices = p.plugins
	}
	if o.Pulls, err = openPullRecords(c, p.runtime); err != nil {
		return err
	}
	if link.agent, err = worker.New(o); err != nil {
		return err
	}
	link.client, err = rpc.NewWorkerClient(rpc.WorkerConfig{
		Node: c.Node.Name, Agent: link, Servers: c.Servers, TLS: c.TLS, Dial: c.Dial, Logger: c.Logger,
	})
	if err != nil {
		return err
	}
	link.node, err = node.Marshal()
	return err
}

// run has the parts work until the worker is stopped. The parts are its own from now on.
func (p *workerParts) run() *Worker {
	ctx, cancel := context.WithCancel(context.Background())
	w := &Worker{name: p.config.Node.Name, cancel: cancel, close: p.close, fatal: make(chan error, 1), agent: p.link.agent}
	p.link.nodeAPI = newNodeAPI(p.link.agent, p.runSampler(ctx, w), func() (worker.Disk, *worker.Disk, error) { return p.disks(ctx) })
	p.keep(ctx, w, "servers", p.link.client.Run)
	p.runShutdown(ctx, w)
	p.runSources(ctx, w)
	if p.forward != nil {
		w.loops.Go(func() { p.forward.run(ctx) })
	}
	if p.link.services != nil {
		w.loops.Go(func() { p.link.services.node.Run(ctx) })
	}
	w.loops.Go(func() {
		// Without an agent nothing runs here, and the servers must not
		// believe that it did: the stream ends as well.
		defer cancel()
		if err := guard.Caught(func() error { return p.link.agent.Run(ctx) }); err != nil && !errors.Is(err, context.Canceled) {
			p.config.Logger.Error("the node agent stopped", "error", err)
			w.fatal <- fmt.Errorf("worker %s: %w", p.config.Node.Name, err)
		}
	})
	return w
}

// runSampler measures what the pods use, where the runtime can tell; else there is no sampler.
func (p *workerParts) runSampler(ctx context.Context, w *Worker) *worker.Sampler {
	meter, ok := p.runtime.(runtime.Meter)
	if !ok {
		return nil
	}
	var part worker.Part
	if machine, err := readMachine(p.config.DataDir); err == nil { // it could be read when the node was described
		node := maps.Clone(machine.Capacity)
		maps.Copy(node, p.config.Node.Capacity)
		part = worker.PartOf(node, machine.Capacity)
	}
	sampler := &worker.Sampler{
		Part: part, Meter: meter, Machine: worker.ReadUse, Interval: p.config.SampleInterval, Take: p.link.sample, Clock: clock.RealClock{}, Logger: p.config.Logger,
	}
	p.keep(ctx, w, "samples", sampler.Run)
	return sampler
}

// disks are the node's disk, and that of the images where it is another one or the runtime says so.
func (p *workerParts) disks(ctx context.Context) (worker.Disk, *worker.Disk, error) {
	disk, err := worker.ReadDisk(dataDirOr(p.config.DataDir))
	if err != nil {
		return disk, nil, err
	}
	dir, err := imageDir(ctx, p.runtime)
	if err != nil || dir == "" {
		return disk, nil, nil // a runtime that is away does not say where its images are
	}
	images, err := worker.ReadDisk(dir)
	return disk, &images, err
}

// runShutdown holds up the end of the machine until the pods have ended, for as long as they may take.
func (p *workerParts) runShutdown(ctx context.Context, w *Worker) {
	c, link := p.config, p.link
	if c.ShutdownGrace <= 0 {
		return
	}
	p.keep(ctx, w, "logind", func(ctx context.Context) {
		logind.Run(ctx, logind.Options{
			Grace: c.ShutdownGrace, Logger: c.Logger, Back: link.agent.StayUp,
			Down: func(ctx context.Context, within time.Duration) { link.agent.ShutDown(ctx, within, link.client.Told) },
		})
	})
}

// runSources follows what the machine itself brings: device plugins, and the folder of static pods.
func (p *workerParts) runSources(ctx context.Context, w *Worker) {
	c, link := p.config, p.link
	if p.plugins != nil {
		w.loops.Go(func() {
			if err := guard.Caught(func() error { return p.plugins.Run(ctx) }); err != nil {
				c.Logger.Error("device plugins cannot register", "error", err)
			}
		})
	}
	if c.StaticPods == "" {
		link.agent.SetStatic(worker.Manifests{})
		return
	}
	folder := &manifests.Folder{Dir: c.StaticPods, Node: c.Node.Name, Logger: c.Logger, Tell: link.badStaticPod(c.Node.Name)}
	p.keep(ctx, w, "static pods", func(ctx context.Context) { folder.Run(ctx, link.agent.SetStatic) })
}
