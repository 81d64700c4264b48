package sim

import (
	"cmp"
	"io"
	"net"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"
)

// window is how many bytes one side may send that the other has not read.
const window = 1 << 20

// conn is one end of a connection. What is written at one end comes out at the
// other, in order, later, and not at all while the link is cut.
type conn struct {
	host          *host
	number        uint64
	local, remote net.Addr
	other         *conn

	mu      sync.Mutex
	arrived []segment // in order
	last    time.Time // when the last of them is there
	unread  int       // bytes on the way here
	err     error     // what reading ends with when all is read
	broken  error     // what everything ends with
	closed  bool
	signal  chan struct{} // closed when something of the above changed; nil: nobody waits for that

	readBy, writeBy deadline
}

type segment struct {
	bytes []byte
	at    time.Time
}

// pair makes a connection. It is called with net.mu held.
func (n *network) pair(from, to *host, port int) (here, there *conn) {
	number := n.rand.Uint64()
	here = &conn{host: from, number: number, local: tcpAddr(from.ip, 30000+int(number%30000)), remote: tcpAddr(to.ip, port)}
	there = &conn{host: to, number: number + 1, local: here.remote, remote: here.local}
	here.other, there.other = there, here
	here.readBy.changed, here.writeBy.changed = here.wake, here.wake
	there.readBy.changed, there.writeBy.changed = there.wake, there.wake
	n.conns[here], n.conns[there] = struct{}{}, struct{}{}
	return here, there
}

func sortConns(cs []*conn) {
	slices.SortFunc(cs, func(a, b *conn) int { return cmp.Compare(a.number, b.number) })
}

func sortLinks(ls [][2]string) {
	slices.SortFunc(ls, func(a, b [2]string) int { return slices.Compare(a[:], b[:]) })
}

// changedLocked wakes whoever waits at this end. It is called with mu held.
func (c *conn) changedLocked() {
	if c.signal != nil {
		close(c.signal)
		c.signal = nil
	}
}

// waitLocked is what is closed when something changes at this end. It is called with mu held.
func (c *conn) waitLocked() <-chan struct{} {
	if c.signal == nil {
		c.signal = make(chan struct{})
	}
	return c.signal
}

func (c *conn) wake() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.changedLocked()
}

// fail breaks this end.
func (c *conn) fail(err error) {
	c.forget()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.broken == nil {
		c.broken = err
		c.changedLocked()
	}
}

func (c *conn) forget() {
	c.host.net.mu.Lock()
	delete(c.host.net.conns, c)
	c.host.net.mu.Unlock()
}

func (c *conn) opError(op string, err error) error {
	return &net.OpError{Op: op, Net: "tcp", Source: c.local, Addr: c.remote, Err: err}
}

// Read implements net.Conn.
func (c *conn) Read(b []byte) (int, error) {
	for {
		c.mu.Lock()
		switch {
		case c.closed:
			c.mu.Unlock()
			return 0, c.opError("read", net.ErrClosed)
		case c.readBy.passed():
			c.mu.Unlock()
			return 0, c.opError("read", os.ErrDeadlineExceeded)
		case len(c.arrived) > 0 && c.broken == nil:
			if at := c.arrived[0].at; time.Now().Before(at) {
				signal := c.waitLocked()
				c.mu.Unlock()
				c.readBy.waitUntil(signal, at)
				continue
			}
			n := copy(b, c.arrived[0].bytes)
			if c.arrived[0].bytes = c.arrived[0].bytes[n:]; len(c.arrived[0].bytes) == 0 {
				c.arrived = c.arrived[1:]
			}
			full := c.unread >= window
			c.unread -= n
			c.mu.Unlock()
			if full {
				c.other.wake()
			}
			return n, nil
		case c.broken != nil:
			err := c.broken
			c.mu.Unlock()
			return 0, c.opError("read", err)
		case c.err != nil:
			err := c.err
			c.mu.Unlock()
			return 0, err
		}
		signal := c.waitLocked()
		c.mu.Unlock()
		c.readBy.wait(signal)
	}
}

