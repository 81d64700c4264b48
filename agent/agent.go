package agent

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/berth-dev/berth/clock"
	"github.com/berth-dev/berth/cluster"
	"github.com/berth-dev/berth/server"
	"github.com/berth-dev/berth/worker"
)

// Agent is a running process: a server, a worker, or both.
type Agent struct {
	config Config
	server *server.Server
	worker *Worker
	pool   *cluster.Pool // of a process without a server
	cancel context.CancelFunc
	loops  sync.WaitGroup
	fatal  chan error // capacity 1
	once   sync.Once  // the first reason counts
	merge  sync.Once
	ended  <-chan struct{}
}

// Start starts what the configuration says. On an error nothing is left
// running.
func Start(ctx context.Context, c Config) (*Agent, error) {
	if c.Logger == nil {
		c.Logger = hclog.NewNullLogger()
	}
	if c.Server == nil && c.Worker == nil {
		return nil, errors.New("this agent is neither a server nor a worker")
	}
	if c.AdvertiseAddr == "" {
		c.AdvertiseAddr = c.BindAddr
	}
	if err := c.secure(ctx); err != nil {
		return nil, err
	}
	run, cancel := context.WithCancel(context.Background())
	a := &Agent{config: c, cancel: cancel, ended: run.Done(), fatal: make(chan error, 1)}
	err := a.start(ctx, run)
	if err != nil {
		return nil, errors.Join(err, a.Stop(ctx))
	}
	return a, nil
}

func (a *Agent) start(ctx, run context.Context) error {
	if a.config.Server != nil {
		if err := a.startServer(ctx); err != nil {
			return err
		}
	}
	if a.config.joined {
		a.loops.Go(func() { a.config.keepCertificate(run) })
	}
	if a.config.Worker != nil {
		return a.startWorker(run)
	}
	return nil
}

// ServerDir is where the server of an agent keeps its state.
func ServerDir(dataDir string) string { return filepath.Join(dataDir, "server") }

func (a *Agent) startServer(ctx context.Context) error {
	c, p := &a.config, a.config.Server
	sc := server.Config{
		Name: c.Name, Version: c.Version, DataDir: ServerDir(c.DataDir),
		Gossip: a.gossip(), TLS: c.TLS, APICA: c.CA, Authority: c.Authority, Autoscaler: p.Autoscaler, ControllersOff: p.ControllersOff,
		Users: p.Users, Audit: p.Audit, Admission: p.Admission, EncryptionConfig: p.EncryptionConfig, MaxRequests: p.MaxRequests, SignedKubelets: p.SignedKubelets,
		BootstrapExpect: p.BootstrapExpect, NonVoter: p.NonVoter, MaxClockOffset: p.MaxClockOffset, MaxLogVersion: p.MaxLogVersion, MaxState: p.MaxState,
		Consensus: p.Consensus, Autopilot: p.Autopilot, Scheduler: p.Scheduler, Services: p.Services,
		Clock: clock.System(), Logger: c.Logger,
	}
	var err error
	for _, l := range []struct {
		what     string
		port     int
		listener *net.Listener
		addr     *string
	}{
		{"the API", c.Ports.HTTP, &sc.HTTP, &sc.HTTPAddr},
		{"RPC", c.Ports.RPC, &sc.RPC, &sc.RPCAddr},
		{"consensus", c.Ports.Raft, &sc.Raft, &sc.RaftAddr},
	} {
		if *l.listener, *l.addr, err = a.listen(l.what, l.port); err != nil {
			for _, open := range []net.Listener{sc.HTTP, sc.RPC, sc.Raft} {
				if open != nil {
					_ = open.Close() // nothing was served on it
				}
			}
			return err
		}
	}
	a.server, err = server.Start(ctx, sc)
	return err
}

// watch takes over why a part could not go on.
func (a *Agent) watch(fatal <-chan error) {
	a.loops.Go(func() {
		select {
		case err := <-fatal:
			a.fail(err)
		case <-a.ended:
		}
	})
}

// fail records why the agent can not go on.
func (a *Agent) fail(err error) { a.once.Do(func() { a.fatal <- err }) }

func (a *Agent) gossip() server.Gossip {
	c := &a.config
	return server.Gossip{
		BindAddr: c.BindAddr, BindPort: c.Ports.Gossip, AdvertiseAddr: c.AdvertiseAddr,
		EncryptionKey: c.EncryptionKey, Join: c.Join, RetryInterval: c.RetryInterval,
	}
}

// listen opens a port and tells how others dial it.
func (a *Agent) listen(what string, port int) (net.Listener, string, error) {
	l, err := net.Listen("tcp", net.JoinHostPort(a.config.BindAddr, strconv.Itoa(port)))
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, "", fmt.Errorf("port %d for %s is in use on %s by another process: stop it, or choose another port", port, what, a.config.BindAddr)
	}
	if err != nil {
		return nil, "", fmt.Errorf("listen for %s: %w", what, err)
	}
	_, actual, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		return nil, "", errors.Join(err, l.Close())
	}
	return l, net.JoinHostPort(a.config.AdvertiseAddr, actual), nil
}

