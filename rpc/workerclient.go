package rpc

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	crand "crypto/rand"

	"github.com/hashicorp/go-hclog"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/berth-dev/berth/guard"
	"github.com/berth-dev/berth/pki"
)

const (
	// firstBackoff and maxBackoff bound the pause after a server failed.
	firstBackoff = 100 * time.Millisecond
	maxBackoff   = 5 * time.Second
	// welcomeTimeout bounds the start of a stream: the node is registered in it,
	// which takes a commit.
	welcomeTimeout = 20 * time.Second
	maxTunnels     = 96
)

// WorkerAgent is the worker as its client needs it. Its methods are called from
// the client's goroutines.
type WorkerAgent interface {
	// Hello says what to register, and up to which revision the worker has
	// everything (0: it knows nothing). Name and Instance are filled in.
	Hello() Hello
	// Assign takes over what shall run. It is never called twice at once, and
	// must return soon: acknowledgements wait behind it. An error ends the
	// stream, and the next one resumes from what Hello says.
	Assign(ctx context.Context, a *Assignments) error
	// Changed tells of objects that were fetched to be followed and are others now.
	// It must not block.
	Changed(refs []ObjectRef)
	// Taken tells of reports that the servers have committed, or will not have whatever
	// is done, and of those that were Late; a report that a newer one of its pod has overtaken is not among them. It
	// must not block.
	Taken(reports []PodReport)
	// Carry takes over services and endpoint slices, of a worker whose Hello wants
	// them. It must return soon.
	Carry(s *Services) error
	// Tunnel serves one tunnel and returns when it is done; the error is what
	// the other end reads. It need not close conn.
	Tunnel(ctx context.Context, kind string, body []byte, conn net.Conn) error
	// Connected and Disconnected tell how the worker fares. api are the addresses of
	// the servers' API.
	Connected(server string, api []string)
	Disconnected(err error)
}

// WorkerConfig says what a WorkerClient needs.
type WorkerConfig struct {
	// Node is the node's name.
	Node  string
	Agent WorkerAgent
	// Servers are the RPC addresses known now.
	Servers func() []string
	TLS     *pki.Source // required
	Dial    Dial        // nil: DialTCP
	Logger  hclog.Logger
}

// WorkerClient keeps a worker connected to some server.
type WorkerClient struct {
	config   WorkerConfig
	log      hclog.Logger
	creds    credentials.TransportCredentials
	instance string
	reports  *reports
	current  atomic.Pointer[grpc.ClientConn] // of the stream that is open
	sample   atomic.Pointer[takenSample]     // the newest one

	// Known to Run only.
	avoid map[string]time.Time // servers that failed or drain, and when
}

// NewWorkerClient checks the certificates; it opens nothing.
func NewWorkerClient(c WorkerConfig) (*WorkerClient, error) {
	if c.Logger == nil {
		c.Logger = hclog.NewNullLogger()
	}
	creds, err := dialCredentials(c.TLS)
	if err != nil {
		return nil, err
	}
	return &WorkerClient{
		config: c, log: c.Logger, creds: creds, instance: crand.Text(), reports: newReports(), avoid: map[string]time.Time{},
	}, nil
}

// Report queues a pod's newest status until a server has committed it. It never
// waits; an older status of the same pod is forgotten.
func (c *WorkerClient) Report(r PodReport) {
	if !c.reports.put(r) {
		c.log.Error("the status of a pod is larger than any may be; only whether it has left the node is told", "pod", r.Namespace+"/"+r.Name, "bytes", len(r.Status))
	}
}

// ReportNode is Report for the node's own status (corev1.NodeStatus, protobuf).
func (c *WorkerClient) ReportNode(status []byte) {
	if !c.reports.putNode(status) {
		c.log.Error("the status of the node is larger than any may be, and is not told", "bytes", len(status))
	}
}

// takenSample is a sample, and when it was taken.
type takenSample struct {
	at   time.Time
	body []byte
}

