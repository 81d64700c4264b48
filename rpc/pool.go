package rpc

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/stats"

	"github.com/berth-dev/berth/pki"
)

// Pool calls other servers: one connection an address, kept while it is of use.
type Pool struct {
	name  string
	tls   *pki.Source
	creds credentials.TransportCredentials
	dial  Dial

	mu      sync.Mutex
	conns   map[string]*link
	retired []*link // of certificates of before
	ends    endings // of the retired
	closed  bool
}

// link is a connection to an address.
type link struct {
	*grpc.ClientConn
	addr string
	leaf *x509.Certificate // what it may have been made with
	kept func()            // of a retired one: forgets when it ends
}

// end closes the connection: calls under way on it fail.
func (l *link) end() {
	if l.kept != nil {
		l.kept()
	}
	_ = l.Close() // it fails only if it is closed already
}

// Dial opens a connection to an address, host:port.
type Dial func(ctx context.Context, addr string) (net.Conn, error)

// DialTCP is the Dial of whoever is given none.
func DialTCP(ctx context.Context, addr string) (net.Conn, error) {
	var d net.Dialer
	return d.DialContext(ctx, "tcp", addr)
}

// NewPool makes the calling side of the server called name. A dial of nil is
// DialTCP.
func NewPool(name string, tls *pki.Source, dial Dial) (*Pool, error) {
	creds, err := dialCredentials(tls)
	if err != nil {
		return nil, err
	}
	return &Pool{name: name, tls: tls, creds: creds, dial: dial, conns: map[string]*link{}, ends: endings{now: time.Now}}, nil
}

func dialCredentials(tls *pki.Source) (credentials.TransportCredentials, error) {
	if tls == nil {
		return nil, errNoCertificate
	}
	creds, err := clientCredentials(tls)
	if err != nil {
		return nil, fmt.Errorf("rpc with TLS: %w", err)
	}
	return creds, nil
}

// newConn connects when the first call is made.
func newConn(addr string, creds credentials.TransportCredentials, dial Dial) (*grpc.ClientConn, error) {
	if dial == nil {
		dial = DialTCP
	}
	// passthrough: addresses come from gossip and configuration; no resolver
	// and no proxy shall come between.
	return grpc.NewClient("passthrough:///"+addr,
		grpc.WithTransportCredentials(creds),
		grpc.WithAuthority(pki.ServerDNSName),
		grpc.WithContextDialer(dial),
		grpc.WithDefaultCallOptions(
			grpc.ForceCodecV2(codec{}),
			grpc.MaxCallRecvMsgSize(MaxMessageBytes),
			grpc.MaxCallSendMsgSize(MaxMessageBytes),
		),
		grpc.WithStatsHandler(sentWatch{}),
		grpc.WithDisableServiceConfig(),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 5 * time.Second, PermitWithoutStream: true}),
		// A server that is back after a restart is tried again soon.
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 2 * time.Second},
			MinConnectTimeout: 3 * time.Second,
		}),
	)
}

// conn is the connection for a call. Once this server has another certificate, calls go by a new connection: the other
// side ends the one of before when its certificate ends, which shall find no call under way.
func (p *Pool) conn(addr string) (*grpc.ClientConn, error) {
	leaf := p.tls.Leaf()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, errors.New("the pool of connections is closed")
	}
	if addr == "" {
		return nil, errors.New("the server's address is not known")
	}
	before := p.conns[addr]
	if before != nil && before.leaf.Equal(leaf) {
		return before.ClientConn, nil
	}
	cc, err := newConn(addr, p.creds, p.dial)
	if err != nil {
		return nil, err
	}
	p.conns[addr] = &link{ClientConn: cc, addr: addr, leaf: leaf}
	if before != nil {
		p.retire(before)
	}
	return cc, nil
}

