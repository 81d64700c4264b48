package process

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"

	"github.com/berth-dev/berth/worker/runtime"
	"github.com/berth-dev/berth/worker/runtime/process/shim"
)

// client is one who is attached to a container.
type client struct {
	t      *testing.T
	in     *io.PipeWriter
	resize chan remotecommand.TerminalSize
	leave  context.CancelFunc
	ended  chan error

	mu        sync.Mutex
	out, errs bytes.Buffer
	changed   *sync.Cond
}

type clientOutput struct {
	c  *client
	to *bytes.Buffer
}

func (o clientOutput) Write(b []byte) (int, error) {
	o.c.mu.Lock()
	defer o.c.mu.Unlock()
	defer o.c.changed.Broadcast()
	return o.to.Write(b)
}

func (clientOutput) Close() error { return nil }

func (h *harness) attach(t *testing.T, id runtime.ID, tty bool) *client {
	ctx, cancel := context.WithCancel(t.Context())
	c := &client{t: t, leave: cancel, ended: make(chan error, 1)}
	c.changed = sync.NewCond(&c.mu)
	var in *io.PipeReader
	in, c.in = io.Pipe()
	if tty {
		c.resize = make(chan remotecommand.TerminalSize, 1)
	}
	go func() {
		defer in.Close()
		c.ended <- attachment{h.rt.dir(id)}.AttachContainer(ctx, "", "", "", in, clientOutput{c, &c.out}, clientOutput{c, &c.errs}, tty, c.resize)
	}()
	t.Cleanup(func() { cancel(); c.in.Close() })
	return c
}

func (c *client) say(words string) {
	c.t.Helper()
	if _, err := io.WriteString(c.in, words); err != nil {
		c.t.Error(err)
	}
}

// hears waits until the client has read some words.
func (c *client) hears(words string) {
	c.t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	late := time.AfterFunc(time.Minute, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.out.WriteString("TOO LATE")
		c.changed.Broadcast()
	})
	defer late.Stop()
	for !strings.Contains(c.out.String(), words) && !strings.Contains(c.errs.String(), words) {
		if strings.Contains(c.out.String(), "TOO LATE") {
			c.t.Fatalf("no %q in %q", words, c.out.String())
		}
		c.changed.Wait()
	}
}

func reads(script string, with func(*corev1.Container)) corev1.Container {
	c := shell(script)
	c.Stdin = true
	if with != nil {
		with(&c)
	}
	return c
}

// Everybody who is attached sees what the container writes, and says what it reads.
func TestAttach(t *testing.T) {
	h := open(t, Options{})
	id := h.start(pod("reads", reads(`while read x; do echo "got $x"; echo "not $x" >&2; done; echo over; exit 3`, nil)), 0)
	one, two := h.attach(t, id, false), h.attach(t, id, false)
	one.say("a\n")
	one.hears("got a\n")
	two.say("b\n")
	two.hears("got b\n")
	one.hears("got b\n")
	// Without stdinOnce nobody's end is the input's.
	one.in.Close()
	two.say("c\n")
	one.hears("got c\n")
	one.leave()
	if err := <-one.ended; err == nil {
		t.Error("a client that went away is told that all is well")
	}
	two.say("d\n")
	two.hears("got d\n")
	two.hears("not d\n")
	if err := h.rt.Signal(t.Context(), id, runtime.Kill); err != nil {
		t.Fatal(err)
	}
	if err := <-two.ended; err != nil {
		t.Errorf("the container's end: %v", err)
	}
}

// With stdinOnce the first client's end is the input's.
func TestAttachOnce(t *testing.T) {
	h := open(t, Options{})
	id := h.start(pod("once", reads(`cat; echo over`, func(c *corev1.Container) { c.StdinOnce = true })), 0)
	c := h.attach(t, id, false)
	c.say("words\n")
	c.hears("words\n")
	c.in.Close()
	c.hears("over\n")
	if err := <-c.ended; err != nil {
		t.Error(err)
	}
	if x := h.exit(); x.Code != 0 {
		t.Errorf("it ended with %d", x.Code)
	}
}

// A container's terminal is its own, and of the size of its clients'.
func TestAttachTerminal(t *testing.T) {
	h := open(t, Options{})
	id := h.start(pod("terminal", reads(`test -t 0 && test -t 1 && test -t 2 && printf 'who? '; read x; echo "it is $x";
		until [ "$(stty size)" = "41 133" ]; do sleep 0.05; done; echo sized; read x`, func(c *corev1.Container) { c.TTY = true })), 0)
	c := h.attach(t, id, true)
	c.say("me\n")
	c.hears("it is me\r\n")
	c.resize <- remotecommand.TerminalSize{Width: 133, Height: 41}
	c.hears("sized\r\n")
	c.say("\n")
	if err := <-c.ended; err != nil {
		t.Error(err)
	}
	if x := h.exit(); x.Code != 0 {
		t.Errorf("it ended with %d", x.Code)
	}
	close(c.resize)
}

// A client that reads nothing is left out, and the container goes on.
func TestAttachStuckClient(t *testing.T) {
	h := open(t, Options{})
	id := h.start(pod("writes", reads(`read x; head -c 1000000 /dev/zero; read x; echo done`, nil)), 0)
	stuck := make(chan struct{})
	ended := make(chan error, 1)
	go func() {
		ended <- attachment{h.rt.dir(id)}.AttachContainer(t.Context(), "", "", "", nil, blocked{stuck}, nil, false, nil)
	}()
	c := h.attach(t, id, false)
	c.say("go\n")
	c.mu.Lock()
	for c.out.Len() < 1000000 {
		c.changed.Wait()
	}
	c.mu.Unlock()
	c.say("end\n")
	c.hears("done\n")
	close(stuck)
	if err := <-ended; err != nil && !strings.Contains(err.Error(), "took nothing") {
		t.Error(err)
	}
}

// A client that is slow gets all that the container wrote before it ended, and so does its log, which does not wait for the client.
func TestAttachSlowClient(t *testing.T) {
	const bytes = 140_000 // more than is on its way to a client that takes nothing, and no more than the container can leave
	h := open(t, Options{})
	id := h.start(pod("writes", reads(fmt.Sprintf(`read x; head -c %d /dev/zero; exit 3`, bytes), nil)), 0)
	c := &client{t: t, ended: make(chan error, 1)}
	c.changed = sync.NewCond(&c.mu)
	var in *io.PipeReader
	in, c.in = io.Pipe()
	c.mu.Lock() // it takes nothing
	go func() {
		defer in.Close()
		c.ended <- attachment{h.rt.dir(id)}.AttachContainer(t.Context(), "", "", "", in, clientOutput{c, &c.out}, nil, false, nil)
	}()
	t.Cleanup(func() { c.in.Close() })
	c.say("go\n")
	eventually(t, "it is written down how it ended", func() bool {
		_, err := os.Stat(filepath.Join(h.rt.dir(id), shim.ExitFile))
		return err == nil
	})
	c.mu.Unlock()
	if err := <-c.ended; err != nil {
		t.Error(err)
	}
	if x := h.exit(); x.Code != 3 {
		t.Errorf("exit is %+v", x)
	}
	if log := h.logs(id, runtime.LogOptions{}); c.out.Len() != bytes || len(log) != bytes {
		t.Errorf("the client got %d bytes, the log %d", c.out.Len(), len(log))
	}
}

// blocked is a client that takes nothing until the channel is closed.
type blocked struct{ until chan struct{} }

func (b blocked) Write(p []byte) (int, error) { <-b.until; return len(p), nil }
func (blocked) Close() error                  { return nil }
