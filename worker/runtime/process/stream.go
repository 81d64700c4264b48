package process

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/cri-streaming/pkg/streaming/portforward"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
	utilexec "k8s.io/utils/exec"

	"github.com/berth-dev/berth/worker/runtime"
	"github.com/berth-dev/berth/worker/runtime/process/shim"
)

const (
	// quiet is how long nothing comes from a command that has ended until nothing is expected any more: what it left
	// running may hold its output open.
	quiet = 200 * time.Millisecond
	// maxForwards bounds the connections that one client has forwarded at a time.
	maxForwards = 256
)

var _ runtime.Streamer = (*Runtime)(nil)

// ExecStream implements runtime.Streamer.
func (r *Runtime) ExecStream(_ context.Context, id runtime.ID, o runtime.StreamOptions) (http.Handler, error) {
	if _, err := r.find(id); err != nil {
		return nil, err
	}
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		remotecommand.ServeExec(w, req, &execution{dir: r.dir(id), o: o}, "", string(id.Pod), id.Container, o.Command,
			&remotecommand.Options{Stdin: o.Stdin, Stdout: o.Stdout, Stderr: o.Stderr, TTY: o.TTY},
			runtime.StreamIdle, runtime.StreamSetup, remotecommand.SupportedStreamingProtocols)
	}), nil
}

// AttachStream implements runtime.Streamer.
func (r *Runtime) AttachStream(_ context.Context, id runtime.ID, o runtime.StreamOptions) (http.Handler, error) {
	if _, err := r.find(id); err != nil {
		return nil, err
	}
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		remotecommand.ServeAttach(w, req, attachment{r.dir(id)}, "", string(id.Pod), id.Container,
			&remotecommand.Options{Stdin: o.Stdin, Stdout: o.Stdout, Stderr: o.Stderr, TTY: o.TTY},
			runtime.StreamIdle, runtime.StreamSetup, remotecommand.SupportedStreamingProtocols)
	}), nil
}

// attachment joins a client with what a container reads and writes. dir is the container's.
type attachment struct{ dir string }

// AttachContainer implements remotecommand.Attacher. ctx ends when the client goes away.
func (a attachment) AttachContainer(ctx context.Context, _, _, _ string, in io.Reader, out, errs io.WriteCloser, _ bool,
	resize <-chan remotecommand.TerminalSize,
) error {
	var s sides
	defer s.close()
	if err := s.pipes(in, out, errs); err != nil {
		return err
	}
	conn, err := dial(ctx, a.dir)
	if err != nil {
		return err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	err = send(conn.(*net.UnixConn), shim.Request{Op: shim.OpAttach, Stdin: in != nil, Stdout: out != nil, Stderr: errs != nil}, s.theirs)
	if err != nil {
		return fmt.Errorf("talking to the shim: %w", err)
	}
	if resize != nil {
		go func() {
			sizes := json.NewEncoder(conn)
			for size := range resize { // until the client's streams end
				_ = sizes.Encode(shim.Size{Width: size.Width, Height: size.Height})
			}
		}()
	}
	s.start()
	var ans shim.Answer
	if err := json.NewDecoder(conn).Decode(&ans); err != nil && ctx.Err() != nil {
		return context.Cause(ctx) // any other end is the shim's, and the container's
	}
	s.drain()
	if ans.Error != "" {
		return errors.New(ans.Error)
	}
	return nil
}

// execution is one command that is run in a container with a client's streams.
type execution struct {
	dir string
	o   runtime.StreamOptions
}

// ExecInContainer implements remotecommand.Executor. ctx ends when the client goes away.
func (e *execution) ExecInContainer(ctx context.Context, _, _, _ string, _ []string, in io.Reader, out, errs io.WriteCloser,
	tty bool, resize <-chan remotecommand.TerminalSize, _ time.Duration,
) error {
	var s sides
	defer s.close()
	var err error
	if tty {
		err = s.terminal(in, out, resize)
	} else {
		err = s.pipes(in, out, errs)
	}
	if err != nil {
		return err
	}
	conn, err := dial(ctx, e.dir)
	if err != nil {
		return err
	}
	defer conn.Close() // the command ends with it
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	err = send(conn.(*net.UnixConn), shim.Request{Op: shim.OpStream, Command: e.o.Command, TTY: tty,
		Stdin: in != nil, Stdout: out != nil, Stderr: errs != nil}, s.theirs)
	if err != nil {
		return fmt.Errorf("talking to the shim: %w", err)
	}
	s.start()
	var ans shim.Answer
	if err := json.NewDecoder(conn).Decode(&ans); err != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		// The shim ends with its container, and all that ran in it.
		ans.Code = 128 + int(syscall.SIGKILL)
	}
	s.drain()
	switch {
	case ans.Error != "":
		return errors.New(ans.Error)
	case ans.Code != 0:
		return utilexec.CodeExitError{Err: fmt.Errorf("command terminated with exit code %d", ans.Code), Code: ans.Code}
	}
	return nil
}

// send writes a request, with descriptors for the one who gets it.
func send(conn *net.UnixConn, req shim.Request, files []*os.File) error {
	b, err := json.Marshal(req)
	if err != nil {
		return err
	}
	fds := make([]int, len(files))
	for i, f := range files {
		fds[i] = int(f.Fd())
	}
	// The descriptors go with the first byte, and a write of one byte is never done in part.
	if _, _, err := conn.WriteMsgUnix(b[:1], unix.UnixRights(fds...), nil); err != nil {
		return err
	}
	_, err = conn.Write(b[1:])
	return err
}

