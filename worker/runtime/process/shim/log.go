package shim

import (
	"bytes"
	"fmt"
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

// follow copies a stream to the log, and then to whoever is attached: no client keeps anything out of the log.
func (s *shim) follow(r *os.File, stream string) {
	s.pumps.Add(1)
	go func() {
		defer s.pumps.Done()
		defer r.Close()
		buf := make([]byte, maxLineB)
		for held := 0; ; { // of a line whose end has not come
			n, err := r.Read(buf[held:])
			rest := s.log.lines(stream, buf[:held+n], err != nil)
			s.audience.tell(stream, buf[held:held+n])
			if err != nil {
				return
			}
			held = copy(buf, rest)
		}
	}()
}

// lines writes the lines that there are, and returns what is left: a line whose end has not come, unless it is as long as one can be or no more
// comes of it.
func (l *logFile) lines(stream string, text []byte, last bool) (rest []byte) {
	for {
		line, after, ended := bytes.Cut(text, []byte{'\n'})
		if !ended {
			break
		}
		l.write(stream, "F", line)
		text = after
	}
	if len(text) == maxLineB || last && len(text) > 0 {
		l.write(stream, "P", text)
		return nil
	}
	return text
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

// nextLogFile is the newest file of a log before it is that.
const nextLogFile = "log-next"

// rotate begins a new file. Where none can be had the one that there is goes on growing, for as much again, and nothing goes.
func (l *logFile) rotate() {
	l.size = 0
	f, err := l.dir.OpenFile(nextLogFile, os.O_CREATE|os.O_TRUNC|os.O_WRONLY|os.O_APPEND, 0o640)
	if err != nil {
		return
	}
	name := func(i int) string {
		if i == 0 {
			return LogFile
		}
		return fmt.Sprintf("%s.%d", LogFile, i)
	}
	for i := l.keep - 2; i >= 0; i-- { // the oldest goes by that
		if err = l.dir.Rename(name(i), name(i+1)); err != nil && !os.IsNotExist(err) {
			f.Close()
			return
		}
	}
	if err := l.dir.Rename(nextLogFile, LogFile); err != nil {
		_ = l.dir.Rename(name(1), LogFile)
		f.Close()
		return
	}
	l.f.Close()
	l.f = f
}

func (l *logFile) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.f.Close()
	l.f = nil
}
