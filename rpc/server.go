package rpc

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"

	"github.com/berth-dev/berth/guard"
	"github.com/berth-dev/berth/handshake"
	"github.com/berth-dev/berth/pki"
)

// DefaultHeartbeat is how often a worker is heard of if nothing else is said.
const DefaultHeartbeat = 5 * time.Second

// ServerConfig says what a Server needs.
type ServerConfig struct {
	// Name is this server's.
	Name    string
	Servers ServerHandler
	Workers WorkerHandler
	// TLS is required: every caller shows who it is.
	TLS *pki.Source
	// Refuse says why a caller is not heard whose certificate is good; nil: all are.
	Refuse func(id *pki.Identity) error
	// Heartbeat is asked of the workers; 0 means DefaultHeartbeat. A stream
	// that is silent for four of them ends.
	Heartbeat time.Duration
	// API are the addresses of the servers' API as of now; nil: workers learn none.
	API func() []string
	// Services is what workers that carry services are sent; nil: they get none.
	Services *ServicesSource
	// Guard calls f and says whether it came to its end, and not to a panic, which it counts; nil: a panic in a call ends the
	// process.
	Guard  guard.Func
	Logger hclog.Logger

	now func() time.Time // the wall clock; nil: the machine's
}

// Server answers servers and workers on one listener.
type Server struct {
	// Hub knows the workers connected here.
	Hub *Hub
	// Gate counts the handshakes under way.
	Gate handshake.Gate

	config ServerConfig
	log    hclog.Logger
	tls    *tls.Config
	// servers answers those whose certificate is a server's, workers all others.
	servers, workers *grpc.Server
	callers          *callers
	ends             endings // of connections

	ctx    context.Context // ends with Stop
	cancel context.CancelFunc
}

// peerLimits bound what the peers of one kind can make this server hold.
type peerLimits struct {
	// messageBytes is the largest message. It is refused when its length is read,
	// before its bytes are.
	messageBytes int
	// elements bounds what a message of that size becomes when it is decoded.
	elements uint64
	// streams is how many calls a connection has at a time, connections how many
	// connections an identity.
	streams     uint32
	connections int
}

// A worker's own messages are small, one batch of statuses at most; four
// connections are the one in use and some that died unnoticed.
func workerLimits() peerLimits {
	return peerLimits{messageBytes: MaxWorkerMessageBytes, elements: maxWorkerElements, streams: maxTunnels + 32, connections: 4}
}

func serverLimits() peerLimits {
	return peerLimits{messageBytes: MaxMessageBytes, elements: maxElements, streams: 4096, connections: 32}
}

// NewServer checks the certificates; it opens nothing.
func NewServer(c ServerConfig) (*Server, error) {
	if c.Heartbeat <= 0 {
		c.Heartbeat = DefaultHeartbeat
	}
	c.Guard = c.Guard.Or()
	if c.Logger == nil {
		c.Logger = hclog.NewNullLogger()
	}
	if c.now == nil {
		c.now = time.Now
	}
	if c.TLS == nil {
		return nil, errNoCertificate
	}
	s := &Server{ends: endings{now: c.now}, Hub: newHub(c.Logger, c.Heartbeat, c.Services), config: c, log: c.Logger, callers: &callers{refuse: c.Refuse}}
	var err error
	if s.tls, err = serverConfig(c.TLS); err != nil {
		return nil, fmt.Errorf("rpc with TLS: %w", err)
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.servers, s.workers = s.newGRPC(serverLimits()), s.newGRPC(workerLimits())
	return s, nil
}

// errNoCertificate: there is no rpc that accepts everybody.
var errNoCertificate = errors.New("rpc needs a certificate of the cluster's CA")

// newGRPC makes the server behind one door. Both have all services: what a peer
// may call is the table's to say.
func (s *Server) newGRPC(l peerLimits) *grpc.Server {
	g := grpc.NewServer(
		grpc.Creds(shaken{credentials.NewTLS(nil)}),
		grpc.InTapHandle(s.authorize),
		grpc.ForceServerCodecV2(codec{l.elements}),
		grpc.MaxRecvMsgSize(l.messageBytes),
		grpc.MaxSendMsgSize(MaxMessageBytes),
		grpc.MaxHeaderListSize(maxHeaderBytes),
		grpc.UnaryInterceptor(s.answer),
		grpc.StreamInterceptor(s.stream),
		// 10,000 workers have 10,000 connections: idle ones keep no big buffers.
		grpc.ReadBufferSize(8<<10),
		grpc.SharedWriteBuffer(true),
		grpc.MaxConcurrentStreams(l.streams),
		grpc.WaitForHandlers(true),
		grpc.ConnectionTimeout(handshake.Timeout),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: 20 * time.Second, Timeout: 10 * time.Second}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second, PermitWithoutStream: true}),
	)
	g.RegisterService(s.serverDesc(), s)
	g.RegisterService(s.workerDesc(), s)
	return g
}