// sides are the two ends of a command's streams.
type sides struct {
	theirs  []*os.File // the command's, in the order of shim.Request
	ours    []*os.File
	feeds   []func()
	outputs []*output
	pumps   sync.WaitGroup
}

// output is what a command writes, on its way to the client.
type output struct {
	from *os.File
	to   io.Writer
	// ended: what the command wrote is in the pipe, and no more comes than fits into it.
	mu    sync.Mutex
	ended bool
}

// terminal makes a terminal for the command.
func (s *sides) terminal(in io.Reader, out io.Writer, resize <-chan remotecommand.TerminalSize) error {
	ours, theirs, err := shim.OpenTerminal()
	if err != nil {
		return fmt.Errorf("making a terminal: %w", err)
	}
	s.ours, s.theirs = []*os.File{ours}, []*os.File{theirs}
	if in != nil {
		s.feeds = append(s.feeds, func() { _, _ = io.Copy(ours, in) })
	}
	s.feeds = append(s.feeds, func() {
		for size := range resize {
			_ = shim.SetSize(ours, shim.Size{Width: size.Width, Height: size.Height})
		}
	})
	if out == nil {
		out = io.Discard // or the command would wait for a reader
	}
	s.outputs = append(s.outputs, &output{from: ours, to: out})
	return nil
}

// pipes makes a pipe for each stream that the client wants.
func (s *sides) pipes(in io.Reader, out, errs io.Writer) error {
	if in != nil {
		r, w, err := os.Pipe()
		if err != nil {
			return err
		}
		s.theirs, s.ours = append(s.theirs, r), append(s.ours, w)
		s.feeds = append(s.feeds, func() {
			_, _ = io.Copy(w, in)
			w.Close() // the command reads its end
		})
	}
	for _, to := range []io.Writer{out, errs} {
		if to == nil {
			continue
		}
		r, w, err := os.Pipe()
		if err != nil {
			return err
		}
		s.theirs, s.ours = append(s.theirs, w), append(s.ours, r)
		s.outputs = append(s.outputs, &output{from: r, to: to})
	}
	return nil
}

// start lets the streams flow. The command has its ends.
func (s *sides) start() {
	for _, f := range s.theirs {
		f.Close()
	}
	s.theirs = nil
	for _, feed := range s.feeds {
		go feed() // ends with the client's streams
	}
	for _, o := range s.outputs {
		s.pumps.Go(o.pump)
	}
}

// drain waits until the client has what the command wrote before it ended.
func (s *sides) drain() {
	for _, o := range s.outputs {
		o.end()
	}
	s.pumps.Wait()
}

func (s *sides) close() {
	for _, f := range append(s.ours, s.theirs...) {
		f.Close()
	}
}

func (o *output) end() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.ended = true
	_ = o.from.SetReadDeadline(time.Now().Add(quiet))
}

// await prepares a read, and says whether the command has ended.
func (o *output) await() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.ended {
		_ = o.from.SetReadDeadline(time.Now().Add(quiet))
	}
	return o.ended
}

// pump copies until the pipe's end. What runs on after its command may hold it open: then what a pipe holds is copied, and
// what comes without a pause.
func (o *output) pump() {
	buf := make([]byte, 32<<10)
	for left := maxPipe; left > 0; {
		ended := o.await()
		n, err := o.from.Read(buf)
		if ended {
			left -= n
		}
		if n > 0 {
			if _, werr := o.to.Write(buf[:n]); werr != nil {
				return
			}
		}
		if errors.Is(err, os.ErrDeadlineExceeded) && !ended {
			continue // the command ended while this waited for it, or for a slow client
		}
		if err != nil {
			return // of a terminal that nobody has any more, EIO is the end
		}
	}
}

// maxPipe is what a pipe holds, and more than a terminal does.
const maxPipe = 64 << 10

// ForwardStream implements runtime.Streamer. A pod's loopback is the host's.
func (r *Runtime) ForwardStream(_ context.Context, pod types.UID, ports []int32) (http.Handler, error) {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		f := &forwarder{ctx: req.Context(), slots: make(chan struct{}, maxForwards)}
		portforward.ServePortForward(w, req, f, "", string(pod), &portforward.V4Options{Ports: ports},
			runtime.StreamIdle, runtime.StreamSetup, portforward.SupportedProtocols)
	}), nil
}

// forwarder connects one client with ports of the host.
type forwarder struct {
	ctx   context.Context // ends when the client goes away
	slots chan struct{}
}

// PortForward implements portforward.PortForwarder.
func (f *forwarder) PortForward(_ context.Context, _, _ string, port int32, stream io.ReadWriteCloser) error {
	select {
	case f.slots <- struct{}{}:
		defer func() { <-f.slots }()
	default:
		return fmt.Errorf("%d connections are forwarded already", maxForwards)
	}
	conn, err := new(net.Dialer).DialContext(f.ctx, "tcp", net.JoinHostPort("localhost", fmt.Sprint(port)))
	if err != nil {
		return err
	}
	defer conn.Close()
	stop := context.AfterFunc(f.ctx, func() { conn.Close() })
	defer stop()
	go func() {
		_, _ = io.Copy(conn, stream)
		_ = conn.(*net.TCPConn).CloseWrite() // the client has said all
	}()
	if _, err := io.Copy(stream, conn); err != nil && f.ctx.Err() == nil {
		return err
	}
	return nil
}
