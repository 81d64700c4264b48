package apiserver

import (
	"bufio"
	"context"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"

	"k8s.io/apiserver/pkg/endpoints/responsewriter"
)

// delivery is the way of what a watch tells to its client. Upstream takes the next event when the one before is written, and nothing
// but a deadline ends a write of which the client reads nothing, whatever becomes of the watch meanwhile.
type delivery struct {
	http.ResponseWriter
	client string

	mu      sync.Mutex
	watch   context.Context // of the watch; nil: it has not begun
	writing bool
	bytes   int       // that are being written
	since   time.Time // when that began
	conn    net.Conn  // that was taken over, for a watch by a websocket
	over    bool      // the request is answered
}

// deliveries are those of all watches of a server.
type deliveries struct {
	ofClient, ofAll int // bytes that may be on their way to who does not read them
	patience        time.Duration

	mu  sync.Mutex
	all map[*delivery]struct{}
}

const (
	// maxUnreadBytes are on their way to one client, maxAllUnreadBytes to all of them, in writes of which nothing was read for
	// unreadPatience.
	maxUnreadBytes, maxAllUnreadBytes = 64 << 20, 512 << 20
	unreadPatience                    = time.Second
)

func newDeliveries() *deliveries {
	return &deliveries{ofClient: maxUnreadBytes, ofAll: maxAllUnreadBytes, patience: unreadPatience, all: map[*delivery]struct{}{}}
}

type deliveryKey struct{}

// deliveryFrom is the way of a watch's events; nil if it has none.
func deliveryFrom(ctx context.Context) *delivery {
	d, _ := ctx.Value(deliveryKey{}).(*delivery)
	return d
}

// begin is for one watch, and gives where its events are written; end has to be called when it is answered.
func (s *deliveries) begin(ctx context.Context, w http.ResponseWriter, client string) (_ context.Context, _ http.ResponseWriter, end func()) {
	d := &delivery{ResponseWriter: w, client: client}
	s.mu.Lock()
	s.all[d] = struct{}{}
	s.mu.Unlock()
	return context.WithValue(ctx, deliveryKey{}, d), responsewriter.WrapForHTTP1Or2(d), func() {
		s.mu.Lock()
		delete(s.all, d)
		s.mu.Unlock()
		d.mu.Lock()
		d.over = true
		d.mu.Unlock()
	}
}

// cutUnread ends writes that nobody reads: those of watches that have ended, and the oldest where too much is under way.
func (s *deliveries) cutUnread(now time.Time) {
	if s == nil {
		return
	}
	type unread struct {
		of    *delivery
		since time.Time
		bytes int
	}
	var waiting []unread
	all, clients := 0, map[string]int{}
	s.mu.Lock()
	for d := range s.all {
		since, bytes, ended := d.unread()
		switch {
		case since.IsZero() || now.Sub(since) < s.patience:
		case ended:
			d.cut()
		default:
			waiting = append(waiting, unread{d, since, bytes})
			all, clients[d.client] = all+bytes, clients[d.client]+bytes
		}
	}
	s.mu.Unlock()
	slices.SortFunc(waiting, func(a, b unread) int { return a.since.Compare(b.since) })
	for _, u := range waiting {
		if all <= s.ofAll && clients[u.of.client] <= s.ofClient {
			continue
		}
		u.of.cut()
		all, clients[u.of.client] = all-u.bytes, clients[u.of.client]-u.bytes
	}
}

// watching says which watch it is.
func (d *delivery) watching(ctx context.Context) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.watch = ctx
}

// unread says since when something is being written, and how much; since is zero if nothing is.
func (d *delivery) unread() (since time.Time, bytes int, ended bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.over || !d.writing {
		return time.Time{}, 0, false
	}
	return d.since, d.bytes, d.watch != nil && d.watch.Err() != nil
}

// isWriting says whether the last event that was taken is not written yet.
func (d *delivery) isWriting() bool {
	if d == nil {
		return false
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.writing
}

// cut lets the write end.
func (d *delivery) cut() {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.over:
	case d.conn != nil:
		_ = d.conn.Close() // its writer finds out
	default:
		_ = http.NewResponseController(d.ResponseWriter).SetWriteDeadline(time.Unix(1, 0)) // where there are none, nobody is waited for
	}
}

func (d *delivery) write(bytes int, write func()) {
	d.mu.Lock()
	d.writing, d.bytes, d.since = true, bytes, time.Now()
	d.mu.Unlock()
	defer func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.writing = false
	}()
	write()
}

// Unwrap is for http.ResponseController.
func (d *delivery) Unwrap() http.ResponseWriter { return d.ResponseWriter }

// Write implements http.ResponseWriter.
func (d *delivery) Write(b []byte) (n int, err error) {
	d.write(len(b), func() { n, err = d.ResponseWriter.Write(b) })
	return n, err
}

// Flush implements http.Flusher. What is short is written only here.
func (d *delivery) Flush() {
	d.write(0, func() { _ = http.NewResponseController(d.ResponseWriter).Flush() }) // the next write says what is wrong
}

// Hijack implements http.Hijacker.
func (d *delivery) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := http.NewResponseController(d.ResponseWriter).Hijack()
	if err != nil {
		return nil, nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.conn = conn
	noted := &notedConn{conn, d}
	return noted, bufio.NewReadWriter(rw.Reader, bufio.NewWriter(noted)), nil
}

type notedConn struct {
	net.Conn
	delivery *delivery
}

// Write implements net.Conn.
func (c *notedConn) Write(b []byte) (n int, err error) {
	c.delivery.write(len(b), func() { n, err = c.Conn.Write(b) })
	return n, err
}
