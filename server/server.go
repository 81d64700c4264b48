package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"

	"github.com/berth-dev/berth/access/lasting"
	"github.com/berth-dev/berth/api/berthv1"
	"github.com/berth-dev/berth/apiserver"
	"github.com/berth-dev/berth/apiserver/tokens"
	"github.com/berth-dev/berth/apiserver/vault"
	"github.com/berth-dev/berth/cluster"
	"github.com/berth-dev/berth/disk"
	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/guard"
	"github.com/berth-dev/berth/peers"
	"github.com/berth-dev/berth/pki"
	"github.com/berth-dev/berth/raftnode"
	"github.com/berth-dev/berth/rpc"
	"github.com/berth-dev/berth/workloads"
)

// Server is a running server.
type Server struct {
	config  Config
	log     hclog.Logger
	state   *fsm.State
	metrics *metrics
	panics  *panics
	guard   guard.Func // counts in panics
	rootCA  string

	node     *raftnode.Node
	pool     *cluster.Pool
	room     *peers.Room
	rpc      *rpc.Server
	peers    *rpc.Pool
	tunneler *rpc.Tunneler
	kubelets lasting.Open[*boundConn]
	api      *apiserver.Server

	reads *shared
	beats heartbeats
	// renewals are those that this server, while it leads, has taken.
	renewals renewals
	led      atomic.Int64             // when a leader was known last, of the clock's Elapsed
	standing atomic.Pointer[standing] // of the wall clock
	pushed   atomic.Int64             // revision up to which workers were pushed to
	said     reportedStatuses
	shares   *shares // of the workers
	samples  *samples
	// refetched bounds what workers are given again of objects that have changed.
	refetched *rate.Limiter
	accounts  *tokens.Accounts
	vault     *vault.Vault
	// welcoming holds a token for every worker that registers just now.
	welcoming chan struct{}
	digests   digestCache
	outcome   atomic.Pointer[compared] // of the last comparison that it made as the leader
	bound     stateBound

	cancel  context.CancelFunc
	loops   sync.WaitGroup
	stopped chan struct{}
	once    sync.Once

	mu     sync.Mutex
	failed error
	fatal  chan error // capacity 1
}

// dialer is a listener that also dials, as consensus wants it.
type dialer struct {
	net.Listener
	dial rpc.Dial
}

// Dial implements raftnode.Listener.
func (d dialer) Dial(addr string, timeout time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	return d.dial(ctx, addr)
}

// Start starts a server. It returns once the server listens everywhere; it
// serves as soon as there is a leader. On an error everything is closed again.
func Start(ctx context.Context, c Config) (*Server, error) {
	if c.Logger == nil {
		c.Logger = hclog.NewNullLogger()
	}
	if c.Metrics == nil {
		c.Metrics = prometheus.NewRegistry()
	}
	if c.Scheduler == nil {
		c.Scheduler = berthv1.Default()
	}
	if c.Dial == nil {
		c.Dial = rpc.DialTCP
	}
	if c.Autoscaler == (workloads.Autoscaler{}) {
		c.Autoscaler = workloads.DefaultAutoscaler()
	}
	if c.Disk == nil {
		c.Disk = disk.OS{}
	}
	if c.MaxState == 0 {
		c.MaxState = defaultMaxState(os.DirFS("/"))
	}
	if c.Authority.Key != "" {
		if _, err := pki.OpenAuthority(c.Authority); err != nil {
			return nil, fmt.Errorf("what this server is to sign certificates with: %w", err)
		}
	}
	c.Logger = c.Logger.With("server", c.Name)
	s := &Server{
		config: c, log: c.Logger.Named("server"), state: fsm.NewState(), rootCA: string(c.APICA),
		stopped: make(chan struct{}), fatal: make(chan error, 1), welcoming: make(chan struct{}, maxWelcoming), shares: newShares(), samples: newSamples(),
	}
	s.refetched = rate.NewLimiter(refetchedPerSecond, refetchedAtOnce)
	s.reads = newShared(func(ctx context.Context) error {
		return s.guard.Call("reads", errUntold, func() error { return s.readIndex(ctx) })
	})
	err := s.open()
	if err != nil {
		_ = s.closeAll(ctx) // the first error is the one that matters
		return nil, fmt.Errorf("start server %s: %w", c.Name, err)
	}
	return s, nil
}