// Sample hands over what the node uses now. It goes with the next heartbeat, and with
// the first one of every later stream, until there is a newer one.
func (c *WorkerClient) Sample(body []byte) {
	c.sample.Store(&takenSample{at: time.Now(), body: body})
}

// errRenewed ends a stream that was begun with a certificate of before.
var errRenewed = errors.New("this worker has another certificate, and goes on with it")

// maxMoving is the time over which workers that have another certificate go over to it.
const maxMoving = time.Hour

// movesAt says when a worker that is found to have another certificate ends the stream that it began with the one of before: one without
// tunnels from idle on, any one at latest. Servers end that stream with its certificate, and those of workers that joined together end
// together: so each has its own time before that.
func movesAt(before *x509.Certificate, found time.Time) (idle, latest time.Time) {
	over := min(maxMoving, before.NotAfter.Sub(found)/2)
	return found.Add(time.Duration(pki.Spread(before) * float64(over))),
		before.NotAfter.Add(-time.Duration((1 - pki.Spread(before)) * float64(over)))
}

// errDrained ends a stream whose server asked for it.
var errDrained = errors.New("the server asks to go elsewhere")

// Run keeps a stream to some server until ctx ends. Which one is random, so that
// workers spread; one that failed lately is tried last.
func (c *WorkerClient) Run(ctx context.Context) {
	pause := firstBackoff
	said := ""
	for ctx.Err() == nil {
		addr := c.pick()
		err := errors.New("no server is known yet")
		welcomed := false
		if addr != "" {
			if welcomed, err = c.stream(ctx, addr); !errors.Is(err, errRenewed) {
				c.avoid[addr] = time.Now()
			}
		}
		if ctx.Err() != nil {
			return
		}
		if welcomed {
			pause, said = firstBackoff, ""
			c.config.Agent.Disconnected(err)
		}
		if errors.Is(err, errRenewed) {
			continue
		}
		if s := err.Error(); s != said {
			said = s
			c.log.Warn("not connected to a server; trying again", "address", addr, "error", err)
		}
		if errors.Is(err, errDrained) && len(c.config.Servers()) > 1 {
			continue // another one is there
		}
		if !wait(ctx, pause/2+rand.N(pause/2+1)) { // #nosec G404 -- no secret: it only spreads what is asked over time, servers or places
			return
		}
		pause = min(2*pause, maxBackoff)
	}
}

