package rpc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/berth-dev/berth/guard"
)

const (
	// frameBytes is how much of a tunnel travels in one message.
	frameBytes = 32 << 10
	// closeGrace is how long the end that closes first waits for the other.
	closeGrace = 10 * time.Second
)

// frames is a gRPC stream of frames, either end of it. One goroutine may send
// while another receives.
type frames interface {
	SendMsg(m any) error
	RecvMsg(m any) error
}

// Tunnel is one end of a byte stream between a server and a worker. It is a
// net.Conn, with deadlines, so that an HTTP client or server can use it.
type Tunnel struct {
	net.Conn // our end of a pipe; the pumps hold the other one
	inner    net.Conn
	done     chan struct{}
	closed   chan struct{} // closed when the user closes
	once     sync.Once
	peer     string

	mu     sync.Mutex
	local  *TunnelError // sent with Close
	remote error        // why the other end closed; nil: without an error
}

var _ net.Conn = (*Tunnel)(nil)

// newTunnel pumps bytes between a stream and the returned Tunnel until either
// end closes or ctx ends. finish, called once at the end, lets go of the stream.
func newTunnel(ctx context.Context, fs frames, peer string, closeSend func(), finish func()) *Tunnel {
	outer, inner := net.Pipe()
	t := &Tunnel{Conn: outer, inner: inner, peer: peer, done: make(chan struct{}), closed: make(chan struct{})}
	up, down := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(up)
		t.pump(func() {
			t.pumpUp(fs)
			closeSend()
		})
	}()
	go func() {
		defer close(down)
		t.pump(func() { t.pumpDown(fs) })
	}()
	stop := context.AfterFunc(ctx, func() { t.fail(context.Cause(ctx)) })
	go func() {
		defer close(t.done)
		defer finish() // ends the stream, and with it a pump that is left
		defer stop()
		select {
		case <-up:
		case <-down:
		case <-t.closed:
		}
		timer := time.NewTimer(closeGrace)
		defer timer.Stop()
		for _, pump := range []chan struct{}{up, down} {
			select {
			case <-pump:
			case <-timer.C:
				return
			case <-ctx.Done():
				return
			}
		}
	}()
	return t
}

// pump carries bytes one way. A panic ends the tunnel.
func (t *Tunnel) pump(way func()) {
	if err := guard.Caught(func() error { way(); return nil }); err != nil {
		t.fail(err)
	}
}

// pumpUp sends what the user writes.
func (t *Tunnel) pumpUp(fs frames) {
	buf := make([]byte, frameBytes)
	for {
		n, err := t.inner.Read(buf)
		if n > 0 {
			if serr := fs.SendMsg(&Frame{Data: buf[:n]}); serr != nil {
				// The reason comes through RecvMsg.
				_ = t.inner.Close()
				return
			}
		}
		if errors.Is(err, io.EOF) { // the user has closed
			t.mu.Lock()
			f := &Frame{Close: true, Error: t.local}
			t.mu.Unlock()
			_ = fs.SendMsg(f) // if it fails, the other end is gone already
			return
		}
		if err != nil {
			return
		}
	}
}

// pumpDown gives the user what comes.
func (t *Tunnel) pumpDown(fs frames) {
	for {
		var f Frame
		if err := fs.RecvMsg(&f); err != nil {
			if errors.Is(err, io.EOF) {
				err = nil
			} else {
				err, _ = fromStatus(err)
			}
			t.fail(err)
			return
		}
		if len(f.Data) > 0 {
			// After the user has closed, this fails at once: the rest is
			// received and dropped until the other end has closed too.
			_, _ = t.inner.Write(f.Data)
		}
		if f.Close {
			var err error
			if f.Error != nil {
				err = f.Error
			}
			t.fail(err)
			return
		}
	}
}

// fail ends reads with err, or with io.EOF if it is nil.
func (t *Tunnel) fail(err error) {
	t.mu.Lock()
	if t.remote == nil {
		t.remote = err
	}
	t.mu.Unlock()
	_ = t.inner.Close()
}

// reason replaces what the pipe says by what the other end has said.
func (t *Tunnel) reason(err error) error {
	if err == nil || !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrClosedPipe) {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.remote != nil {
		return t.remote
	}
	return err
}

// Read returns io.EOF once the other end has closed without an error, and a
// *TunnelError if it closed with one.
func (t *Tunnel) Read(b []byte) (int, error) {
	n, err := t.Conn.Read(b)
	return n, t.reason(err)
}

func (t *Tunnel) Write(b []byte) (int, error) {
	n, err := t.Conn.Write(b)
	return n, t.reason(err)
}

// SetDeadline, SetReadDeadline and SetWriteDeadline do nothing once the other end has closed: Read and Write
// return at once then, and say why it did.
func (t *Tunnel) SetDeadline(at time.Time) error { return t.timed(t.Conn.SetDeadline(at)) }

func (t *Tunnel) SetReadDeadline(at time.Time) error { return t.timed(t.Conn.SetReadDeadline(at)) }

func (t *Tunnel) SetWriteDeadline(at time.Time) error { return t.timed(t.Conn.SetWriteDeadline(at)) }

// timed: a pipe takes no deadlines when either end is closed. Only to who has closed it that is an error.
func (t *Tunnel) timed(err error) error {
	select {
	case <-t.closed:
		return err
	default:
		return nil
	}
}

// CloseWithError closes, and the other end reads err. A *TunnelError keeps its
// code.
func (t *Tunnel) CloseWithError(err error) error {
	if err != nil {
		te := new(TunnelError)
		if !errors.As(err, &te) {
			te = &TunnelError{Code: 500, Message: err.Error()}
		}
		t.mu.Lock()
		t.local = te
		t.mu.Unlock()
	}
	return t.Close()
}

// Close ends the tunnel in both directions.
func (t *Tunnel) Close() error {
	t.once.Do(func() { close(t.closed) })
	return t.Conn.Close()
}

// Done is closed once the tunnel has let go of everything.
func (t *Tunnel) Done() <-chan struct{} { return t.done }

// LocalAddr and RemoteAddr name the ends; a tunnel has no addresses.
func (t *Tunnel) LocalAddr() net.Addr  { return tunnelAddr("tunnel") }
func (t *Tunnel) RemoteAddr() net.Addr { return tunnelAddr(t.peer) }

type tunnelAddr string

func (tunnelAddr) Network() string  { return "tunnel" }
func (a tunnelAddr) String() string { return string(a) }

// proxyFrames passes frames between two streams until either ends, and returns
// why the first one did. Whoever calls it ends both streams thereafter.
func proxyFrames(server, worker frames) error {
	ends := make(chan error, 2)
	go func() { ends <- guard.Caught(func() error { return passFrames(server, worker) }) }()
	go func() { ends <- guard.Caught(func() error { return passFrames(worker, server) }) }()
	return <-ends
}

func passFrames(from, to frames) error {
	for {
		var f Frame
		err := from.RecvMsg(&f)
		if errors.Is(err, io.EOF) {
			f.Close = true // it went without a word
		} else if err != nil {
			return fmt.Errorf("passing on a tunnel: %w", err)
		}
		if err := to.SendMsg(&Frame{Data: f.Data, Close: f.Close, Error: f.Error}); err != nil {
			return fmt.Errorf("passing on a tunnel: %w", err)
		}
		if f.Close {
			return nil
		}
	}
}
