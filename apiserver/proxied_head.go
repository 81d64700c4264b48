package apiserver

import (
	"bufio"
	"context"
	"errors"
	"net"
	"net/http"
	"sync/atomic"
)

// proxiedHead bounds the head of the answer by which a connection is taken over for a pod, or for a server of others': upstream reads
// that into memory, however long it is. It is over when the connection of whoever asks is taken over.
type proxiedHead struct {
	left int64 // bytes; who reads has it
	over atomic.Bool
}

// proxyHeadBytes bounds the head of what a pod, or a server of others', answers, with what TLS adds to it.
const proxyHeadBytes = 1 << 20

var errLongHead = errors.New("the head of the answer is too long")

// boundHead bounds the head of the answer that comes over a transport, which is of one request, and gives where the answer goes.
func boundHead(t *http.Transport, w http.ResponseWriter) http.ResponseWriter {
	head, dial := &proxiedHead{left: proxyHeadBytes}, t.DialContext
	t.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return &headConn{conn, head}, nil
	}
	return &headWriter{w, head}
}

type headConn struct {
	net.Conn
	head *proxiedHead
}

// Read implements net.Conn.
func (c *headConn) Read(b []byte) (int, error) {
	if c.head.over.Load() {
		return c.Conn.Read(b)
	}
	if c.head.left <= 0 {
		return 0, errLongHead
	}
	n, err := c.Conn.Read(b[:min(int64(len(b)), c.head.left)])
	c.head.left -= int64(n)
	return n, err
}

type headWriter struct {
	http.ResponseWriter
	head *proxiedHead
}

// Unwrap is for http.ResponseController.
func (w *headWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// Hijack implements http.Hijacker.
func (w *headWriter) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	w.head.over.Store(true)
	return http.NewResponseController(w.ResponseWriter).Hijack()
}
