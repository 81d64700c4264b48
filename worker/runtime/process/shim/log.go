package shim

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"sync"
	"time"
)

// logFile is a container's output in the format of the container runtime interface: "TIME STREAM P|F TEXT", P being a
// line that goes on in the next one, or that the container left without its end.
type logFile struct {
	mu    sync.Mutex
	dir   *os.Root
	f     *os.File
	size  int64
	limit int64
	keep  int
	buf   []byte
}

func openLog(dir *os.Root, limit int64, keep int) (*logFile, error) {
	l := &logFile{dir: dir, limit: limit, keep: max(keep, 1)}
	var err error
	if l.f, err = dir.OpenFile(LogFile, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o640); err != nil {
		return nil, fmt.Errorf("opening the log: %w", err)
	}
	return l, nil
}

// pump returns the writing end of a pipe whose other end goes to the log.
func (s *shim) pump(stream string) (*os.File, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	s.follow(r, stream)
	return w, nil
}

// follow copies a stream to the log, and to whoever is attached.
func (s *shim) follow(r *os.File, stream string) {
	s.pumps.Add(1)
	go func() {
		defer s.pumps.Done()
		defer r.Close()
		in := bufio.NewReaderSize(io.TeeReader(r, tap{&s.audience, stream}), maxLineB)
		for {
			line, err := in.ReadSlice('\n')
			if n := len(line); n > 0 {
				tag := "P" // also the last line, where it has no end
				if line[n-1] == '\n' {
					tag, line = "F", line[:n-1]
				}
				s.log.write(stream, tag, line)
			}
			if err != nil && err != bufio.ErrBufferFull {
				return
			}
		}
	}()
}

// write adds a line. A full disk loses lines, but never stops the container.
func (l *logFile) write(stream, tag string, text []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.f == nil {
		return
	}
	if l.limit > 0 && l.size >= l.limit {
		l.rotate()
	}
	b := time.Now().UTC().AppendFormat(l.buf[:0], "2006-01-02T15:04:05.000000000Z07:00")
	b = append(b, ' ')
	b = append(b, stream...)
	b = append(b, ' ')
	b = append(b, tag...)
	b = append(b, ' ')
	b = append(b, text...)
	b = append(b, '\n')
	l.buf = b
	n, _ := l.f.Write(b)
	l.size += int64(n)
}

func (l *logFile) rotate() {
	name := func(i int) string {
		if i == 0 {
			return LogFile
		}
		return fmt.Sprintf("%s.%d", LogFile, i)
	}
	_ = l.dir.Remove(name(l.keep - 1))
	for i := l.keep - 2; i >= 0; i-- {
		_ = l.dir.Rename(name(i), name(i+1))
	}
	f, err := l.dir.OpenFile(LogFile, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o640)
	if err != nil {
		return // the old one goes on growing rather than nothing being written
	}
	l.f.Close()
	l.f, l.size = f, 0
}

func (l *logFile) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.f.Close()
	l.f = nil
}