// maxHeaderBytes bounds a call's header, which is read before anything is asked.
const maxHeaderBytes = 16 << 10

// Serve answers on lis until Stop, and closes it.
func (s *Server) Serve(lis net.Listener) error {
	forServers, forWorkers := newDoor(lis.Addr()), newDoor(lis.Addr())
	p := &porter{config: s.tls, gate: &s.Gate, ends: &s.ends, open: map[string]int{}, door: func(id *pki.Identity) (*door, int) {
		if id.Kind == pki.Server {
			return forServers, serverLimits().connections
		}
		return forWorkers, workerLimits().connections
	}}
	var serving sync.WaitGroup
	failed := make([]error, 3)
	for i, serve := range []func() error{
		func() error { return p.serve(s.ctx, lis) },
		func() error { return s.servers.Serve(forServers) },
		func() error { return s.workers.Serve(forWorkers) },
	} {
		serving.Go(func() {
			failed[i] = guard.Caught(serve)
			if broke := new(guard.Panic); errors.As(failed[i], &broke) { // the others serve nobody without it
				s.cancel()
				s.servers.Stop()
				s.workers.Stop()
			}
		})
	}
	serving.Wait()
	for _, err := range failed {
		if err != nil && !errors.Is(err, grpc.ErrServerStopped) {
			return fmt.Errorf("serving rpc on %s: %w", lis.Addr(), err)
		}
	}
	return nil
}

// Stop asks the workers to go elsewhere, lets the calls under way end until ctx
// does, and closes every connection.
func (s *Server) Stop(ctx context.Context) {
	s.Hub.Drain("the server is shutting down")
	s.cancel() // nobody new
	done := make(chan struct{})
	go func() {
		defer close(done)
		var ending sync.WaitGroup
		ending.Go(s.servers.GracefulStop)
		ending.Go(s.workers.GracefulStop)
		ending.Wait()
	}()
	select {
	case <-done:
	case <-ctx.Done():
		s.servers.Stop()
		s.workers.Stop()
		<-done
	}
}

func (s *Server) forward(ctx context.Context, r *ForwardRequest) (*ForwardResponse, error) {
	if r.Hops != 1 {
		return nil, ErrForwarded
	}
	return s.config.Servers.Forward(ctx, r)
}

func (s *Server) holds(_ context.Context, r *HoldsRequest) (*HoldsResponse, error) {
	return &HoldsResponse{Holds: s.Hub.Holds(r.Node)}, nil
}

// serverTunnel joins another server's stream with that of a worker held here.
func (s *Server) serverTunnel(st grpc.ServerStream) error {
	var first Frame
	if err := st.RecvMsg(&first); err != nil {
		return err
	}
	r := first.Request
	if r == nil {
		return fmt.Errorf("%w: a tunnel begins with a request", ErrInvalid)
	}
	wt, err := s.Hub.openStream(st.Context(), r.Node, r.Kind, r.Body)
	if err != nil {
		return err
	}
	defer wt.release()
	if err := st.SendMsg(&Frame{Accepted: true}); err != nil {
		return err
	}
	return proxyFrames(st, wt.frames)
}

// workerTunnel is opened by a worker that was asked for it.
func (s *Server) workerTunnel(st grpc.ServerStream) error {
	var first Frame
	if err := st.RecvMsg(&first); err != nil {
		return err
	}
	a := first.Accept
	if a == nil {
		return fmt.Errorf("%w: a worker's tunnel begins with its ID", ErrInvalid)
	}
	if err := mayBeNode(st.Context(), a.Node); err != nil {
		return err
	}
	ctx, leave, err := s.callers.enter(st.Context(), a.Node)
	if err != nil {
		return err
	}
	defer leave()
	return s.Hub.acceptTunnel(ctx, a, st)
}