func wait(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// pick chooses at random among those that never failed, else the one whose
// failure is oldest.
func (c *WorkerClient) pick() string {
	servers := slices.Clone(c.config.Servers())
	if len(servers) == 0 {
		return ""
	}
	for addr, since := range c.avoid {
		if time.Since(since) > 30*time.Second || !slices.Contains(servers, addr) {
			delete(c.avoid, addr)
		}
	}
	rand.Shuffle(len(servers), func(i, j int) { servers[i], servers[j] = servers[j], servers[i] })
	return slices.MinFunc(servers, func(a, b string) int { return c.avoid[a].Compare(c.avoid[b]) })
}

// stream runs one stream to its end. welcomed says whether it began.
func (c *WorkerClient) stream(ctx context.Context, addr string) (welcomed bool, err error) {
	leaf := c.config.TLS.Leaf() // what the connection may be made with
	cc, err := newConn(addr, c.creds, c.config.Dial)
	if err != nil {
		return false, fmt.Errorf("connecting to the server at %s: %w", addr, err)
	}
	var tunnels sync.WaitGroup
	ctx, cancel := context.WithCancelCause(ctx)
	defer func() {
		cancel(nil)
		tunnels.Wait()
		_ = cc.Close() // it fails only if it is closed already
	}()
	late := time.AfterFunc(welcomeTimeout, func() { cancel(errors.New("the server does not answer")) })
	defer late.Stop()
	w := &workerEnd{client: c, cc: cc, addr: addr, leaf: leaf, tunnels: &tunnels, slots: make(chan struct{}, maxTunnels)}
	welcome, err := w.open(ctx)
	if err == nil && !late.Stop() {
		err = context.Cause(ctx)
	}
	if err == nil {
		c.reports.reset()
		c.current.Store(cc)
		defer c.current.CompareAndSwap(cc, nil)
		c.config.Agent.Connected(welcome.Server, welcome.API)
		err = w.run(ctx, cancel, time.Duration(welcome.HeartbeatMillis)*time.Millisecond)
		return true, fmt.Errorf("stream to server %s at %s: %w", welcome.Server, addr, err)
	}
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	return false, fmt.Errorf("connecting to the server at %s: %w", addr, err)
}

// workerEnd is one stream at the worker.
type workerEnd struct {
	client  *WorkerClient
	cc      *grpc.ClientConn
	addr    string
	leaf    *x509.Certificate
	st      grpc.ClientStream
	tunnels *sync.WaitGroup
	entered atomic.Int32 // tunnels that are open, or are being opened
	slots   chan struct{}
	heard   chan struct{} // capacity 1
	partial *Assignments  // parts that came so far

	services servicesEnd
	sampled  *takenSample // the last one that was sent

	idle, latest time.Time // when it ends since there is another certificate; zero: there is none
}

func (w *workerEnd) open(ctx context.Context) (*Welcome, error) {
	desc := bothWays("Connect", nil)
	st, err := w.cc.NewStream(ctx, &desc, methodConnect)
	if err == nil {
		hello := w.client.config.Agent.Hello()
		hello.Name, hello.Instance = w.client.config.Node, w.client.instance
		err = st.SendMsg(&WorkerMessage{Hello: &hello})
	}
	// A refusal shows when receiving, even if the send failed for it.
	var m ServerMessage
	if st != nil {
		err = st.RecvMsg(&m)
	}
	if err != nil {
		err, _ = fromStatus(err)
		return nil, err
	}
	if m.Welcome == nil || m.Welcome.HeartbeatMillis <= 0 {
		return nil, fmt.Errorf("%w: the server does not welcome us", ErrInvalid)
	}
	w.st, w.heard = st, make(chan struct{}, 1)
	return m.Welcome, nil
}

// run sends until the stream ends.
func (w *workerEnd) run(ctx context.Context, cancel context.CancelCauseFunc, heartbeat time.Duration) error {
	received := make(chan struct{})
	go func() {
		defer close(received)
		cancel(guard.Caught(func() error { return w.receive(ctx) }))
	}()
	defer func() {
		cancel(nil)
		<-received
	}()
	tick := time.NewTicker(heartbeat)
	defer tick.Stop()
	retry := time.NewTimer(0)
	defer retry.Stop()
	silent := 0 // heartbeats without an answer
	for {
		var msg *WorkerMessage
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-w.heard:
			silent = 0
		case <-tick.C:
			if silent++; silent > 4 {
				return fmt.Errorf("nothing was heard of the server for %s", 4*heartbeat)
			}
			if w.renewed(w.client.config.TLS.Leaf(), time.Now()) {
				return errRenewed
			}
			msg = &WorkerMessage{Heartbeat: true}
			if s := w.client.sample.Load(); s != nil && s != w.sampled {
				w.sampled = s
				msg.Sample = &Sample{AgeNano: int64(time.Since(s.at)), Body: s.body}
			}
		case <-w.client.reports.wake:
			retry.Reset(0)
		case <-retry.C:
			batch, later := w.client.reports.next(time.Now())
			if later > 0 {
				retry.Reset(later)
			}
			if batch != nil {
				msg = &WorkerMessage{Status: batch}
			}
		}
		if msg == nil {
			continue
		}
		if err := w.st.SendMsg(msg); err != nil {
			// The reason comes through the receiving side.
			<-received
			return context.Cause(ctx)
		}
	}
}

// renewed says whether the stream ends now because the worker has another certificate.
func (w *workerEnd) renewed(held *x509.Certificate, now time.Time) bool {
	if w.leaf.Equal(held) {
		w.idle, w.latest = time.Time{}, time.Time{} // another one that was found before is not there any more: it is nobody's time
		return false
	}
	if w.latest.IsZero() {
		w.idle, w.latest = movesAt(w.leaf, now)
	}
	return !now.Before(w.latest) || !now.Before(w.idle) && w.entered.Load() == 0
}

