package cri

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
	utilexec "k8s.io/utils/exec"

	"github.com/berth-dev/berth/worker/runtime"
)

// streamServer is a runtime's own server of streams, whose one command is a function.
type streamServer func(ctx context.Context, in io.Reader, out, errs io.Writer, resize <-chan remotecommand.TerminalSize) error

func (s streamServer) ExecInContainer(ctx context.Context, _, _, _ string, _ []string, in io.Reader, out, errs io.WriteCloser, _ bool,
	resize <-chan remotecommand.TerminalSize, _ time.Duration,
) error {
	return s(ctx, in, out, errs, resize)
}

func (s streamServer) AttachContainer(ctx context.Context, _, _, _ string, in io.Reader, out, errs io.WriteCloser, _ bool, resize <-chan remotecommand.TerminalSize) error {
	return s(ctx, in, out, errs, resize)
}

type connKey struct{}

// serve returns the address of the server; a request for /attach is one to attach.
func (s streamServer) serve(t *testing.T, o runtime.StreamOptions) string {
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		wants := &remotecommand.Options{Stdin: o.Stdin, Stdout: o.Stdout, Stderr: o.Stderr, TTY: o.TTY}
		if req.URL.Path == "/attach" {
			remotecommand.ServeAttach(w, req, s, "", "", "", wants, time.Hour, time.Minute, remotecommand.SupportedStreamingProtocols)
			return
		}
		remotecommand.ServeExec(w, req, s, "", "", "", nil, wants, time.Hour, time.Minute, remotecommand.SupportedStreamingProtocols)
	}))
	server.Config.ConnContext = func(ctx context.Context, c net.Conn) context.Context { return context.WithValue(ctx, connKey{}, c) }
	server.Start()
	t.Cleanup(server.Close)
	return server.URL
}

type nothingToClose struct{ io.Writer }

func (nothingToClose) Close() error { return nil }

// TestStreamsAreCarriedOn: what a client says and hears is what the runtime's command does, and so is how it ends. That a client's time is over is told, and so is a
// runtime that goes away before it has said how the command ended: that would be taken for a good end.
func TestStreamsAreCarriedOn(t *testing.T) {
	all := runtime.StreamOptions{Stdin: true, Stdout: true, Stderr: true}
	over := errors.New("nothing was said for an hour")
	for name, c := range map[string]struct {
		o      runtime.StreamOptions
		path   string
		does   streamServer
		code   int
		err    string
		out    string
		errOut string
		cut    bool
	}{
		"well": {o: all, out: "words and more", errOut: "errors", does: func(_ context.Context, in io.Reader, out, errs io.Writer, _ <-chan remotecommand.TerminalSize) error {
			_, err := io.Copy(out, in)
			_, more := io.WriteString(out, " and more")
			_, bad := io.WriteString(errs, "errors")
			return errors.Join(err, more, bad)
		}},
		"a code": {o: all, code: 7, does: func(context.Context, io.Reader, io.Writer, io.Writer, <-chan remotecommand.TerminalSize) error {
			return utilexec.CodeExitError{Err: errors.New("exit 7"), Code: 7}
		}},
		"what is not there": {o: all, err: "no such command", does: func(context.Context, io.Reader, io.Writer, io.Writer, <-chan remotecommand.TerminalSize) error {
			return errors.New("no such command")
		}},
		"nobody to attach to": {o: all, path: "/attach", err: "it has ended", does: func(context.Context, io.Reader, io.Writer, io.Writer, <-chan remotecommand.TerminalSize) error {
			return errors.New("it has ended")
		}},
		"a runtime that goes": {o: all, err: "the container runtime has gone, and how it ended is not known", out: "begun",
			does: func(ctx context.Context, _ io.Reader, out, _ io.Writer, _ <-chan remotecommand.TerminalSize) error {
				_, err := io.WriteString(out, "begun")
				return errors.Join(err, ctx.Value(connKey{}).(net.Conn).Close())
			}},
		"its time is over": {o: runtime.StreamOptions{Stdout: true}, err: over.Error(), cut: true,
			does: func(_ context.Context, _ io.Reader, out, _ io.Writer, _ <-chan remotecommand.TerminalSize) error {
				_, err := io.WriteString(out, "begun")
				<-t.Context().Done()
				return err
			}, out: "begun"},
		"a terminal": {o: runtime.StreamOptions{Stdout: true, TTY: true}, out: "24 80",
			does: func(_ context.Context, _ io.Reader, out, _ io.Writer, resize <-chan remotecommand.TerminalSize) error {
				size := <-resize
				if size.Height == 24 && size.Width == 80 {
					_, err := io.WriteString(out, "24 80")
					return err
				}
				return nil
			}},
	} {
		t.Run(name, func(t *testing.T) {
			to, err := carry(c.does.serve(t, c.o)+c.path, c.o, nil)
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			var out, errs bytes.Buffer
			var w io.WriteCloser = nothingToClose{&out}
			if c.cut {
				w = nothingToClose{writer(func(b []byte) (int, error) {
					defer cancel(over)
					return out.Write(b)
				})}
			}
			resize := make(chan remotecommand.TerminalSize, 1)
			resize <- remotecommand.TerminalSize{Width: 80, Height: 24}
			defer close(resize)
			err = to.ExecInContainer(ctx, "", "", "", nil, strings.NewReader("words"), w, nothingToClose{&errs}, c.o.TTY, resize, 0)
			var exit utilexec.ExitError
			switch {
			case c.code != 0:
				if !errors.As(err, &exit) || exit.ExitStatus() != c.code {
					t.Errorf("it ended with %v", err)
				}
			case err == nil && c.err != "", err != nil && err.Error() != c.err:
				t.Errorf("it ended with %v", err)
			}
			if out.String() != c.out || errs.String() != c.errOut {
				t.Errorf("it wrote %q and %q", out.String(), errs.String())
			}
		})
	}
	if _, err := carry("", all, errors.New("no container")); err == nil {
		t.Error("what the runtime refused is carried on")
	}
	to, err := carry("http://127.0.0.1:1/", all, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := to.AttachContainer(t.Context(), "", "", "", strings.NewReader(""), nothingToClose{io.Discard}, nothingToClose{io.Discard}, false, nil); err == nil {
		t.Error("where nobody listens it ended well")
	}
}

type writer func(b []byte) (int, error)

func (w writer) Write(b []byte) (int, error) { return w(b) }
