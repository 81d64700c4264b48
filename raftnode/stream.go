package raftnode

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"

	"github.com/berth-dev/berth/handshake"
	"github.com/berth-dev/berth/pki"
)

// Listener is where connections between servers come from and go to: TCP, a
// port shared with other protocols, or pipes in a test.
type Listener interface {
	net.Listener
	Dial(addr string, timeout time.Duration) (net.Conn, error)
}

type tcpListener struct{ net.Listener }

func (tcpListener) Dial(addr string, timeout time.Duration) (net.Conn, error) {
	return net.DialTimeout("tcp", addr, timeout)
}

// advertised is an address as others know it: a host may be a name.
type advertised string

func (advertised) Network() string  { return "tcp" }
func (a advertised) String() string { return string(a) }

func openListener(c Config) (Listener, net.Addr, error) {
	l := c.Listener
	if l == nil {
		tcp, err := net.Listen("tcp", c.BindAddr)
		if err != nil {
			return nil, nil, fmt.Errorf("listen for servers: %w", err)
		}
		l = tcpListener{tcp}
	}
	if c.AdvertiseAddr != "" {
		return l, advertised(c.AdvertiseAddr), nil
	}
	if tcp, ok := l.Addr().(*net.TCPAddr); ok && tcp.IP.IsUnspecified() {
		return nil, nil, errors.Join(fmt.Errorf("listening on %s, the other servers can not know this one's address: set the address to advertise", tcp), l.Close())
	}
	return l, l.Addr(), nil
}

// stream is the raft.StreamLayer: it encrypts connections where it is told to,
// and greets the other side before Raft says anything (greeting.go).
type stream struct {
	listener Listener
	addr     net.Addr
	tls      *pki.Source
	id       *identity
	promises *promises
	reach    *reach
	self     string
	// nameOf is the server that the configuration has at an address, if any.
	nameOf func(addr string) string
	// admission is where a server would be admitted by dialling it; nil: not.
	admission func(server string) *position
	// lost is told of a server of the configuration that has lost its data.
	lost func(server string)
	// reweigh is called when this server may have acknowledged more than it knew, and servers gives the configuration.
	reweigh func()
	servers func() raft.Configuration
	// leader is the server that leads, this one or one that it has heard of within its timeout; "" if there is none.
	leader func() string
	// ended is told that a connection of another server has ended, and agree
	// answers whether a leader is gone.
	ended  func(server string)
	agree  func(leader string, answer *hello)
	logger hclog.Logger

	// mine are this server's other addresses.
	mine Addresses

	gate handshake.Gate // of connections that have not greeted yet

	mu         sync.Mutex
	closed     bool
	conns      map[net.Conn]struct{}
	introduced map[string]Addresses // by server
}

// Addresses are where a server is reached beside consensus, host:port.
type Addresses struct{ RPC, HTTP string }

var _ raft.StreamLayer = (*stream)(nil)

func newStream(l Listener, addr net.Addr, n *Node) *stream {
	return &stream{
		listener: l, addr: addr, tls: n.c.TLS, id: n.id, promises: n.promises, reach: n.reach, self: n.c.ID,
		nameOf: n.serverAt, admission: n.admission, lost: n.restock, reweigh: n.reweigh, servers: n.servers, leader: n.heardLeader,
		ended: n.succession.ended, agree: n.succession.agree, logger: n.logger, conns: map[net.Conn]struct{}{},
		mine: Addresses{RPC: n.c.RPCAddr, HTTP: n.c.HTTPAddr}, introduced: map[string]Addresses{},
	}
}

const greetingTimeout = 10 * time.Second

// Addr implements net.Listener.
func (s *stream) Addr() net.Addr { return s.addr }

// Close implements net.Listener. Connections end with it: a handler that waits
// for the next request would otherwise stay.
func (s *stream) Close() error {
	s.mu.Lock()
	s.closed = true
	for c := range s.conns {
		_ = c.Close() // nothing is lost that Raft relies on
	}
	s.mu.Unlock()
	return s.listener.Close()
}

// tracked is a connection that Close ends.
type tracked struct {
	net.Conn
	s *stream
}