// Write implements net.Conn.
func (c *conn) Write(b []byte) (int, error) {
	if len(b) == 0 {
		return 0, nil
	}
	for first := true; ; first = false {
		c.mu.Lock()
		var err error
		switch {
		case c.closed:
			err = net.ErrClosed
		case c.broken != nil:
			err = c.broken
		case c.writeBy.passed():
			err = os.ErrDeadlineExceeded
		}
		var signal <-chan struct{}
		if !first {
			signal = c.waitLocked()
		}
		c.mu.Unlock()
		switch {
		case err != nil:
			return 0, c.opError("write", err)
		case c.other.send(b):
			return len(b), nil
		case !first:
			c.writeBy.wait(signal)
		}
	}
}

// send puts bytes on their way to this end, unless too many are.
func (c *conn) send(b []byte) bool {
	c.mu.Lock()
	room := c.unread < window
	if room {
		c.unread += len(b)
	}
	c.mu.Unlock()
	if room {
		c.transmit(slices.Clone(b), nil)
	}
	return room
}

// transmit lets bytes, or the end of the stream, arrive here after all that was
// sent before.
func (c *conn) transmit(b []byte, end error) {
	n, from, to := c.host.net, c.other.host.ip, c.host.ip
	n.mu.Lock()
	defer n.mu.Unlock()
	n.story.send("segment", from, to, len(b))
	key, l := [2]string{from, to}, n.of(from, to)
	if l.cut {
		n.held[key] = append(n.held[key], func(late time.Duration) { c.arrive(b, end, late) })
		return
	}
	c.arrive(b, end, n.late(l))
}

func (c *conn) arrive(b []byte, end error, late time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	at := time.Now().Add(late)
	if at.Before(c.last) {
		at = c.last
	}
	c.last = at
	if end == nil {
		c.arrived = append(c.arrived, segment{b, at})
	} else {
		time.AfterFunc(time.Until(at), func() {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.err = end
			c.changedLocked()
		})
	}
	c.changedLocked()
}

// Close implements net.Conn.
func (c *conn) Close() error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return c.opError("close", net.ErrClosed)
	}
	c.closed = true
	c.changedLocked()
	broken := c.broken != nil
	c.mu.Unlock()
	c.forget()
	if !broken {
		c.other.transmit(nil, io.EOF)
		// Whoever writes to it later is told that nobody is there.
		n := c.host.net
		n.after(c.host.ip, c.other.host.ip, func() {
			time.AfterFunc(time.Millisecond, func() { c.other.hangUp() })
		})
	}
	return nil
}

// hangUp: the other end was closed; writing fails, and what has come may be read.
func (c *conn) hangUp() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.arrived) == 0 && c.broken == nil {
		c.broken = syscall.ECONNRESET
		if c.err != nil {
			c.broken = c.err
		}
		c.changedLocked()
	}
}

// LocalAddr implements net.Conn.
func (c *conn) LocalAddr() net.Addr { return c.local }

// RemoteAddr implements net.Conn.
func (c *conn) RemoteAddr() net.Addr { return c.remote }

// SetDeadline implements net.Conn.
func (c *conn) SetDeadline(t time.Time) error {
	c.readBy.set(t)
	c.writeBy.set(t)
	return nil
}

// SetReadDeadline implements net.Conn.
func (c *conn) SetReadDeadline(t time.Time) error { c.readBy.set(t); return nil }

// SetWriteDeadline implements net.Conn.
func (c *conn) SetWriteDeadline(t time.Time) error { c.writeBy.set(t); return nil }

// deadline is until when one may wait.
type deadline struct {
	mu      sync.Mutex
	at      time.Time
	changed func()
}

func (d *deadline) set(t time.Time) {
	d.mu.Lock()
	d.at = t
	d.mu.Unlock()
	d.changed()
}

func (d *deadline) get() time.Time {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.at
}

func (d *deadline) passed() bool {
	at := d.get()
	return !at.IsZero() && !time.Now().Before(at)
}

// wait returns when the signal comes, or the time has passed.
func (d *deadline) wait(signal <-chan struct{}) {
	if at := d.get(); at.IsZero() {
		<-signal
	} else {
		d.waitUntil(signal, at)
	}
}

// waitUntil is wait for somebody who has something to do at a time, too.
func (d *deadline) waitUntil(signal <-chan struct{}, at time.Time) {
	if by := d.get(); !by.IsZero() && by.Before(at) {
		at = by
	}
	t := time.NewTimer(time.Until(at))
	defer t.Stop()
	select {
	case <-signal:
	case <-t.C:
	}
}