// open brings the parts up, each on top of those before it.
func (s *Server) open() error {
	if v := s.config.MaxLogVersion; v > fsm.LogVersion {
		return fmt.Errorf("server.max_log_version: this version of Berth knows the log's rules up to version %d, and not %d", fsm.LogVersion, v)
	}
	var err error
	if s.vault, err = vault.Open(vault.Config{File: s.config.EncryptionConfig, Server: s.config.Name, Logger: s.config.Logger.Named("vault")}); err != nil {
		return fmt.Errorf("server.encryption_config: %w", err)
	}
	s.accounts = tokens.New(s, s.vault)
	if s.metrics, err = newMetrics(s.config.Metrics, s.state); err != nil {
		return err
	}
	if s.panics, err = newPanics(s.config.Metrics, s.log); err != nil {
		return err
	}
	s.guard = s.panics.try
	if err := s.stateBytes(); err != nil {
		return err
	}
	s.openRoom()
	if err := s.config.Metrics.Register(s.unsettledGauge()); err != nil {
		return fmt.Errorf("register metrics: %w", err)
	}
	if err := s.openConsensus(); err != nil {
		return err
	}
	if err := s.openRPC(); err != nil {
		return err
	}
	if err := s.openGossip(); err != nil {
		return err
	}
	if err := s.openAPI(); err != nil {
		return err
	}
	if err := s.clockGauges(); err != nil {
		return err
	}
	if err := s.doorCounters(); err != nil {
		return err
	}
	if err := s.vaultGauges(); err != nil {
		return err
	}
	run, cancel := context.WithCancel(context.Background())
	s.cancel = cancel
	serve := func(name string, serve func() error) { // nothing is served without them: the server stops in order
		s.loops.Go(func() {
			if err := s.guard.Call(name, fmt.Errorf("%s broke by a mistake of Berth's, which its log tells", name), serve); err != nil {
				s.fail(err)
			}
		})
	}
	serve("rpc", func() error { return s.rpc.Serve(s.config.RPC) })
	serve("API", func() error { return s.api.Run(run) })
	serve("pool", func() error { return s.pool.Run(run) }) // it fails where two have one name
	keep := func(name string, loop func(ctx context.Context)) {
		s.loops.Go(func() { s.guard.Keep(run, name, loop) })
	}
	keep("vault", s.vault.Run)
	keep("push", s.pushLoop)
	keep("heartbeats", s.reportLoop)
	keep("samples", s.samplesLoop)
	keep("founding", s.found)
	keep("room", func(ctx context.Context) { s.room.Run(ctx) })
	keep("clock", s.clockLoop)
	keep("leadership", s.leadershipLoop)
	keep("consensus", s.watchConsensus)
	s.startAutopilot(run)
	return nil
}

func (s *Server) openConsensus() error {
	c := &s.config
	node, err := raftnode.Open(raftnode.Config{
		ID: c.Name, DataDir: c.DataDir, Disk: c.Disk, Listener: dialer{c.Raft, c.Dial}, AdvertiseAddr: c.RaftAddr, TLS: c.TLS,
		HeartbeatTimeout: c.Consensus.HeartbeatTimeout, ElectionTimeout: c.Consensus.ElectionTimeout,
		LeaderLeaseTimeout: c.Consensus.LeaderLeaseTimeout, CommitTimeout: c.Consensus.CommitTimeout,
		SnapshotInterval: c.Consensus.SnapshotInterval, SnapshotThreshold: c.Consensus.SnapshotThreshold,
		TrailingLogs: c.Consensus.TrailingLogs, NoFsync: c.Consensus.NoFsync,
		RPCAddr: c.RPCAddr, HTTPAddr: c.HTTPAddr,
		MinServerVersion: s.minServerVersion,
		Clock:            c.Clock,
		Logger:           c.Logger, Registerer: c.Metrics,
	}, s.state)
	s.node = node
	return err
}

func (s *Server) openRPC() error {
	var err error
	s.rpc, err = rpc.NewServer(rpc.ServerConfig{
		Name: s.config.Name, Servers: handler{s}, Workers: s, Refuse: s.checkRevoked, TLS: s.config.TLS, API: s.apiAddresses, Guard: s.guard,
		Services: &rpc.ServicesSource{Load: s.loadServices, Topology: s.topologyOf}, Logger: s.config.Logger.Named("rpc"),
	})
	if err != nil {
		return err
	}
	if s.peers, err = rpc.NewPool(s.config.Name, s.config.TLS, s.config.Dial); err != nil {
		return err
	}
	s.tunneler = &rpc.Tunneler{Hub: s.rpc.Hub, Pool: s.peers, Peers: s.mayHoldWorkers}
	return nil
}

