// Package logfile reads what containers wrote: files in the format of the container runtime interface, one line "TIME
// STREAM P|F TEXT" a line of the container's, P being one that goes on in the next. The newest file has a name, NAME, and
// older ones are NAME.1, NAME.2, …; whoever writes renames them. It must never write.
package logfile

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/berth-dev/berth/worker/runtime"
)

const (
	// followInterval is how often a log that is followed is looked at for more.
	followInterval = 100 * time.Millisecond

	maxLineBytes          = 64 << 10
	tailChunkBytes        = 32 << 10
	timestampEnd          = ' '
	streamAll, streamNone = "All", ""
)

// Name is what the i-th newest file of a log is called.
func Name(path string, i int) string {
	if i == 0 {
		return path
	}
	return fmt.Sprintf("%s.%d", path, i)
}

// Open returns what was written to the log whose newest file is path. alive says whether more may come; it is asked at the
// end of a log that is followed. The error satisfies os.IsNotExist where there is no log.
func Open(ctx context.Context, path string, opts runtime.LogOptions, alive func() (bool, error)) (io.ReadCloser, error) {
	l := &reader{ctx: ctx, path: path, opts: opts, alive: alive, lineStart: true, limit: -1}
	if opts.LimitBytes != nil {
		l.limit = *opts.LimitBytes
	}
	files, err := openFiles(path)
	if err != nil {
		return nil, err
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("log %s: %w", path, os.ErrNotExist)
	}
	l.files = files
	if opts.TailLines != nil {
		if err := l.seekTail(max(*opts.TailLines, 0)); err != nil {
			l.Close()
			return nil, err
		}
	}
	l.in = bufio.NewReaderSize(l.files[0], maxLineBytes)
	return l, nil
}

// openFiles opens a container's log files, the oldest first. They are opened from the newest on: one that is renamed
// meanwhile is met twice, and none is missed.
func openFiles(path string) ([]*os.File, error) {
	var newestFirst []*os.File
	for i := 0; ; i++ {
		f, err := os.Open(Name(path, i))
		if err != nil {
			if os.IsNotExist(err) && (i > 0 || len(newestFirst) == 0) {
				break
			}
			closeAll(newestFirst)
			return nil, fmt.Errorf("opening a log: %w", err)
		}
		if n := len(newestFirst); n > 0 && sameFile(newestFirst[n-1], f) {
			f.Close()
			continue
		}
		newestFirst = append(newestFirst, f)
	}
	out := make([]*os.File, len(newestFirst))
	for i, f := range newestFirst {
		out[len(out)-1-i] = f
	}
	return out, nil
}

func closeAll(files []*os.File) {
	for _, f := range files {
		f.Close()
	}
}

func sameFile(a, b *os.File) bool {
	x, err1 := a.Stat()
	y, err2 := b.Stat()
	return err1 == nil && err2 == nil && os.SameFile(x, y)
}

// reader reads a container's log files one after the other and gives out the container's text.
type reader struct {
	ctx       context.Context
	path      string
	alive     func() (bool, error)
	opts      runtime.LogOptions
	files     []*os.File // the one that is read, and newer ones
	in        *bufio.Reader
	part      []byte // of a line that is not complete yet
	out       bytes.Buffer
	limit     int64 // bytes that may still go out; negative: any number
	lineStart bool
	ended     bool // the container has ended and nothing will be added
	err       error
}

// Close implements io.Closer.
func (l *reader) Close() error {
	closeAll(l.files)
	l.files = nil
	l.err = os.ErrClosed
	return nil
}

// Read implements io.Reader.
func (l *reader) Read(p []byte) (int, error) {
	for l.out.Len() == 0 {
		if l.err != nil {
			return 0, l.err
		}
		if l.limit == 0 {
			return 0, io.EOF
		}
		l.err = l.next()
	}
	return l.out.Read(p)
}