// startWorker starts the worker. One that shares its process with a server
// knows the servers by that one's gossip; another joins the gossip itself.
func (a *Agent) startWorker(run context.Context) error {
	c, p := &a.config, a.config.Worker
	servers := func() []string { return a.server.Servers() }
	if a.server == nil {
		if err := a.joinGossip(run); err != nil {
			return err
		}
		servers = a.serversInGossip
	}
	address := p.Address
	if address == "" {
		address = addressOf(c.AdvertiseAddr)
	}
	var err error
	a.worker, err = StartWorker(WorkerConfig{
		Node: worker.NodeConfig{
			Name: c.Name, Addresses: []string{address}, Labels: p.Labels, Taints: p.Taints,
			Capacity: p.Capacity, Reserved: p.Reserved, Version: c.Version,
		},
		DataDir: filepath.Join(c.DataDir, "worker"), Runtime: p.Runtime, CRI: p.CRI, Services: p.Services, Images: p.Images, Timeline: p.Timeline, Servers: servers, TLS: c.TLS,
		LogBytes: p.LogBytes, LogFiles: p.LogFiles, PodPIDs: p.PodPIDs, SampleInterval: p.SampleInterval, Streams: p.Streams, Eviction: p.Eviction, StaticPods: p.StaticPods, DevicePlugins: p.DevicePlugins, ShutdownGrace: p.ShutdownGrace,
		MaxRestartBackoff: p.MaxRestartBackoff, Logger: c.Logger,
	})
	if err != nil {
		return err
	}
	a.watch(a.worker.Fatal())
	if p.MetricsAddress != "" {
		return a.serveMetrics(run, p.MetricsAddress)
	}
	return nil
}

// addressOf is the IP address of a host, or the host itself.
func addressOf(host string) string {
	if ips, err := net.LookupIP(host); err == nil && len(ips) > 0 {
		return ips[0].String()
	}
	return host
}

func (a *Agent) joinGossip(run context.Context) error {
	c := &a.config
	pool, err := cluster.New(cluster.Config{
		Name: c.Name, BindAddr: c.BindAddr, BindPort: c.Ports.Gossip, AdvertiseAddr: c.AdvertiseAddr,
		Meta:          cluster.Meta{Role: cluster.RoleWorker, Version: c.Version},
		EncryptionKey: c.EncryptionKey, Join: c.Join, RetryInterval: c.RetryInterval,
		Loopback: cluster.IsLoopback(c.BindAddr), Logger: c.Logger.Named("gossip"),
	})
	if err != nil {
		return err
	}
	a.pool = pool
	a.loops.Go(func() {
		if err := pool.Run(run); err != nil {
			a.fail(err) // two of one name
		}
	})
	return nil
}

func (a *Agent) serversInGossip() []string {
	var out []string
	for _, m := range a.pool.Servers() {
		out = append(out, m.RPCAddr)
	}
	return out
}

// Server is the process's server, nil if it has none.
func (a *Agent) Server() *server.Server { return a.server }

// GossipAddr is where other members reach this one.
func (a *Agent) GossipAddr() string {
	if a.server != nil {
		return a.server.GossipAddr()
	}
	return a.pool.Addr()
}

// Fatal tells why the agent can not go on. It takes over what the server's own
// Fatal tells.
func (a *Agent) Fatal() <-chan error {
	if a.server != nil {
		a.merge.Do(func() { a.watch(a.server.Fatal()) })
	}
	return a.fatal
}

// leaveTimeout bounds how long a worker that stops waits for its goodbye to be heard.
const leaveTimeout = 2 * time.Second

// Stop stops the process's parts. Pods go on running. A worker leaves gossip: nobody
// takes it for one that failed, nor tries to reach it. A server does not: it stays a
// member of its cluster, and is missed.
//
// What does not end by itself after the context, a disk that hangs in it, is left behind: the process ends all the same.
func (a *Agent) Stop(ctx context.Context) error {
	ended := make(chan error, 1)
	go func() { ended <- a.stop(ctx) }()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	late := time.NewTimer(overtime)
	defer late.Stop()
	select {
	case err := <-ended:
		return err
	case <-late.C:
		return fmt.Errorf("a part of this agent does not end, and is left behind: %w", context.Cause(ctx))
	}
}

// overtime is how long the rest may take of what waited for the end of the time to stop in.
const overtime = 10 * time.Second

func (a *Agent) stop(ctx context.Context) error {
	var errs []error
	if a.worker != nil {
		a.worker.Stop()
	}
	a.cancel()
	a.loops.Wait()
	if a.pool != nil {
		leaving, cancel := context.WithTimeout(ctx, leaveTimeout)
		if err := a.pool.Leave(leaving); err != nil {
			a.config.Logger.Warn("the others may take this worker for one that failed", "error", err)
		}
		cancel()
		errs = append(errs, a.pool.Shutdown())
	}
	if a.server != nil {
		errs = append(errs, a.server.Stop(ctx))
	}
	return errors.Join(errs...)
}
