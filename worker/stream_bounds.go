package worker

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"net"
	"strings"
	"sync"
	"time"
)

// How long somebody may stay in a pod by default: without a word, and at all.
const (
	DefaultStreamIdle = 4 * time.Hour
	DefaultStreamMax  = 24 * time.Hour
)

// StreamBounds are how long somebody may stay in a pod. Where one is 0 the default counts.
type StreamBounds struct {
	// Idle is how long nothing may be said either way. That both ends are there, which clients and servers tell each other all the time, counts for nothing.
	Idle time.Duration
	// Max is how long a stream may be open.
	Max time.Duration
}

// bounded is a connection to a client that is closed when its time is over.
type bounded struct {
	net.Conn
	idle     time.Duration
	timer    *time.Timer // until it has been idle for too long
	mu       sync.Mutex
	from, to speech // the client says, and is told
}

// endGrace is how long it takes at most to tell a client that its time is over.
const endGrace = 3 * time.Second

// bind bounds a connection. ended is called at most once, with what its time was, endGrace before it is closed by that. over has to be called when the connection is
// over by itself.
func (b StreamBounds) bind(conn net.Conn, ended func(why string, after time.Duration)) (c *bounded, over func()) {
	idle, most := cmp.Or(b.Idle, DefaultStreamIdle), cmp.Or(b.Max, DefaultStreamMax)
	var once sync.Once
	end := func(why string, after time.Duration) func() {
		return func() {
			once.Do(func() {
				ended(why, after)
				time.AfterFunc(endGrace, func() { _ = conn.Close() }) // whoever reads or writes it finds it closed
			})
		}
	}
	c = &bounded{Conn: conn, idle: idle, timer: time.AfterFunc(idle, end("nothing was said", idle))}
	whole := time.AfterFunc(most, end("it was open", most))
	return c, func() {
		once.Do(func() {})
		c.timer.Stop()
		whole.Stop()
	}
}

// Read implements net.Conn.
func (c *bounded) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.heard(&c.from, b[:n])
	return n, err
}

// Write implements net.Conn.
func (c *bounded) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	c.heard(&c.to, b[:n])
	return n, err
}

func (c *bounded) heard(s *speech, b []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if s.said(b) {
		c.timer.Reset(c.idle)
	}
}

// maxHeadLine is how much of a line of HTTP's is kept: enough for what says which protocol it goes on with.
const maxHeadLine = 256

// speech is one direction of a connection that begins with HTTP's head and goes on with frames of SPDY or WebSocket, if the head says so.
type speech struct {
	// head is what has come of a line, or of a frame's own.
	head []byte
	// frame reads the head of a frame: how long it is, as far as what has come of it tells, and, when it is whole, how many bytes follow and whether they are more than
	// a sign of life; nil: HTTP's head is not over.
	frame  func(head []byte) (size int, length uint64, says bool)
	next   func(head []byte) (size int, length uint64, says bool)
	plain  bool   // what comes is in no frames
	length uint64 // of the frame's bytes that are to come
	says   bool   // and what they are
}

// said takes what came, and says whether somebody said something by it.
func (s *speech) said(b []byte) (said bool) {
	for len(b) > 0 {
		switch {
		case s.plain:
			return true
		case s.length > 0:
			n := min(s.length, uint64(len(b)))
			s.length -= n
			b = b[n:]
			said = said || s.says
		case s.frame == nil:
			said = true
			s.headed(b[0])
			b = b[1:]
		default:
			s.head = append(s.head, b[0])
			b = b[1:]
			if size, length, says := s.frame(s.head); len(s.head) == size {
				s.length, s.says, s.head = length, says, s.head[:0]
				said = said || says
			}
		}
	}
	return said
}

// headed takes a byte of HTTP's head.
func (s *speech) headed(b byte) {
	if b != '\n' {
		if len(s.head) < maxHeadLine {
			s.head = append(s.head, b)
		}
		return
	}
	line := strings.TrimSpace(string(s.head))
	s.head = s.head[:0]
	if line == "" {
		s.frame, s.plain = s.next, s.next == nil
		return
	}
	if name, protocol, _ := strings.Cut(line, ":"); strings.EqualFold(name, "Upgrade") {
		switch strings.ToLower(strings.TrimSpace(protocol)) {
		case "websocket":
			s.next = webSocketFrame
		case "spdy/3.1":
			s.next = spdyFrame
		}
	}
}

// spdyFrame: a ping is a sign of life.
func spdyFrame(head []byte) (size int, length uint64, says bool) {
	const whole, control, ping = 8, 0x80, 6
	if len(head) < whole {
		return whole, 0, false
	}
	length = uint64(head[5])<<16 | uint64(head[6])<<8 | uint64(head[7])
	return whole, length, head[0]&control == 0 || !bytes.Equal(head[2:4], []byte{0, ping})
}

// webSocketFrame: pings and pongs are signs of life.
func webSocketFrame(head []byte) (size int, length uint64, says bool) {
	const masked, ping, pong = 0x80, 9, 10
	if size = 2; len(head) < size {
		return size, 0, false
	}
	length = uint64(head[1] &^ masked)
	wide := 0 // bytes of a length that does not fit there
	switch length {
	case 126:
		wide = 2
	case 127:
		wide = 8
	}
	if size += wide; head[1]&masked != 0 {
		size += 4
	}
	if len(head) < size {
		return size, 0, false
	}
	if wide > 0 {
		length = binary.BigEndian.Uint64(append(make([]byte, 8-wide, 8), head[2:2+wide]...))
	}
	op := head[0] & 0x0f
	return size, length, op != ping && op != pong
}