// next reads one line, or goes on to the next file, or waits for more.
func (l *reader) next() error {
	line, err := l.in.ReadSlice('\n')
	l.part = append(l.part, line...)
	switch {
	case err == nil:
		l.line(bytes.TrimSuffix(l.part, []byte{'\n'}))
		l.part = l.part[:0]
		return nil
	case errors.Is(err, bufio.ErrBufferFull):
		return nil
	case !errors.Is(err, io.EOF):
		return err
	case len(l.files) > 1:
		l.files[0].Close()
		l.files = l.files[1:]
		l.in.Reset(l.files[0])
		l.part = l.part[:0]
		return nil
	case !l.opts.Follow || l.ended:
		return io.EOF
	}
	return l.await()
}

// await is at the end of the newest file: something may be added, the file may be rotated, the container may end.
func (l *reader) await() error {
	newer, err := l.rotated()
	if err != nil {
		return err
	}
	if len(newer) > 0 {
		l.files = append(l.files, newer...) // what came before the rotation is read first
		return nil
	}
	alive, err := l.alive()
	if err != nil {
		return err
	}
	if !alive {
		l.ended = true // and once more to the end of the file
		return nil
	}
	timer := time.NewTimer(followInterval)
	defer timer.Stop()
	select {
	case <-l.ctx.Done():
		return io.EOF
	case <-timer.C:
		return nil
	}
}

// rotated returns the files that are newer than the one being read, oldest first.
func (l *reader) rotated() ([]*os.File, error) {
	all, err := openFiles(l.path)
	if err != nil {
		return nil, err
	}
	for i, f := range all {
		if sameFile(f, l.files[0]) {
			closeAll(all[:i+1])
			return all[i+1:], nil
		}
	}
	return all, nil // so much was written that the file is gone already
}

// line takes one line of a log file: "TIME STREAM TAG TEXT".
func (l *reader) line(b []byte) {
	stamp, rest, ok1 := bytes.Cut(b, []byte{timestampEnd})
	stream, rest, ok2 := bytes.Cut(rest, []byte{' '})
	tag, text, ok3 := bytes.Cut(rest, []byte{' '})
	if !ok1 || !ok2 || !ok3 {
		return // torn by a full disk
	}
	if s := l.opts.Stream; s != streamAll && s != streamNone && !strings.EqualFold(s, string(stream)) {
		return
	}
	if !l.opts.Since.IsZero() {
		t, err := time.Parse(time.RFC3339Nano, string(stamp))
		if err != nil || t.Before(l.opts.Since) {
			return
		}
	}
	if l.opts.Timestamps && l.lineStart {
		l.emit(stamp)
		l.emit([]byte{' '})
	}
	l.emit(text)
	l.lineStart = string(tag) == "F"
	if l.lineStart {
		l.emit([]byte{'\n'})
	}
}

func (l *reader) emit(b []byte) {
	if l.limit >= 0 {
		b = b[:min(int64(len(b)), l.limit)]
		l.limit -= int64(len(b))
	}
	l.out.Write(b)
}

// seekTail moves to the n-th last line over all files.
func (l *reader) seekTail(n int64) error {
	for i := len(l.files) - 1; i >= 0; i-- {
		at, lines, err := tailStart(l.files[i], n)
		if err != nil {
			return err
		}
		n -= lines
		if _, err := l.files[i].Seek(at, io.SeekStart); err != nil {
			return err
		}
		if n == 0 {
			closeAll(l.files[:i])
			l.files = l.files[i:]
			return nil
		}
	}
	return nil
}

// tailStart finds where the last n lines of a file begin, and how many it has of them.
func tailStart(f *os.File, n int64) (at, lines int64, err error) {
	end, err := f.Seek(0, io.SeekEnd)
	if err != nil || n == 0 {
		return end, 0, err
	}
	buf := make([]byte, tailChunkBytes)
	for pos := end; pos > 0; {
		size := min(pos, int64(len(buf)))
		pos -= size
		if _, err := f.ReadAt(buf[:size], pos); err != nil {
			return 0, 0, err
		}
		for i := size - 1; i >= 0; i-- {
			if buf[i] != '\n' || pos+i == end-1 {
				continue
			}
			if lines++; lines == n {
				return pos + i + 1, lines, nil
			}
		}
	}
	if end > 0 {
		lines++
	}
	return 0, lines, nil
}