func (t *tracked) Close() error {
	t.s.mu.Lock()
	delete(t.s.conns, t.Conn)
	t.s.mu.Unlock()
	return t.Conn.Close()
}

func (s *stream) track(c net.Conn) (net.Conn, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, errors.Join(net.ErrClosed, c.Close())
	}
	s.conns[c] = struct{}{}
	return &tracked{Conn: c, s: s}, nil
}

// Dial implements raft.StreamLayer.
func (s *stream) Dial(address raft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	to := s.nameOf(string(address))
	conn, err := s.connect(string(address), to, s.admission(to), timeout)
	if errors.Is(err, ErrLostData) {
		s.lost(to)
	}
	return conn, err
}

// probe finds out whether a server could be made one of the cluster's, and admits
// it if it is told where.
func (s *stream) probe(addr, server string, admit *position) error {
	conn, err := s.connect(addr, server, admit, greetingTimeout)
	if err != nil {
		return err
	}
	return conn.Close()
}

func (s *stream) connect(addr, to string, admit *position, timeout time.Duration) (net.Conn, error) {
	conn, err := s.open(addr, timeout)
	if err != nil {
		return nil, err
	}
	if err := s.greet(conn, to, admit); err != nil {
		return nil, errors.Join(fmt.Errorf("server at %s: %w", addr, err), conn.Close())
	}
	_ = conn.SetDeadline(time.Time{})
	return conn, nil
}

// open dials an address. What is said first has a deadline.
func (s *stream) open(addr string, timeout time.Duration) (net.Conn, error) {
	raw, err := s.listener.Dial(addr, timeout)
	if err != nil {
		return nil, err
	}
	conn, err := s.track(raw)
	if err != nil {
		return nil, err
	}
	if s.tls != nil {
		conn = tls.Client(conn, s.tls.ClientConfig(pki.ServerDNSName))
	}
	_ = conn.SetDeadline(time.Now().Add(min(timeout, greetingTimeout)))
	return conn, nil
}

// RefusedHandshakes is how many connections for consensus were cut unheard,
// because too many had not yet shown who they are.
func (n *Node) RefusedHandshakes() int64 {
	if n.stream == nil {
		return 0
	}
	return n.stream.gate.Refused()
}

// Accept implements net.Listener. The greeting is answered on the first read,
// so that a silent peer holds up nobody else.
func (s *stream) Accept() (net.Conn, error) {
	var raw net.Conn
	var done func()
	for admitted := false; !admitted; {
		var err error
		if raw, err = s.listener.Accept(); err != nil {
			return nil, err
		}
		if done, admitted = s.gate.Begin(raw.RemoteAddr()); !admitted {
			_ = raw.Close() // to say more would cost what the bound saves
		}
	}
	conn, err := s.track(raw)
	if err != nil {
		done()
		return nil, err
	}
	if s.tls != nil {
		cfg, err := s.tls.ServerConfig(tls.RequireAndVerifyClientCert)
		if err != nil {
			done()
			return nil, errors.Join(err, conn.Close())
		}
		conn = tls.Server(conn, cfg)
	}
	return &greetedConn{Conn: conn, s: s, shaken: sync.OnceFunc(done)}, nil
}

type greetedConn struct {
	net.Conn
	s    *stream
	once sync.Once
	err  error
	peer string // who it is, once it is greeted
	// shaken ends the handshake, which the greeting is part of.
	shaken func()
}

// Close implements net.Conn.
func (g *greetedConn) Close() error {
	g.shaken()
	return g.Conn.Close()
}

func (g *greetedConn) Read(b []byte) (int, error) {
	g.once.Do(func() {
		defer g.shaken()
		_ = g.SetDeadline(time.Now().Add(greetingTimeout))
		if g.peer, g.err = g.s.answer(g.Conn); errors.Is(g.err, errAsked) {
			return
		} else if g.err != nil {
			g.s.logger.Warn("refused a connection for consensus", "from", g.RemoteAddr(), "error", g.err)
			return
		}
		_ = g.SetDeadline(time.Time{})
	})
	if g.err != nil {
		return 0, io.EOF
	}
	n, err := g.Conn.Read(b)
	if err != nil {
		g.s.ended(g.peer)
	}
	return n, err
}
