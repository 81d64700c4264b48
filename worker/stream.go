package worker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/worker/runtime"
)

// How many streams into its pods a node has at a time, and how many into one.
const (
	maxStreams    = 64
	maxPodStreams = 32
)

// maxStreamHeader is what a request may have, a command in its address among it: more than the API takes.
const maxStreamHeader = 2 << 20

// streamCloseTimeout bounds the end of a stream: the client has to take what is left.
const streamCloseTimeout = 30 * time.Second

// StreamKind is how somebody enters a pod.
type StreamKind string

const (
	StreamExec    StreamKind = "exec"
	StreamAttach  StreamKind = "attach"
	StreamForward StreamKind = "portforward"
)

// StreamError says why nobody can enter. Code is an HTTP status.
type StreamError struct {
	Code    int
	Message string
}

func (e *StreamError) Error() string { return e.Message }

func refuseStream(code int, format string, args ...any) error {
	return &StreamError{Code: code, Message: fmt.Sprintf(format, args...)}
}

// streams counts who is in which pod.
type streams struct {
	mu  sync.Mutex
	all int
	by  map[types.UID]int
}

func (s *streams) enter(pod types.UID) error {
	return s.enterUpTo(pod, maxStreams, maxPodStreams)
}

// enterUpTo counts one more, if the node has fewer than all and the pod fewer than one.
func (s *streams) enterUpTo(pod types.UID, all, one int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.all >= all:
		return refuseStream(http.StatusTooManyRequests, "the node has %d streams into its pods, and may have no more", s.all)
	case s.by[pod] >= one:
		return refuseStream(http.StatusTooManyRequests, "the pod has %d streams, and may have no more", s.by[pod])
	}
	if s.by == nil {
		s.by = map[types.UID]int{}
	}
	s.all++
	s.by[pod]++
	return nil
}

func (s *streams) leave(pod types.UID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all--
	if s.by[pod]--; s.by[pod] == 0 {
		delete(s.by, pod)
	}
}

// Stream lets a client into a pod. begin is called once it is sure that there is something to enter; then the client's one
// HTTP request comes on conn. It returns when the stream has ended, at once where the client goes away. The container may
// be empty for StreamForward.
func (a *Agent) Stream(ctx context.Context, kind StreamKind, pod types.UID, container string, conn net.Conn, begin func() error) error {
	handler, err := a.enter(kind, pod, container)
	if err != nil {
		return err
	}
	if err := a.streams.enter(pod); err != nil {
		return err
	}
	defer a.streams.leave(pod)
	if err := begin(); err != nil {
		return err
	}
	timed, end := context.WithCancelCause(ctx)
	defer end(nil)
	in, over := a.opts.Streams.bind(conn, func(why string, after time.Duration) {
		a.log.Info("somebody's stay in a pod was ended", "kind", kind, "pod", pod, "container", container, "why", why, "after", after)
		end(fmt.Errorf("%s for %s", why, after))
	})
	defer over()
	serveOne(ctx, in, until(timed, handler))
	return nil
}

// until ends a request when its time is over, so that its client is told where the runtime does that.
func until(timed context.Context, h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		ctx, cancel := context.WithCancelCause(req.Context())
		defer cancel(nil)
		defer context.AfterFunc(timed, func() { cancel(context.Cause(timed)) })()
		h.ServeHTTP(w, req.WithContext(ctx))
	})
}

// ServeOne answers the one HTTP request that comes on conn, and returns when conn is closed.
func ServeOne(ctx context.Context, conn net.Conn, h http.Handler) { serveOne(ctx, conn, h) }

// enter finds what a stream leads to.
func (a *Agent) enter(kind StreamKind, pod types.UID, container string) (http.Handler, error) {
	rt, ok := a.runtime.(runtime.Streamer)
	if !ok {
		return nil, refuseStream(http.StatusNotImplemented, "the pods of node %s cannot be entered: nothing runs in them", a.opts.Node.Name)
	}
	var id runtime.ID
	a.mu.Lock()
	object, status, ok := a.core.Pod(pod, a.clock.Now())
	runs := false
	if ok {
		id, runs = a.core.Running(pod, container)
	}
	a.mu.Unlock()
	if !ok {
		return nil, refuseStream(http.StatusNotFound, "pod does not exist")
	}
	if kind == StreamForward {
		if status.Phase != corev1.PodRunning {
			return nil, refuseStream(http.StatusBadRequest, "pod is not running. Current status=%s", status.Phase)
		}
		return forwardHandler(rt, object.UID), nil
	}
	if !runs {
		return nil, notRunning(object, &status, container)
	}
	switch kind {
	case StreamExec:
		return streamHandler(rt.ExecStream, id, nil), nil
	case StreamAttach:
		return streamHandler(rt.AttachStream, id, containerByName(object, container)), nil
	}
	return nil, refuseStream(http.StatusNotImplemented, "this worker does not know streams of kind %q", kind)
}

// notRunning is why a container cannot be entered.
func notRunning(pod *corev1.Pod, s *corev1.PodStatus, name string) error {
	for _, list := range [][]corev1.ContainerStatus{s.ContainerStatuses, s.InitContainerStatuses, s.EphemeralContainerStatuses} {
		for i := range list {
			c := &list[i]
			switch {
			case c.Name != name:
			case c.State.Waiting != nil:
				return refuseStream(http.StatusBadRequest, "container not found (%q): it is waiting to start: %s", name, c.State.Waiting.Reason)
			case c.State.Terminated != nil:
				return refuseStream(http.StatusBadRequest, "container not found (%q): it has ended with %d: %s",
					name, c.State.Terminated.ExitCode, c.State.Terminated.Reason)
			}
		}
	}
	return refuseStream(http.StatusBadRequest, "container not found (%q) in pod %q", name, pod.Name)
}

