package sim

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"io"
	"strings"
	"sync"
	"time"
)

// begin is when every world begins, as testing/synctest has it.
var begin = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

// story is what has happened in a world: the lines that a reader wants, and the
// trace, a sum over everything, by which two runs are compared.
type story struct {
	out   io.Writer // nil: lines are kept, and told when something is wrong
	every *pages    // nil, or all that the trace is a sum of

	mu    sync.Mutex
	lines []string
	trace uint64
	sent  int
	told  int
}

// pages holds a text of any length. A world that wrote files would not repeat itself.
type pages struct{ full [][]byte }

func (p *pages) Write(b []byte) (int, error) {
	const size = 1 << 20
	if n := len(p.full); n == 0 || len(p.full[n-1])+len(b) > size {
		p.full = append(p.full, make([]byte, 0, max(size, len(b))))
	}
	last := &p.full[len(p.full)-1]
	*last = append(*last, b...)
	return len(b), nil
}

// maxLines bounds what is kept of a story.
const maxLines = 20000

// tell notes what somebody did.
func (s *story) tell(who, format string, args ...any) {
	line := fmt.Sprintf("%12.6f  %-8s %s", time.Since(begin).Seconds(), who, strings.TrimSpace(fmt.Sprintf(format, args...)))
	s.mu.Lock()
	defer s.mu.Unlock()
	s.add([]byte(line))
	s.told++
	if s.out != nil {
		fmt.Fprintln(s.out, line)
		return
	}
	if len(s.lines) >= maxLines {
		s.lines = append(s.lines[:0:0], s.lines[maxLines/2:]...)
	}
	s.lines = append(s.lines, line)
}

// send notes what went over the network.
func (s *story) send(what, from, to string, size int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sent++
	s.add(fmt.Appendf(nil, "%d %s %s %s %d", time.Since(begin), what, from, to, size))
}

// add is called with mu held.
func (s *story) add(b []byte) {
	h := fnv.New64a()
	var at [8]byte
	binary.BigEndian.PutUint64(at[:], s.trace)
	h.Write(at[:])
	h.Write(b)
	s.trace = h.Sum64()
	if s.every != nil {
		fmt.Fprintf(s.every, "%s\n", b)
	}
}

// Trace is the sum over all that has happened so far.
func (s *story) Trace() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.trace
}

// Lines are those that are kept, oldest first.
func (s *story) Lines() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lines
}

// Write takes what a server logs (io.Writer).
func (s *story) Write(b []byte) (int, error) {
	s.tell("log", "%s", b)
	return len(b), nil
}
