package process

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
	utilexec "k8s.io/utils/exec"

	"github.com/berth-dev/berth/worker/runtime"
)

// closer is a client's end of an output.
type closer struct{ io.Writer }

func (closer) Close() error { return nil }

// stream runs a script in a container with the streams of a client.
func (h *harness) stream(ctx context.Context, id runtime.ID, script string, in io.Reader, out, errs io.Writer, resize chan remotecommand.TerminalSize) error {
	e := &execution{dir: h.rt.dir(id), o: runtime.StreamOptions{Command: []string{"/bin/sh", "-c", script}}}
	var o, x io.WriteCloser
	if out != nil {
		o = closer{out}
	}
	if errs != nil {
		x = closer{errs}
	}
	return e.ExecInContainer(ctx, "", "", "", nil, in, o, x, resize != nil, resize, 0)
}

func TestExecStream(t *testing.T) {
	h := open(t, Options{})
	spec := h.spec(pod("streams", shell(`sleep 1000`)), 0)
	spec.Env = []string{"WHO=container"}
	id := h.startSpec(spec)
	var out, errs bytes.Buffer
	err := h.stream(t.Context(), id, `cat; echo "$WHO" >&2; exit 7`, strings.NewReader("words"), &out, &errs, nil)
	if exit := (utilexec.CodeExitError{}); !errors.As(err, &exit) || exit.Code != 7 || out.String() != "words" || errs.String() != "container\n" {
		t.Errorf("%v, wrote %q and %q", err, out.String(), errs.String())
	}
	// Without any stream it has nothing to read, and where to write.
	if err := h.stream(t.Context(), id, `read x; echo lost; echo lost >&2`, nil, nil, nil, nil); err != nil {
		t.Error(err)
	}
	// What it leaves running holds its output, and nobody waits for that.
	out.Reset()
	if err := h.stream(t.Context(), id, `sleep 1000 & echo done`, nil, &out, nil, nil); err != nil || out.String() != "done\n" {
		t.Errorf("%v, wrote %q", err, out.String())
	}
	if err := h.stream(t.Context(), id, `while :; do echo on; done & echo done`, nil, io.Discard, nil, nil); err != nil {
		t.Errorf("what writes on for ever: %v", err)
	}
	e := &execution{dir: h.rt.dir(id), o: runtime.StreamOptions{Command: []string{"no-such-command"}}}
	if err := e.ExecInContainer(t.Context(), "", "", "", nil, nil, nil, nil, false, nil, 0); err == nil || !strings.Contains(err.Error(), "not found in $PATH") {
		t.Errorf("a command that is not there: %v", err)
	}
}

// A slow client gets all that a command wrote before it ended.
func TestExecStreamSlowClient(t *testing.T) {
	h := open(t, Options{})
	id := h.start(pod("slow", shell(`sleep 1000`)), 0)
	over := filepath.Join(t.TempDir(), "over")
	slow := &waits{until: func() bool { _, err := os.Stat(over); return err == nil }, t: t}
	err := h.stream(t.Context(), id, `head -c 60000 /dev/zero; echo > `+over, nil, slow, nil, nil)
	if err != nil || slow.n != 60000 {
		t.Errorf("%v, %d bytes of 60000", err, slow.n)
	}
}

// waits is a writer that takes nothing until something is so.
type waits struct {
	t     *testing.T
	until func() bool
	n     int
}

func (w *waits) Write(b []byte) (int, error) {
	eventually(w.t, "the command to be over", w.until)
	w.n += len(b)
	return len(b), nil
}

// Who goes away takes the command and its children along, also those that do not listen.
func TestExecStreamDisconnects(t *testing.T) {
	h := open(t, Options{})
	id := h.start(pod("left", shell(`sleep 1000`)), 0)
	for name, script := range map[string]string{"told": `sleep 1000 & echo $! > F.tmp; mv F.tmp F; wait`,
		"deaf": `trap "" HUP; sh -c 'trap "" HUP; echo $$ > F.tmp; mv F.tmp F; sleep 1000' & sleep 1000`} {
		file := filepath.Join(t.TempDir(), "pid")
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- h.stream(ctx, id, strings.ReplaceAll(script, "F", file), nil, io.Discard, nil, nil) }()
		var pid int
		eventually(t, "the command runs", func() bool {
			b, err := os.ReadFile(file)
			pid, _ = strconv.Atoi(strings.TrimSpace(string(b)))
			return err == nil && pid > 0
		})
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v", name, err)
		}
		eventually(t, "the child is gone", func() bool { return gone(pid) })
	}
}

func TestExecStreamTerminal(t *testing.T) {
	h := open(t, Options{})
	c := shell(`sleep 1000`)
	var owner string
	if os.Geteuid() == 0 {
		owner = "1234"
	}
	p := pod("terminal", c)
	if owner != "" {
		user := int64(1234)
		p.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{RunAsUser: &user}
	}
	id := h.start(p, 0)
	resize := make(chan remotecommand.TerminalSize, 2)
	resize <- remotecommand.TerminalSize{Width: 80, Height: 24}
	resize <- remotecommand.TerminalSize{Width: 133, Height: 41}
	defer close(resize)
	var out bytes.Buffer
	err := h.stream(t.Context(), id, `until [ "$(stty size)" = "41 133" ]; do sleep 0.01; done; echo again > $(tty) && id -u; exit 3`, nil, &out, nil, resize)
	if exit := (utilexec.CodeExitError{}); !errors.As(err, &exit) || exit.Code != 3 || !strings.HasPrefix(out.String(), "again\r\n"+owner) {
		t.Errorf("%v, wrote %q", err, out.String())
	}
	// What it leaves running has the terminal, and nobody waits for that.
	out.Reset()
	err = h.stream(t.Context(), id, `trap "" HUP; sleep 1000 & echo done`, nil, &out, nil, resize)
	if err != nil || out.String() != "done\r\n" {
		t.Errorf("%v, wrote %q", err, out.String())
	}
}