// streamHandler answers a request for a command, or for what a container does itself: then its spec says whether it has a
// terminal, and an input.
func streamHandler(open func(context.Context, runtime.ID, runtime.StreamOptions) (http.Handler, error), id runtime.ID, attached *corev1.Container) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		q := req.URL.Query()
		has := func(param string) bool { return q.Get(param) == "1" || q.Get(param) == "true" }
		o := runtime.StreamOptions{Command: q["command"], Stdin: has("input"), Stdout: has("output"), Stderr: has("error"), TTY: has("tty")}
		if attached != nil {
			o.Command, o.TTY = nil, attached.TTY
			if o.Stdin && !attached.Stdin {
				http.Error(w, fmt.Sprintf("container %s has no input: its spec does not say stdin", attached.Name), http.StatusBadRequest)
				return
			}
		}
		if o.TTY {
			o.Stderr = false // a terminal has one output
		}
		if !o.Stdin && !o.Stdout && !o.Stderr {
			http.Error(w, "you must specify at least 1 of stdin, stdout, stderr", http.StatusBadRequest)
			return
		}
		h, err := open(req.Context(), id, o)
		if err != nil {
			streamFailed(w, id.Container, err)
			return
		}
		h.ServeHTTP(w, req)
	})
}

// maxForwardedPorts bounds what one request may name; a client of SPDY names its ports later, one by one.
const maxForwardedPorts = 64

func forwardHandler(rt runtime.Streamer, pod types.UID) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		var ports []int32
		for _, list := range req.URL.Query()["port"] {
			for p := range strings.SplitSeq(list, ",") {
				n, err := strconv.ParseUint(p, 10, 16)
				if err != nil || n == 0 || len(ports) == maxForwardedPorts {
					http.Error(w, fmt.Sprintf("port %q: at most %d ports from 1 to 65535", p, maxForwardedPorts), http.StatusBadRequest)
					return
				}
				ports = append(ports, int32(n))
			}
		}
		h, err := rt.ForwardStream(req.Context(), pod, ports)
		if err != nil {
			streamFailed(w, "", err)
			return
		}
		h.ServeHTTP(w, req)
	})
}

func streamFailed(w http.ResponseWriter, container string, err error) {
	switch {
	case errors.Is(err, runtime.ErrNotFound):
		http.Error(w, fmt.Sprintf("container not found (%q)", container), http.StatusBadRequest)
	case errors.Is(err, runtime.ErrUnavailable):
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
	default:
		http.Error(w, err.Error(), http.StatusInternalServerError)
	}
}

// serveOne answers the one request that comes on conn. It returns when conn is closed: by whoever took it over, or because
// the client has gone.
func serveOne(ctx context.Context, conn net.Conn, h http.Handler) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	closed := make(chan struct{})
	watched := &streamConn{Conn: conn, gone: cancel, closed: sync.OnceFunc(func() { close(closed) })}
	var begun atomic.Bool
	answered := make(chan struct{})
	server := &http.Server{
		ReadHeaderTimeout: runtime.StreamSetup, MaxHeaderBytes: maxStreamHeader,
		BaseContext: func(net.Listener) context.Context { return ctx },
		Handler: http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			if begun.Swap(true) {
				return // there is one request
			}
			defer close(answered)
			h.ServeHTTP(w, req)
		}),
		ErrorLog: log.New(io.Discard, "", 0), // it is the client's trouble
	}
	server.SetKeepAlivesEnabled(false)
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = server.Serve(&oneConn{conn: watched, closed: closed}) // until there is no other connection
	}()
	select {
	case <-closed:
	case <-ctx.Done():
	case <-answered:
		// Whoever has taken the connection over may still be sending.
		timer := time.NewTimer(streamCloseTimeout)
		defer timer.Stop()
		select {
		case <-closed:
		case <-ctx.Done():
		case <-timer.C:
		}
	}
	cancel()
	_ = watched.Close() // closing a tunnel does not fail
	<-served
	if begun.Load() {
		<-answered
	}
}

// oneConn is a listener to which one connection comes.
type oneConn struct {
	conn   net.Conn // nil: it has come
	closed <-chan struct{}
}

// Accept implements net.Listener.
func (l *oneConn) Accept() (net.Conn, error) {
	if conn := l.conn; conn != nil {
		l.conn = nil
		return conn, nil
	}
	<-l.closed
	return nil, net.ErrClosed
}

// Close implements net.Listener.
func (l *oneConn) Close() error { return nil }

// Addr implements net.Listener.
func (l *oneConn) Addr() net.Addr { return new(net.UnixAddr) }

// streamConn tells when the other end has gone, and when this one is closed.
type streamConn struct {
	net.Conn
	gone, closed func()
}

// Read implements net.Conn.
func (c *streamConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		c.gone()
	}
	return n, err
}

// Close implements net.Conn.
func (c *streamConn) Close() error {
	defer c.closed()
	return c.Conn.Close()
}