// connect serves one worker's stream until it ends.
func (s *Server) connect(st grpc.ServerStream) error {
	ctx, cancel := context.WithCancelCause(st.Context())
	defer cancel(nil)
	heard := newHeard()
	in := receiveWorker(ctx, s.config.Guard, cancel, st, heard)
	hello, err := s.awaitHello(ctx, in.messages)
	if err != nil {
		return err
	}
	ctx, leave, err := s.callers.enter(ctx, hello.Name)
	if err != nil {
		return err
	}
	defer leave()
	if err := s.config.Workers.WorkerHello(ctx, hello); err != nil {
		return fmt.Errorf("registering node %s: %w", hello.Name, err)
	}
	ses, err := s.Hub.add(hello, heard, cancel)
	if err != nil {
		return err
	}
	in.goOn()
	welcome := &Welcome{Server: s.config.Name, HeartbeatMillis: s.config.Heartbeat.Milliseconds()}
	if s.config.API != nil {
		welcome.API = s.config.API()
	}
	err = st.SendMsg(&ServerMessage{Welcome: welcome})
	if err == nil {
		w := &workerStream{server: s, session: ses, st: st, in: in, silence: s.silence(), acked: make(chan Ack, 1), told: hello.Told}
		if hello.Services && s.Hub.services != nil {
			w.services = &servicesPlace{at: hello.ServicesRevision, said: hello.ServicesRevision}
		}
		err = w.serve(ctx)
	}
	if errors.Is(err, io.EOF) {
		err = nil
	}
	if s.Hub.remove(ses) {
		s.config.Workers.WorkerGone(ses.node, err)
	}
	return err
}

func (s *Server) silence() time.Duration { return 4 * s.config.Heartbeat }

// incoming is what a worker sends on its stream.
type incoming struct {
	messages chan *WorkerMessage
	welcome  chan struct{} // closed when more than the first message is read
	heard    *heard
	batch    atomic.Bool // a batch is among the messages that nobody has taken yet
}

// goOn has more read than the hello. Before that nobody knows whether the worker may have a stream, and it holds no more of this server.
func (in *incoming) goOn() {
	in.heard.note()
	close(in.welcome)
}

// errEarlyBatch: a worker has one batch unacknowledged at most, so no more of them wait here.
var errEarlyBatch = fmt.Errorf("%w: the worker sends a batch before the last one is acknowledged", ErrInvalid)

// receiveWorker reads until the stream ends, which the return of its handler
// brings about. The channel's room lets heartbeats be heard while a slow worker
// holds up a send.
func receiveWorker(ctx context.Context, g guard.Func, cancel context.CancelCauseFunc, st grpc.ServerStream, heard *heard) *incoming {
	in := &incoming{messages: make(chan *WorkerMessage, 16), welcome: make(chan struct{}), heard: heard}
	receive := func() error {
		for {
			m := new(WorkerMessage)
			if err := st.RecvMsg(m); err != nil {
				if !errors.Is(err, io.EOF) {
					err, _ = fromStatus(err)
				}
				return err
			}
			heard.note()
			if m.Status != nil && in.batch.Swap(true) {
				return errEarlyBatch
			}
			select {
			case in.messages <- m:
			case <-ctx.Done():
				return context.Cause(ctx)
			}
			select {
			case <-in.welcome:
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
	}
	go func() { cancel(g.Call("worker's messages", errBroke, receive)) }()
	return in
}

func (s *Server) awaitHello(ctx context.Context, in <-chan *WorkerMessage) (*Hello, error) {
	timer := time.NewTimer(s.silence())
	defer timer.Stop()
	select {
	case m := <-in:
		if m.Hello == nil || m.Hello.Name == "" {
			return nil, fmt.Errorf("%w: a worker's stream begins with its name", ErrInvalid)
		}
		return m.Hello, mayBeNode(ctx, m.Hello.Name)
	case <-timer.C:
		return nil, fmt.Errorf("%w: the worker says nothing", ErrInvalid)
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}