// retire lets what is under way on a connection go on as long as its certificate is good. mu is held.
func (p *Pool) retire(l *link) {
	p.retired = append(p.retired, l)
	l.kept = p.ends.add(l.leaf.NotAfter, func() {
		p.mu.Lock()
		p.retired = slices.DeleteFunc(p.retired, func(r *link) bool { return r == l })
		p.mu.Unlock()
		l.end()
	})
}

// Retain closes the connections to all other addresses: servers that are gone.
// Calls under way on them fail.
func (p *Pool) Retain(addrs []string) {
	keep := make(map[string]bool, len(addrs))
	for _, a := range addrs {
		keep[a] = true
	}
	p.drop(func(addr string) bool { return !keep[addr] })
}

// Close closes every connection; later calls return ErrNotSent.
func (p *Pool) Close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.drop(func(string) bool { return true })
}

func (p *Pool) drop(which func(addr string) bool) {
	p.mu.Lock()
	var gone []*link
	for addr, l := range p.conns {
		if which(addr) {
			gone = append(gone, l)
			delete(p.conns, addr)
		}
	}
	p.retired = slices.DeleteFunc(p.retired, func(l *link) bool {
		if which(l.addr) {
			gone = append(gone, l)
			return true
		}
		return false
	})
	p.mu.Unlock()
	for _, l := range gone {
		l.end()
	}
}

// sentWatch notes whether a call's request was handed to the connection.
type sentWatch struct{}

type sentKey struct{}

func (sentWatch) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context   { return ctx }
func (sentWatch) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }
func (sentWatch) HandleConn(context.Context, stats.ConnStats)                       {}

func (sentWatch) HandleRPC(ctx context.Context, s stats.RPCStats) {
	sent, ok := ctx.Value(sentKey{}).(*atomic.Bool)
	if !ok {
		return
	}
	switch s.(type) {
	case *stats.Begin:
		// gRPC tries again by itself only what the other side cannot have
		// seen: then nothing has been sent so far.
		sent.Store(false)
	case *stats.OutPayload:
		sent.Store(true)
	}
}

// call makes one call. known says that the other side has answered, with a
// response or with one of this package's errors; if not, the error is
// ErrNotSent, or says what happened after the request was sent.
func (p *Pool) call(ctx context.Context, addr, method string, req, resp any, options ...grpc.CallOption) (known bool, err error) {
	cc, err := p.conn(addr)
	if err != nil {
		return false, fmt.Errorf("%w: %w", ErrNotSent, err)
	}
	var sent atomic.Bool
	err = cc.Invoke(context.WithValue(ctx, sentKey{}, &sent), method, req, resp, options...)
	if err == nil {
		return true, nil
	}
	err, known = fromStatus(err)
	if !known && !sent.Load() {
		err = fmt.Errorf("%w: %w", ErrNotSent, err)
	}
	return known, fmt.Errorf("calling the server at %s: %w", addr, err)
}

// Forward asks the leader at addr to propose entries. Its error is
// ErrUnknownOutcome unless the leader has said otherwise, or nothing was sent
// (ErrNotSent).
func (p *Pool) Forward(ctx context.Context, addr string, entries []byte) (*ForwardResponse, error) {
	resp := new(ForwardResponse)
	known, err := p.call(ctx, addr, methodForward, &ForwardRequest{Hops: 1, Entries: entries, Server: p.name}, resp)
	if err == nil {
		return resp, nil
	}
	if !known && !errors.Is(err, ErrNotSent) {
		return nil, fmt.Errorf("%w: %w", ErrUnknownOutcome, err)
	}
	return nil, err
}

// ReadIndex asks the leader at addr for an index that is committed now.
func (p *Pool) ReadIndex(ctx context.Context, addr string) (uint64, error) {
	resp := new(ReadIndexResponse)
	if _, err := p.call(ctx, addr, methodReadIndex, &ReadIndexRequest{}, resp); err != nil {
		return 0, err
	}
	return resp.Index, nil
}

