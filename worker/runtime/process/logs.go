package process

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/worker/runtime"
	"github.com/berth-dev/berth/worker/runtime/process/shim"
)

const (
	// followInterval is how often a log that is followed is looked at for more.
	followInterval = 100 * time.Millisecond
	// Bounds of termination messages, Kubernetes' own.
	maxTerminationBytes   = 4096
	fallbackMessageBytes  = 2048
	fallbackMessageLines  = 80
	maxLineBytes          = 64 << 10
	tailChunkBytes        = 32 << 10
	timestampEnd          = ' '
	streamAll, streamNone = "All", ""
)

// Logs implements runtime.Runtime.
func (r *Runtime) Logs(ctx context.Context, id runtime.ID, opts runtime.LogOptions) (io.ReadCloser, error) {
	dir := r.dir(id)
	l := &logReader{ctx: ctx, dir: dir, opts: opts, lineStart: true, limit: -1}
	if opts.LimitBytes != nil {
		l.limit = *opts.LimitBytes
	}
	files, err := openLogs(dir)
	if err != nil {
		return nil, err
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("logs of container %s: %w", id, runtime.ErrNotFound)
	}
	l.files = files
	if opts.TailLines != nil {
		if err := l.seekTail(max(*opts.TailLines, 0)); err != nil {
			l.Close()
			return nil, fmt.Errorf("logs of container %s: %w", id, err)
		}
	}
	l.in = bufio.NewReaderSize(l.files[0], maxLineBytes)
	return l, nil
}

func logName(i int) string {
	if i == 0 {
		return shim.LogFile
	}
	return fmt.Sprintf("%s.%d", shim.LogFile, i)
}

// openLogs opens a container's log files, the oldest first. They are opened from the newest on: one that is renamed
// meanwhile is met twice, and none is missed.
func openLogs(dir string) ([]*os.File, error) {
	var newestFirst []*os.File
	for i := 0; ; i++ {
		f, err := os.Open(filepath.Join(dir, logName(i)))
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

// logReader reads a container's log files one after the other and gives out the container's text.
type logReader struct {
	ctx       context.Context
	dir       string
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
func (l *logReader) Close() error {
	closeAll(l.files)
	l.files = nil
	l.err = os.ErrClosed
	return nil
}

// Read implements io.Reader.
func (l *logReader) Read(p []byte) (int, error) {
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
func (l *logReader) next() error {
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
func (l *logReader) await() error {
	newer, err := l.rotated()
	if err != nil {
		return err
	}
	if len(newer) > 0 {
		l.files = append(l.files, newer...) // what came before the rotation is read first
		return nil
	}
	alive, err := locked(l.dir)
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
func (l *logReader) rotated() ([]*os.File, error) {
	all, err := openLogs(l.dir)
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
func (l *logReader) line(b []byte) {
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

func (l *logReader) emit(b []byte) {
	if l.limit >= 0 {
		b = b[:min(int64(len(b)), l.limit)]
		l.limit -= int64(len(b))
	}
	l.out.Write(b)
}

// seekTail moves to the n-th last line over all files.
func (l *logReader) seekTail(n int64) error {
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

// terminationMessage is what the container left as its last word: the file that it was given for that, or, where its
// spec says so and it failed, the end of its log.
func (r *Runtime) terminationMessage(id runtime.ID, failed bool) string {
	dir := r.dir(id)
	if f, err := os.Open(filepath.Join(dir, shim.TerminationFile)); err == nil {
		defer f.Close()
		if b, err := io.ReadAll(io.LimitReader(f, maxTerminationBytes)); err == nil && len(b) > 0 {
			return strings.ToValidUTF8(string(b), "\uFFFD")
		}
	}
	if !failed || r.terminationPolicy(id) != corev1.TerminationMessageFallbackToLogsOnError {
		return ""
	}
	lines := int64(fallbackMessageLines)
	rc, err := r.Logs(context.Background(), id, runtime.LogOptions{TailLines: &lines})
	if err != nil {
		return ""
	}
	defer rc.Close()
	b, err := io.ReadAll(rc)
	if err != nil {
		return ""
	}
	if len(b) > fallbackMessageBytes {
		b = b[len(b)-fallbackMessageBytes:]
	}
	return strings.ToValidUTF8(string(b), "\uFFFD")
}

func (r *Runtime) terminationPolicy(id runtime.ID) corev1.TerminationMessagePolicy {
	pod, err := r.readRecord(id.Pod)
	if err != nil {
		return ""
	}
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			if list[i].Name == id.Container {
				return list[i].TerminationMessagePolicy
			}
		}
	}
	return ""
}
