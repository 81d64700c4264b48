package cri

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/httpstream"
	restclient "k8s.io/client-go/rest"
	clientcommand "k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/transport/spdy"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
	"k8s.io/klog/v2"
	utilexec "k8s.io/utils/exec"

	"github.com/berth-dev/berth/worker/runtime"
)

// carried is a command's or an attachment's way to the runtime's own server.
type carried struct {
	o    runtime.StreamOptions
	to   clientcommand.Executor
	ends *ends
}

// carry leads to the runtime's own server, which expects one request at that address.
func carry(address string, o runtime.StreamOptions, err error) (*carried, error) {
	if err != nil {
		return nil, asked(err)
	}
	u, err := url.Parse(address)
	if err != nil {
		return nil, fmt.Errorf("the container runtime wants streams at %q: %w", address, err)
	}
	direct := func(*http.Request) (*url.URL, error) { return nil, nil }
	transport, upgrader, err := spdy.RoundTripperFor(&restclient.Config{Proxy: direct})
	if err != nil {
		return nil, fmt.Errorf("the container runtime's streams: %w", err)
	}
	told := &ends{Upgrader: upgrader}
	// The only version in which every end is told, a good one, too.
	to, err := clientcommand.NewSPDYExecutorForProtocols(transport, told, http.MethodPost, u, remotecommand.StreamProtocolV4Name)
	if err != nil {
		return nil, fmt.Errorf("the container runtime's streams: %w", err)
	}
	return &carried{o, to, told}, nil
}

func (c *carried) options() *remotecommand.Options {
	return &remotecommand.Options{Stdin: c.o.Stdin, Stdout: c.o.Stdout, Stderr: c.o.Stderr, TTY: c.o.TTY}
}

// ExecInContainer implements remotecommand.Executor. ctx ends when the client goes away, or its time is over.
func (c *carried) ExecInContainer(ctx context.Context, _, _, _ string, _ []string, in io.Reader, out, errs io.WriteCloser,
	_ bool, resize <-chan remotecommand.TerminalSize, _ time.Duration,
) error {
	return c.run(ctx, in, out, errs, resize)
}

// AttachContainer implements remotecommand.Attacher, with a ctx as ExecInContainer's.
func (c *carried) AttachContainer(ctx context.Context, _, _, _ string, in io.Reader, out, errs io.WriteCloser, _ bool, resize <-chan remotecommand.TerminalSize) error {
	return c.run(ctx, in, out, errs, resize)
}

// run carries on what was asked for alone: a client may have more channels than that.
func (c *carried) run(ctx context.Context, in io.Reader, out, errs io.Writer, resize <-chan remotecommand.TerminalSize) error {
	o := clientcommand.StreamOptions{Tty: c.o.TTY}
	if c.o.Stdin {
		o.Stdin = in
	}
	if c.o.Stdout {
		o.Stdout = out
	}
	if c.o.Stderr {
		o.Stderr = errs
	}
	if c.o.TTY && resize != nil {
		o.TerminalSizeQueue = sizes(resize)
	}
	// That input comes for a command that has ended is no trouble of the node's.
	err := c.to.StreamWithContext(klog.NewContext(ctx, logr.Discard()), o)
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case err == nil && !c.ends.told.Load():
		return errors.New("the container runtime has gone, and how it ended is not known")
	case err == nil || errors.As(err, new(utilexec.ExitError)):
		return err
	}
	return errors.New(plain(err.Error()))
}

// plain is what the runtime's server says without what this one puts before it once more.
func plain(message string) string {
	message = strings.TrimPrefix(message, "Internal error occurred: ")
	for _, words := range [...]string{"error executing command in container: ", "error attaching to container: "} {
		message = strings.TrimPrefix(message, words)
	}
	return message
}

// ends hears whether the runtime's server says how something ended. A connection that breaks off says nothing, and would be taken for a good end.
type ends struct {
	spdy.Upgrader
	told atomic.Bool
}

// NewConnection implements spdy.Upgrader.
func (e *ends) NewConnection(res *http.Response) (httpstream.Connection, error) {
	conn, err := e.Upgrader.NewConnection(res)
	if err != nil {
		return nil, err
	}
	return &endsConn{conn, e}, nil
}

type endsConn struct {
	httpstream.Connection
	ends *ends
}

// CreateStream implements httpstream.Connection.
func (c *endsConn) CreateStream(headers http.Header) (httpstream.Stream, error) {
	s, err := c.Connection.CreateStream(headers)
	if err == nil && headers.Get(corev1.StreamType) == corev1.StreamTypeError {
		s = &endsStream{s, c.ends}
	}
	return s, err
}

type endsStream struct {
	httpstream.Stream
	ends *ends
}

// Read implements io.Reader.
func (s *endsStream) Read(b []byte) (int, error) {
	n, err := s.Stream.Read(b)
	if n > 0 {
		s.ends.told.Store(true)
	}
	return n, err
}

// sizes are those of a client's terminal, until its stream of them ends.
type sizes <-chan remotecommand.TerminalSize

// Next implements clientcommand.TerminalSizeQueue.
func (s sizes) Next() *clientcommand.TerminalSize {
	size, more := <-s
	if !more {
		return nil
	}
	return &clientcommand.TerminalSize{Width: size.Width, Height: size.Height}
}
