package shim

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// patience is how long the container waits for a client that takes nothing of what it writes. Then the client is left out. So long its shim waits,
	// when it has ended, for clients to take what is left.
	patience = 5 * time.Second
	// mostLeft is what is kept for a client then: more than the pieces and the pipes' worth that a container can leave. Others may go on writing.
	mostLeft = 1 << 20
	// tick is how often whoever waits for a client, or for the container to read a client's words, looks whether it still has to.
	tick = 200 * time.Millisecond
)

// audience are the clients that get what the container writes. The zero value is one without any.
type audience struct {
	mu    sync.Mutex
	seats map[*seat]bool
	over  bool // nothing more comes
	// ended: the container has. Its log waits for nobody any more: what clients do not take at once is kept for them.
	ended atomic.Bool
}

// seat is one client.
type seat struct {
	out, errs *os.File      // nil: it does not want that
	left      chan struct{} // closed when it gets nothing more
	slow      bool          // since it took nothing for too long
	kept      []piece       // what it is still to get
	keptBytes int
}

// piece is a part of an output, on its way to a client.
type piece struct {
	to *os.File
	b  []byte
}

// keep has a client get something later. Pieces of one output that follow each other are one: however small they are, they take no more room
// than what is in them.
func (c *seat) keep(to *os.File, b []byte) {
	c.keptBytes += len(b)
	if n := len(c.kept); n > 0 && c.kept[n-1].to == to {
		c.kept[n-1].b = append(c.kept[n-1].b, b...)
		return
	}
	c.kept = append(c.kept, piece{to, bytes.Clone(b)})
}

// join adds a client; false: nothing more comes.
func (a *audience) join(c *seat) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.over {
		return false
	}
	if a.seats == nil {
		a.seats = map[*seat]bool{}
	}
	a.seats[c] = true
	return true
}

// leave ends what a client gets. It may have been ended already.
func (a *audience) leave(c *seat) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.drop(c)
}

func (a *audience) drop(c *seat) {
	if !a.seats[c] {
		return
	}
	delete(a.seats, c)
	for _, f := range []*os.File{c.out, c.errs} {
		if f != nil {
			f.Close()
		}
	}
	close(c.left)
}

// hurry: the container has ended. Its log does not wait for a client to take what is left.
func (a *audience) hurry() { a.ended.Store(true) }

// end gives all clients what is left, as far as they take it, and tells them that nothing more comes.
func (a *audience) end() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.over = true
	until := time.Now().Add(patience)
	var giving sync.WaitGroup
	for c := range a.seats {
		giving.Go(func() {
			for _, p := range c.kept {
				err := p.to.SetWriteDeadline(until)
				if err == nil {
					_, err = p.to.Write(p.b)
				}
				if err != nil {
					c.slow = errors.Is(err, os.ErrDeadlineExceeded)
					return
				}
			}
		})
	}
	giving.Wait()
	for c := range a.seats {
		a.drop(c)
	}
}

// tell gives a piece of an output to whoever wants it.
func (a *audience) tell(stream string, b []byte) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for c := range a.seats {
		to := c.out
		if stream == "stderr" {
			to = c.errs
		}
		if to == nil {
			continue
		}
		rest, err := a.write(to, b)
		slow := errors.Is(err, os.ErrDeadlineExceeded)
		if slow && a.ended.Load() && c.keptBytes+len(rest) <= mostLeft {
			c.keep(to, rest)
		} else if err != nil {
			c.slow = slow
			a.drop(c)
		}
	}
}

// write writes for as long as somebody reads, and the container goes on. With os.ErrDeadlineExceeded it returns what was not taken.
func (a *audience) write(to *os.File, b []byte) (rest []byte, err error) {
	for waited := time.Duration(0); ; waited += tick {
		if a.ended.Load() {
			return b, os.ErrDeadlineExceeded
		}
		if err := to.SetWriteDeadline(time.Now().Add(tick)); err != nil {
			return b, err
		}
		n, err := to.Write(b)
		if n > 0 {
			b, waited = b[n:], 0
		}
		if err == nil || !errors.Is(err, os.ErrDeadlineExceeded) || waited >= patience {
			return b, err
		}
	}
}

// input is what the container reads, where its spec says that it has one.
type input struct {
	mu   sync.Mutex
	to   *os.File // nil: it reads nothing, or not any more
	once bool     // the first client's end is its end
}

// take gives the container what a client says, until the client has said all or has gone.
func (i *input) take(from *os.File, gone <-chan struct{}) {
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		if !i.write(buf[:n], gone) || err != nil {
			break
		}
	}
	if i.once {
		i.close()
	}
}

func (i *input) write(b []byte, gone <-chan struct{}) bool {
	for len(b) > 0 {
		n, err := i.writeSome(b)
		if b = b[n:]; err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			return false
		}
		select {
		case <-gone:
			return false
		default:
		}
	}
	return true
}

func (i *input) writeSome(b []byte) (int, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.to == nil {
		return 0, os.ErrClosed
	}
	if err := i.to.SetWriteDeadline(time.Now().Add(tick)); err != nil {
		return 0, err
	}
	return i.to.Write(b)
}

func (i *input) close() {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.to != nil {
		i.to.Close()
		i.to = nil
	}
}

// attach joins a client with what the container reads and writes, by pipes that the agent made. What comes after the
// request are sizes of the client's terminal.
func (s *shim) attach(rest *json.Decoder, req Request, files []*os.File) Answer {
	var c child
	req.TTY = false // a terminal's stream is a pipe here, too
	if err := c.take(&req, files); err != nil {
		return Answer{Error: err.Error()}
	}
	client := &seat{left: make(chan struct{})}
	var in *os.File
	for _, f := range []struct {
		from *os.File
		to   **os.File
	}{{c.in, &in}, {c.out, &client.out}, {c.errs, &client.errs}} {
		if f.from == nil {
			continue
		}
		var err error
		*f.to, err = pollable(f.from)
		f.from.Close()
		if err != nil {
			return Answer{Error: err.Error()}
		}
	}
	if in != nil {
		defer in.Close() // and with it ends what is taken from it
	}
	if !s.audience.join(client) {
		return Answer{Error: "the container has ended", NotFound: true}
	}
	defer s.audience.leave(client)
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		for {
			var size Size
			if rest.Decode(&size) != nil {
				return
			}
			if s.terminal != nil {
				_ = SetSize(s.terminal, size)
			}
		}
	}()
	fed := make(chan struct{})
	if in != nil {
		go func() {
			s.input.take(in, gone)
			if client.out == nil && client.errs == nil {
				close(fed) // it came to say something, and has
			}
		}()
	}
	select {
	case <-gone:
	case <-fed:
	case <-client.left:
		if client.slow {
			return Answer{Error: "the client took nothing, or too little, of what the container wrote for " + patience.String()}
		}
	}
	return Answer{}
}