// ReportStreams tells the leader at addr which workers this server holds.
func (p *Pool) ReportStreams(ctx context.Context, addr string, nodes []string) error {
	_, err := p.call(ctx, addr, methodReportStreams, &StreamReport{Server: p.name, Nodes: nodes}, new(StreamReportResponse))
	return err
}

// Renewal tells the leader at addr of the renewal of a node's lease, or asks for the newest.
func (p *Pool) Renewal(ctx context.Context, addr string, r *RenewalRequest) (*RenewalResponse, error) {
	resp := new(RenewalResponse)
	if _, err := p.call(ctx, addr, methodRenewal, r, resp); err != nil {
		return nil, err
	}
	return resp, nil
}

// Digest asks the server at addr for its state's digest at an index.
func (p *Pool) Digest(ctx context.Context, addr string, index uint64) (*DigestResponse, error) {
	resp := new(DigestResponse)
	if _, err := p.call(ctx, addr, methodDigest, &DigestRequest{Index: index}, resp); err != nil {
		return nil, err
	}
	return resp, nil
}

// Differs tells the server at addr that its state is not that of the others.
func (p *Pool) Differs(ctx context.Context, addr string, d *DifferenceRequest) error {
	_, err := p.call(ctx, addr, methodDiffers, d, new(DifferenceResponse))
	return err
}

// Status asks the server at addr how it is.
func (p *Pool) Status(ctx context.Context, addr string) (*StatusResponse, error) {
	resp := new(StatusResponse)
	if _, err := p.call(ctx, addr, methodStatus, &StatusRequest{}, resp); err != nil {
		return nil, err
	}
	return resp, nil
}

// Samples asks the server at addr what it was told of nodes.
func (p *Pool) Samples(ctx context.Context, addr string, nodes []string) (*SamplesResponse, error) {
	resp := new(SamplesResponse)
	if _, err := p.call(ctx, addr, methodSamples, &SamplesRequest{Nodes: nodes}, resp); err != nil {
		return nil, err
	}
	return resp, nil
}

// Holds asks the server at addr whether node's stream ends there. A server that
// refused a connection a moment ago is tried again until ctx ends.
func (p *Pool) Holds(ctx context.Context, addr, node string) (bool, error) {
	resp := new(HoldsResponse)
	if _, err := p.call(ctx, addr, methodHolds, &HoldsRequest{Node: node}, resp, grpc.WaitForReady(true)); err != nil {
		return false, err
	}
	return resp.Holds, nil
}

// Tunnel opens a tunnel to a worker through the server at addr, which must hold
// its stream (ErrNotHeld if not). The tunnel ends with ctx.
func (p *Pool) Tunnel(ctx context.Context, addr, node, kind string, body []byte) (*Tunnel, error) {
	cc, err := p.conn(addr)
	if err != nil {
		return nil, fmt.Errorf("opening a tunnel to %s: %w", node, err)
	}
	return openTunnel(ctx, cc, methodServerTunnel, "worker/"+node,
		&Frame{Request: &TunnelRequest{Node: node, Kind: kind, Body: body}}, true)
}

// openTunnel opens the calling end of a tunnel.
func openTunnel(ctx context.Context, cc *grpc.ClientConn, method, peer string, first *Frame, answered bool) (*Tunnel, error) {
	ctx, cancel := context.WithCancel(ctx)
	desc := bothWays("Tunnel", nil)
	st, err := cc.NewStream(ctx, &desc, method)
	if err == nil {
		err = st.SendMsg(first)
	}
	if err == nil && answered {
		var f Frame
		if err = st.RecvMsg(&f); err == nil && !f.Accepted {
			err = fmt.Errorf("%w: the tunnel was not accepted", ErrInvalid)
		}
	}
	if err != nil {
		cancel()
		err, _ = fromStatus(err)
		return nil, fmt.Errorf("opening a tunnel to %s: %w", peer, err)
	}
	return newTunnel(ctx, st, peer, func() { _ = st.CloseSend() }, cancel), nil
}
