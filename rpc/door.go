package rpc

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"sync"

	"google.golang.org/grpc/credentials"

	"github.com/berth-dev/berth/handshake"
	"github.com/berth-dev/berth/pki"
)

// door is what one kind of peer comes through: a listener whose connections have
// shaken hands already, so that what a peer may send is known before it sends.
type door struct {
	addr   net.Addr
	conns  chan *peerConn
	closed chan struct{}
	once   sync.Once
}

func newDoor(addr net.Addr) *door {
	return &door{addr: addr, conns: make(chan *peerConn), closed: make(chan struct{})}
}

// Accept implements net.Listener.
func (d *door) Accept() (net.Conn, error) {
	select {
	case c := <-d.conns:
		return c, nil
	case <-d.closed:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (d *door) Close() error {
	d.once.Do(func() { close(d.closed) })
	return nil
}

// Addr implements net.Listener.
func (d *door) Addr() net.Addr { return d.addr }

// peerConn is a connection of which it is known whose it is.
type peerConn struct {
	net.Conn
	info    shownInfo
	release func()
}

// shownInfo is what was shown on a connection. Who finds that it is good no more closes that connection.
type shownInfo struct {
	credentials.TLSInfo
	close func()
}

// Close implements net.Conn.
func (c *peerConn) Close() error {
	c.release()
	return c.Conn.Close()
}

// shaken are the credentials behind a door.
type shaken struct {
	credentials.TransportCredentials
}

// ServerHandshake implements credentials.TransportCredentials.
func (shaken) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	c, ok := raw.(*peerConn)
	if !ok {
		return nil, nil, errors.New("this connection did not come through the door")
	}
	return c, c.info, nil
}

// Clone implements credentials.TransportCredentials.
func (s shaken) Clone() credentials.TransportCredentials { return s }

// porter accepts connections, asks each for its certificate, and sends it to the
// door of its kind.
type porter struct {
	config *tls.Config
	gate   *handshake.Gate
	// door is the one for an identity, and how many connections it may have.
	door func(id *pki.Identity) (d *door, limit int)
	ends *endings

	mu   sync.Mutex
	open map[string]int // connections by user
}

// serve accepts until the listener is closed or ctx ends. It returns when every
// handshake is over.
func (p *porter) serve(ctx context.Context, lis net.Listener) error {
	d := handshake.Door{Config: p.config, Gate: p.gate, Welcome: p.welcome}
	return d.Serve(ctx, lis)
}

// welcome hands a connection on or closes it.
func (p *porter) welcome(ctx context.Context, conn *tls.Conn) {
	id, err := pki.PeerIdentity(conn.ConnectionState().VerifiedChains, p.ends.now())
	if err != nil {
		_ = conn.Close() // a certificate of nobody: there is nothing to say to it
		return
	}
	d, limit := p.door(&id)
	if !p.count(id.User, limit) {
		_ = conn.Close() // it has as many as it may
		return
	}
	// Nobody is heard longer than his certificate is good: who has another one by then comes back with it.
	end := func() { _ = conn.Close() } // whoever reads or writes is told
	forget := p.ends.add(id.Ends, end)
	c := &peerConn{
		Conn: conn, release: sync.OnceFunc(func() {
			forget()
			p.count(id.User, -1)
		}),
		info: shownInfo{credentials.TLSInfo{
			State: conn.ConnectionState(), CommonAuthInfo: credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity},
		}, end},
	}
	select {
	case d.conns <- c:
	case <-d.closed:
		_ = c.Close() // the server stops
	case <-ctx.Done():
		_ = c.Close()
	}
}

// count takes one more connection of a user into account, unless it has limit
// already; a negative limit takes one off.
func (p *porter) count(user string, limit int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := p.open[user]
	switch {
	case limit < 0 && n <= 1:
		delete(p.open, user)
	case limit < 0:
		p.open[user] = n - 1
	case n >= limit:
		return false
	default:
		p.open[user] = n + 1
	}
	return true
}