// receive handles what comes until the stream ends.
func (w *workerEnd) receive(ctx context.Context) error {
	for {
		m := new(ServerMessage)
		if err := w.st.RecvMsg(m); err != nil {
			if errors.Is(err, io.EOF) {
				return errors.New("the server has ended it")
			}
			err, _ = fromStatus(err)
			return err
		}
		if err := w.handle(ctx, m); err != nil {
			return err
		}
		select {
		case w.heard <- struct{}{}:
		default:
		}
	}
}

func (w *workerEnd) handle(ctx context.Context, m *ServerMessage) error {
	for _, a := range m.Acks {
		if a.Error != "" {
			w.client.log.Warn("the server has not taken statuses; sending them again", "error", a.Error)
		}
		if len(a.Failed) > 0 {
			w.client.log.Warn("the servers have no room for what was said of some pods, or broke over it; saying it again later", "pods", a.Failed)
		}
		if a.NodeFailed {
			w.client.log.Warn("the servers have no room for the node's status; sending it again")
		}
		if taken := w.client.reports.ack(a, time.Now()); len(taken) > 0 {
			w.client.config.Agent.Taken(taken)
		}
	}
	for _, t := range m.Tunnels {
		w.tunnels.Add(1)
		w.entered.Add(1)
		go func() {
			defer w.tunnels.Done()
			if err := guard.Caught(func() error {
				defer w.entered.Add(-1)
				w.tunnel(ctx, t)
				return nil
			}); err != nil {
				w.client.log.Error("a tunnel broke, by a mistake of Berth's; the rest goes on", "error", err)
			}
		}()
	}
	if len(m.Changed) > 0 {
		w.client.config.Agent.Changed(m.Changed)
	}
	if m.Assignments != nil {
		if err := w.assign(ctx, m.Assignments); err != nil {
			return fmt.Errorf("taking over the assignments: %w", err)
		}
	}
	if m.Services != nil {
		if s := w.services.take(m.Services); s != nil {
			if err := w.client.config.Agent.Carry(s); err != nil {
				return fmt.Errorf("taking over the services: %w", err)
			}
		}
	}
	if m.Drain != nil {
		return fmt.Errorf("%w: %s", errDrained, m.Drain.Reason)
	}
	return nil
}

// assign puts the parts together: of a full set, no part says what is gone.
func (w *workerEnd) assign(ctx context.Context, a *Assignments) error {
	if p := w.partial; p != nil {
		p.Full = p.Full || a.Full
		p.More, p.Revision = a.More, a.Revision
		p.Pods = append(p.Pods, a.Pods...)
		p.Gone = append(p.Gone, a.Gone...)
		if len(a.Node) > 0 {
			p.Node = a.Node
		}
		a = p
	}
	w.partial = a
	if a.More {
		return nil
	}
	w.partial = nil
	return w.client.config.Agent.Assign(ctx, a)
}

// tunnel opens and serves what the server asked for.
func (w *workerEnd) tunnel(ctx context.Context, t TunnelOpen) {
	c := w.client
	conn, err := openTunnel(ctx, w.cc, methodWorkerTunnel, "server/"+w.addr,
		&Frame{Accept: &TunnelAccept{Node: c.config.Node, ID: t.ID}}, false)
	if err != nil {
		c.log.Warn("cannot open a tunnel", "kind", t.Kind, "error", err)
		return
	}
	select {
	case w.slots <- struct{}{}:
		err = c.config.Agent.Tunnel(ctx, t.Kind, t.Body, conn)
		<-w.slots
	default:
		err = &TunnelError{Code: 429, Message: fmt.Sprintf("node %s has %d tunnels open", c.config.Node, maxTunnels)}
	}
	_ = conn.CloseWithError(err) // closing a pipe does not fail
	<-conn.Done()
}
