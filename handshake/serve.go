package handshake

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime/debug"
	"sync"
	"time"
)

// maxAcceptPause bounds the pause after the listener could not accept, when the
// process has no file descriptors left.
const maxAcceptPause = time.Second

// Door says what becomes of the connections of a listener.
type Door struct {
	Config *tls.Config
	Gate   *Gate
	// Welcome is given each connection that has shaken hands, in a goroutine of
	// its own; it is Welcome's to close.
	Welcome func(ctx context.Context, conn *tls.Conn)
	// Failed, if not nil, is told why a handshake failed. The connection is
	// closed afterwards.
	Failed func(conn net.Conn, err error)
}

// Serve accepts until the listener is closed or ctx ends, and closes it. It
// returns when every handshake is over and every Welcome has returned.
func (d *Door) Serve(ctx context.Context, lis net.Listener) error {
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	defer context.AfterFunc(ctx, func() { _ = lis.Close() })() // whoever closed it before has its error
	pause := time.Duration(0)
	for {
		raw, err := lis.Accept()
		switch {
		case err == nil:
			pause = 0
			if done, ok := d.Gate.Begin(raw.RemoteAddr()); ok {
				running.Go(func() { d.shake(ctx, raw, done) })
			} else {
				_ = raw.Close() // to say more would cost what the bound saves
			}
			continue
		case errors.Is(err, net.ErrClosed):
			return nil
		}
		var passing interface{ Temporary() bool }
		if !errors.As(err, &passing) || !passing.Temporary() {
			return fmt.Errorf("accepting connections: %w", err)
		}
		pause = min(max(2*pause, 5*time.Millisecond), maxAcceptPause)
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return nil
		}
	}
}

func (d *Door) shake(ctx context.Context, raw net.Conn, done func()) {
	conn := tls.Server(raw, d.Config)
	err := caught(func() error {
		shaking, cancel := context.WithTimeout(ctx, Timeout)
		defer cancel()
		return conn.HandshakeContext(shaking)
	})
	done()
	if err == nil {
		err = caught(func() error { d.Welcome(ctx, conn); return nil })
		if err == nil {
			return
		}
	}
	if d.Failed != nil {
		d.Failed(raw, err)
	}
	_ = raw.Close() // the peer's trouble: it has its alert
}

// caught calls f and returns its error. A panic is one: it costs the connection and not the process.
func caught(f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("it panicked, by a mistake of Berth's: %v\n%s", p, debug.Stack())
		}
	}()
	return f()
}

// Listener is a net.Listener whose connections have shaken hands.
type Listener struct {
	net.Listener
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
	ended  chan struct{}
	err    error // of Serve, once ended is closed
}

// NewListener begins to accept. logf is told of handshakes that fail.
func NewListener(lis net.Listener, config *tls.Config, gate *Gate, logf func(format string, args ...any)) *Listener {
	l := &Listener{Listener: lis, conns: make(chan net.Conn), closed: make(chan struct{}), ended: make(chan struct{})}
	d := &Door{Config: config, Gate: gate, Welcome: l.welcome, Failed: func(conn net.Conn, err error) {
		logf("TLS handshake error from %s: %v", conn.RemoteAddr(), err)
		tellPlain(err)
	}}
	go func() {
		defer close(l.ended)
		l.err = caught(func() error { return d.Serve(context.Background(), lis) })
	}()
	return l
}

func (l *Listener) welcome(_ context.Context, conn *tls.Conn) {
	select {
	case l.conns <- conn:
	case <-l.closed:
		_ = conn.Close() // the server stops
	}
}

// Accept implements net.Listener.
func (l *Listener) Accept() (net.Conn, error) {
	select {
	case conn := <-l.conns:
		return conn, nil
	case <-l.closed:
		return nil, net.ErrClosed
	case <-l.ended:
		if l.err == nil {
			return nil, net.ErrClosed
		}
		return nil, l.err
	}
}

// Close implements net.Listener.
func (l *Listener) Close() error {
	err := l.Listener.Close()
	l.once.Do(func() { close(l.closed) })
	return err
}

// tellPlain answers who speaks HTTP where TLS is spoken, as net/http does.
func tellPlain(err error) {
	var header tls.RecordHeaderError
	if !errors.As(err, &header) || header.Conn == nil {
		return
	}
	switch string(header.RecordHeader[:]) {
	case "GET /", "HEAD ", "POST ", "PUT /", "DELET", "OPTIO", "PATCH":
		_ = header.Conn.SetWriteDeadline(time.Now().Add(time.Second))
		_, _ = io.WriteString(header.Conn, "HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP request to an HTTPS server.\n") // it may be gone
	}
}
