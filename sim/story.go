package sim

import (
	"fmt"
	"io"
	"runtime"
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
	// stood is where every goroutine was when something was wrong.
	stood []byte

	// endless is told, once, of a world that does ever more at one moment.
	endless func(last string)
	at      time.Time // the moment of the last line
	atOnce  int       // lines of that moment
}

// mostAtOnce is how many lines one moment may have: a world has some thousands a minute.
const mostAtOnce = 50000

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
	if now := time.Now(); now.Equal(s.at) {
		s.atOnce++
	} else {
		s.at, s.atOnce = now, 0
	}
	if s.atOnce == mostAtOnce && s.endless != nil {
		s.endless(line)
	}
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
	at := time.Since(begin)
	s.mu.Lock()
	defer s.mu.Unlock()
	// There are very many: they are not formatted for nobody.
	s.mixNumber(uint64(at))
	s.mixNumber(uint64(size))
	for _, text := range [...]string{what, from, to} {
		s.mixText(text)
	}
	if s.every != nil {
		fmt.Fprintf(s.every, "%d %s %s %s %d\n", at, what, from, to, size)
	}
}

// change notes a change that a server has shown.
func (s *story) change(server string, revision int64, c *change) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mixText(server)
	s.mixNumber(uint64(revision))
	s.mixNumber(c.sum) // of what it says
	if s.every != nil {
		fmt.Fprintf(s.every, "%s %d %s %x\n", server, revision, c.what, c.sum)
	}
}

// add is called with mu held.
func (s *story) add(b []byte) {
	for _, c := range b {
		s.mix(c)
	}
	if s.every != nil {
		fmt.Fprintf(s.every, "%s\n", b)
	}
}

func (s *story) mixText(text string) {
	for i := range len(text) {
		s.mix(text[i])
	}
}

func (s *story) mixNumber(n uint64) {
	for ; n > 0; n >>= 8 {
		s.mix(byte(n))
	}
}

// mix takes a byte into the trace (FNV-1a).
func (s *story) mix(b byte) { s.trace = (s.trace ^ uint64(b)) * 0x100000001b3 }

// maxStood bounds what is kept of where goroutines were.
const maxStood = 32 << 20

// hold notes where every goroutine is.
func (s *story) hold() {
	b := make([]byte, maxStood)
	b = b[:runtime.Stack(b, true)]
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stood = b
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