func (s *Server) openGossip() error {
	c := &s.config
	pool, err := cluster.New(cluster.Config{
		Name: c.Name, BindAddr: c.Gossip.BindAddr, BindPort: c.Gossip.BindPort, AdvertiseAddr: c.Gossip.AdvertiseAddr,
		Meta: cluster.Meta{
			Role: cluster.RoleServer, ClusterID: s.node.ClusterID(),
			RPCAddr: c.RPCAddr, HTTPAddr: c.HTTPAddr, RaftAddr: c.RaftAddr, RaftID: c.Name,
			Version: c.Version, NonVoter: c.NonVoter,
			BootstrapExpect: c.BootstrapExpect, Bootstrapped: s.node.HasExistingState(),
		},
		Transport: c.Gossip.Transport, EncryptionKey: c.Gossip.EncryptionKey, Join: c.Gossip.Join, RetryInterval: c.Gossip.RetryInterval,
		Loopback: cluster.IsLoopback(c.Gossip.BindAddr), Logger: c.Logger.Named("gossip"),
	})
	s.pool = pool
	return err
}

// watchConsensus ends the server when consensus had to stop by itself: it can
// keep nothing any more, and must not pretend to.
func (s *Server) watchConsensus(ctx context.Context) {
	select {
	case <-ctx.Done():
	case err := <-s.node.Fatal():
		s.fail(err)
	}
}

// fail records why the server can not go on; the process should stop it.
func (s *Server) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failed != nil {
		return
	}
	s.failed = err
	s.fatal <- err
}

func (s *Server) failure() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.failed
}

// Fatal tells why the server had to give up.
func (s *Server) Fatal() <-chan error { return s.fatal }

// leadershipLoop leads while this server is the leader.
func (s *Server) leadershipLoop(ctx context.Context) {
	watch := s.node.WatchLeadership(ctx)
	var term sync.WaitGroup
	resign := func() {}
	defer func() { resign(); term.Wait() }()
	for {
		select {
		case <-ctx.Done():
			return
		case l := <-watch:
			resign()
			term.Wait()
			resign = func() {}
			if !l.Leader {
				continue
			}
			leading, cancel := context.WithCancel(ctx)
			resign = cancel
			term.Go(func() { s.guard.Keep(leading, "leader", s.lead) })
		}
	}
}

// Stop ends the server: workers are asked to go elsewhere, leadership is handed
// over, what was accepted is finished, until ctx ends. The server stays a member
// of its cluster and is missed like one that failed, for most that stop start
// again.
func (s *Server) Stop(ctx context.Context) error {
	err := errors.New("the server was stopped already")
	s.once.Do(func() {
		close(s.stopped)
		err = s.closeAll(ctx)
	})
	return err
}

func (s *Server) closeAll(ctx context.Context) error {
	var errs []error
	if s.rpc != nil {
		s.rpc.Hub.Drain("the server is shutting down")
	}
	if s.node != nil && s.node.IsLeader() && len(s.node.Configuration()) > 1 {
		handover, cancel := context.WithTimeout(ctx, leaderWait)
		if err := s.node.TransferLeadership(handover, ""); err != nil {
			s.log.Debug("leadership was not handed over", "error", err)
		}
		cancel()
	}
	if s.cancel != nil {
		s.cancel()
	}
	if s.rpc != nil {
		s.rpc.Stop(ctx)
	}
	s.loops.Wait()
	s.reads.close()
	if s.pool != nil {
		errs = append(errs, s.pool.Shutdown())
	}
	if s.peers != nil {
		s.peers.Close()
	}
	if s.node != nil {
		errs = append(errs, s.node.Shutdown())
	}
	for _, l := range []net.Listener{s.config.HTTP, s.config.RPC, s.config.Raft} {
		if l != nil {
			_ = l.Close() // most are closed by who served on them
		}
	}
	return errors.Join(errs...)
}

// Name is the server's.
func (s *Server) Name() string { return s.config.Name }

// HTTPAddr is where the API is reached, host:port.
func (s *Server) HTTPAddr() string { return s.config.HTTPAddr }

// RPCAddr is where workers and other servers connect, host:port.
func (s *Server) RPCAddr() string { return s.config.RPCAddr }

// Metrics is what is shown at /metrics of the server's own part.
func (s *Server) Metrics() prometheus.Gatherer { return s.config.Metrics }

// IsLeader reports whether this server leads and is ready to.
func (s *Server) IsLeader() bool { return s.node.Leadership().Leader }

// Servers are the RPC addresses of the live servers, this one among them.
func (s *Server) Servers() []string {
	return append(s.otherServers((*peers.Peer).Answers), s.config.RPCAddr)
}

// apiAddresses are where the API of the live servers is reached, this one's first.
func (s *Server) apiAddresses() []string {
	out := []string{s.config.HTTPAddr}
	for _, p := range s.room.Peers() {
		if !p.Self && p.Answer != nil && p.Answer.HTTPAddr != "" {
			out = append(out, p.Answer.HTTPAddr)
		}
	}
	return out
}

// GossipAddr is where other members reach this one, host:port.
func (s *Server) GossipAddr() string { return s.pool.Addr() }
