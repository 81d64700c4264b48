package cluster

import (
	"context"
	"fmt"
	"log"
	"net"
	"sync"
	"time"

	"github.com/hashicorp/memberlist"

	"github.com/berth-dev/berth/guard"
	"github.com/berth-dev/berth/handshake"
)

// transport is memberlist's own, or another one, and remembers for the Join under way whether
// an address could be dialled: memberlist's errors carry no type, and "nobody is
// there" needs another remedy than "they do not understand us".
type transport struct {
	memberlist.NodeAwareTransport
	gate *streamGate // of its own sockets; nil: of another transport

	mu   sync.Mutex
	dial *dialWatch
}

// dialWatch is one Join's interest in one address.
type dialWatch struct {
	ctx     context.Context
	addr    string
	reached bool
	err     error
}

var _ memberlist.NodeAwareTransport = (*transport)(nil)

func listen(addr string, port int, logger *log.Logger) (*transport, int, error) {
	// With port 0 the kernel picks the TCP port, and the UDP port of that
	// number may be in use.
	tries := 1
	if port == 0 {
		tries = 10
	}
	var err error
	for range tries {
		var nt *memberlist.NetTransport
		nt, err = memberlist.NewNetTransport(&memberlist.NetTransportConfig{BindAddrs: []string{addr}, BindPort: port, Logger: logger})
		if err == nil {
			return &transport{NodeAwareTransport: nt, gate: newGate(nt.StreamCh(), logger)}, nt.GetAutoBindPort(), nil
		}
	}
	return nil, 0, fmt.Errorf("opening the gossip port: %w", err)
}

// StreamCh implements memberlist.Transport.
func (t *transport) StreamCh() <-chan net.Conn {
	if t.gate == nil {
		return t.NodeAwareTransport.StreamCh()
	}
	return t.gate.passed
}

// Shutdown implements memberlist.Transport.
func (t *transport) Shutdown() error {
	if t.gate == nil {
		return t.NodeAwareTransport.Shutdown()
	}
	return t.gate.end(t.NodeAwareTransport.Shutdown)
}

// streamGate bounds the connections that others have made and that memberlist hears, as those that shake hands are bounded
// at the other ports: memberlist lets everybody who has connected be silent for ten seconds, however many they are.
type streamGate struct {
	handshake.Gate
	passed chan net.Conn
	ending chan struct{} // whatever comes is closed
	ended  chan struct{}
	once   sync.Once
	err    error // of the end
}

func newGate(arriving <-chan net.Conn, logger *log.Logger) *streamGate {
	g := &streamGate{passed: make(chan net.Conn), ending: make(chan struct{}), ended: make(chan struct{})}
	go func() {
		if err := guard.Caught(func() error { g.pass(arriving); return nil }); err != nil {
			logger.Printf("[ERR] nobody is heard any more who connects: %v", err)
		}
	}()
	return g
}

// pass hands connections on until the end, as far as there is room for them.
func (g *streamGate) pass(arriving <-chan net.Conn) {
	for {
		select {
		case conn := <-arriving:
			done, ok := g.Begin(conn.RemoteAddr())
			if !ok {
				_ = conn.Close() // to say more would cost what the bound saves
				continue
			}
			held := &heldConn{Conn: conn, done: sync.OnceFunc(done)}
			select {
			case g.passed <- held:
			case <-g.ending:
				_ = held.Close() // nobody hears it
			}
		case <-g.ended:
			return
		}
	}
}

// end closes the sockets. Until that is done somebody has to take what comes.
func (g *streamGate) end(shutdown func() error) error {
	g.once.Do(func() {
		close(g.ending)
		g.err = shutdown()
		close(g.ended)
	})
	return g.err
}

// heldConn has a place at the gate until it is closed.
type heldConn struct {
	net.Conn
	done func()
}

// Close implements net.Conn.
func (c *heldConn) Close() error {
	c.done()
	return c.Conn.Close()
}

// watch makes dials of addr obey ctx until done is called, which says how they
// went.
func (t *transport) watch(ctx context.Context, addr string) (done func() (reached bool, err error)) {
	w := &dialWatch{ctx: ctx, addr: addr}
	t.mu.Lock()
	t.dial = w
	t.mu.Unlock()
	return func() (bool, error) {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.dial = nil
		return w.reached, w.err
	}
}

func (t *transport) DialTimeout(addr string, timeout time.Duration) (net.Conn, error) {
	return t.DialAddressTimeout(memberlist.Address{Addr: addr}, timeout)
}

func (t *transport) DialAddressTimeout(a memberlist.Address, timeout time.Duration) (net.Conn, error) {
	t.mu.Lock()
	w := t.dial
	t.mu.Unlock()
	if w == nil || w.addr != a.Addr {
		return t.NodeAwareTransport.DialAddressTimeout(a, timeout)
	}
	conn, err := t.dialFor(w, a, timeout)
	t.mu.Lock()
	defer t.mu.Unlock()
	if err != nil {
		w.err = err
		return nil, err
	}
	w.reached = true
	stop := context.AfterFunc(w.ctx, func() { _ = conn.Close() })
	return &watchedConn{Conn: conn, stop: stop}, nil
}

// dialFor dials until the Join ends that wants it. Sockets are dialled here:
// memberlist would not end before the timeout.
func (t *transport) dialFor(w *dialWatch, a memberlist.Address, timeout time.Duration) (net.Conn, error) {
	if _, sockets := t.NodeAwareTransport.(*memberlist.NetTransport); !sockets {
		return t.NodeAwareTransport.DialAddressTimeout(a, timeout)
	}
	d := net.Dialer{Timeout: timeout}
	return d.DialContext(w.ctx, "tcp", a.Addr)
}

// watchedConn lets go of its context when it is closed.
type watchedConn struct {
	net.Conn
	stop func() bool
}

func (c *watchedConn) Close() error {
	c.stop()
	return c.Conn.Close()
}
