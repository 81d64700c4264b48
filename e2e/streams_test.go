package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/httpstream"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/transport/spdy"
	utilexec "k8s.io/client-go/util/exec"

	"github.com/berth-dev/berth/agent/fleet"
)

// protocols are the ways to stream, by their names.
var protocols = map[string]func(config *rest.Config, url string) (remotecommand.Executor, error){
	"websocket": func(config *rest.Config, url string) (remotecommand.Executor, error) {
		return remotecommand.NewWebSocketExecutor(config, "GET", url)
	},
	"spdy": func(config *rest.Config, url string) (remotecommand.Executor, error) {
		u, err := (&http.Request{}).URL.Parse(url)
		if err != nil {
			return nil, err
		}
		return remotecommand.NewSPDYExecutor(config, "POST", u)
	},
}

// session is one command in a pod.
type session struct {
	server   *fleet.Process
	ns, pod  string
	protocol string
	part     string // "exec" if empty
	command  []string
	remotecommand.StreamOptions
}

func (s session) run(ctx context.Context) error {
	part := "exec"
	if s.part != "" {
		part = s.part
	}
	request := s.server.Kube.CoreV1().RESTClient().Post().Namespace(s.ns).Resource("pods").Name(s.pod).SubResource(part)
	if part == "exec" {
		request = request.VersionedParams(&corev1.PodExecOptions{Command: s.command, Stdin: s.Stdin != nil, Stdout: s.Stdout != nil,
			Stderr: s.Stderr != nil, TTY: s.Tty}, scheme.ParameterCodec)
	} else {
		request = request.VersionedParams(&corev1.PodAttachOptions{Stdin: s.Stdin != nil, Stdout: s.Stdout != nil,
			Stderr: s.Stderr != nil, TTY: s.Tty}, scheme.ParameterCodec)
	}
	e, err := protocols[s.protocol](s.server.RESTConfig(), request.URL().String())
	if err != nil {
		return err
	}
	return e.StreamWithContext(ctx, s.StreamOptions)
}

// shell runs a script in a pod of the namespace default.
func (c *cluster) shell(ctx context.Context, protocol, pod, script string, in io.Reader) (out, errs string, err error) {
	var o, e bytes.Buffer
	s := session{server: c.Reader(), ns: "default", pod: pod, protocol: protocol, command: []string{"/bin/sh", "-c", script},
		StreamOptions: remotecommand.StreamOptions{Stdin: in, Stdout: &o, Stderr: &e}}
	err = s.run(ctx)
	return o.String(), e.String(), err
}

// entered enters pods in every way, by every protocol.
func entered(t *testing.T, c *cluster) {
	data := volume("data", "/data", corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}})
	create(t, c.Reader().Kube, imaged("entered", "exec sleep 1000", data), imaged("over", "true", policy(corev1.RestartPolicyNever)), imaged("speaks", "echo spoken; exec sleep 1000"))
	c.waitRunning(t, "default", "entered", "speaks")
	for protocol := range protocols {
		t.Run(protocol, func(t *testing.T) {
			out, errs, err := c.shell(t.Context(), protocol, "entered", "echo out; echo err >&2; exit 7", nil)
			if exit := (utilexec.CodeExitError{}); !errors.As(err, &exit) || exit.Code != 7 || out != "out\n" || errs != "err\n" {
				t.Errorf("a command that fails: %v, wrote %q and %q", err, out, errs)
			}
			long := strings.Repeat("0123456789\n", 200_000)
			if out, _, err = c.shell(t.Context(), protocol, "entered", "cat; echo end", strings.NewReader(long)); err != nil || out != long+"end\n" {
				t.Errorf("cat: %v, %d bytes of %d", err, len(out), len(long)+4)
			}
			t.Run("terminal", func(t *testing.T) {
				terminal(t, c, session{server: c.Reader(), ns: "default", pod: "entered", protocol: protocol, command: []string{"/bin/sh", "-c", onTerminal}})
			})
			t.Run("disconnects", func(t *testing.T) { disconnects(t, c, protocol) })
			t.Run("slow", func(t *testing.T) { slow(t, c, protocol) })
			c.waitFor(t, "over", "to succeed", func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodSucceeded })
			if _, _, err = c.shell(t.Context(), protocol, "over", "true", nil); err == nil || !strings.Contains(err.Error(), "container not found") {
				t.Errorf("a pod that has ended: %v", err)
			}
			if _, _, err = c.shell(t.Context(), protocol, "nobody", "true", nil); !apierrors.IsNotFound(err) && !strings.Contains(fmt.Sprint(err), "not found") {
				t.Errorf("a pod that is not there: %v", err)
			}
		})
	}
	t.Run("cp", func(t *testing.T) { copies(t, c) })
	t.Run("deleted", func(t *testing.T) { deletedMeanwhile(t, c) })
}

// onTerminal runs on a terminal of two sizes, one after the other, and does not end before it was heard.
const onTerminal = `is() { test -t 0 && test -t 1 && until [ "$(stty size)" = "$1" ]; do sleep 0.05; done; echo "$1"; }
is "24 80"; is "41 133"; read x; echo "got $x"; read end`

// sizes are those of a terminal, as they are sent.
type sizes chan remotecommand.TerminalSize

// Next implements remotecommand.TerminalSizeQueue.
func (s sizes) Next() *remotecommand.TerminalSize {
	next, more := <-s
	if !more {
		return nil
	}
	return &next
}

// terminal is a session with what onTerminal says. Each is told once the one before was heard: conmon, which CRI-O has under its containers,
// takes two sizes at once for twice the first, and CRI-O may pass over what a command says with its last breath.
func terminal(t *testing.T, c *cluster, s session) {
	var out heard
	in, typed := io.Pipe()
	defer typed.Close()
	resized := make(sizes, 2)
	defer close(resized)
	s.StreamOptions = remotecommand.StreamOptions{Stdin: in, Stdout: &out, Tty: true, TerminalSizeQueue: resized}
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- s.run(ctx) }()
	resized <- remotecommand.TerminalSize{Width: 80, Height: 24}
	c.eventually(t, "the first size to be the terminal's", out.has("24 80\r\n"))
	resized <- remotecommand.TerminalSize{Width: 133, Height: 41}
	c.eventually(t, "the second size to be the terminal's", out.has("41 133\r\n"))
	say(t, typed, "words\n")
	c.eventually(t, "the words to be read", out.has("got words\r\n"))
	say(t, typed, "end\n")
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// Who goes away takes what it ran along.
func disconnects(t *testing.T, c *cluster, protocol string) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	in, typed := io.Pipe()
	defer typed.Close()
	ended := make(chan error, 1)
	go func() {
		_, _, err := c.shell(ctx, protocol, "entered", "echo $$ > /data/pid; exec cat", in)
		ended <- err
	}()
	alive := func(ctx context.Context) error {
		_, _, err := c.shell(ctx, protocol, "entered", "kill -0 $(cat /data/pid)", nil)
		return err
	}
	c.eventually(t, "the command to run", alive)
	cancel()
	<-ended
	c.eventually(t, "the command to be gone", func(ctx context.Context) error {
		if alive(ctx) == nil {
			return errStillThere
		}
		return nil
	})
	if _, _, err := c.shell(t.Context(), protocol, "entered", "rm /data/pid", nil); err != nil {
		t.Error(err)
	}
}

// stuck is a client's output that takes one piece and no other until the client goes.
type stuck struct {
	begun chan struct{} // closed with the first
	gone  <-chan struct{}
	n     int
}

// Write implements io.Writer.
func (s *stuck) Write(b []byte) (int, error) {
	if s.n++; s.n == 1 {
		close(s.begun)
		return len(b), nil
	}
	<-s.gone
	return 0, io.ErrClosedPipe
}

// A client that takes nothing of what a command writes without end holds up that command, and nobody else in the pod or on the node.
func slow(t *testing.T, c *cluster, protocol string) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	out := &stuck{begun: make(chan struct{}), gone: ctx.Done()}
	ended := make(chan error, 1)
	go func() {
		ended <- session{server: c.Reader(), ns: "default", pod: "entered", protocol: protocol, command: []string{"/bin/sh", "-c", "echo $$ > /data/writes; exec cat /dev/zero"},
			StreamOptions: remotecommand.StreamOptions{Stdout: out}}.run(ctx)
	}()
	select {
	case <-out.begun:
	case err := <-ended:
		t.Fatal(err)
	}
	// It writes no more once all that is between it and its client is full.
	writes := func(ctx context.Context) (string, error) {
		got, _, err := c.shell(ctx, protocol, "entered", "cat /proc/$(cat /data/writes)/io | grep wchar", nil)
		return got, err
	}
	was, err := writes(t.Context())
	c.eventually(t, "the command to wait for its client", func(ctx context.Context) error {
		if err != nil {
			return err
		}
		before := was
		if was, err = writes(ctx); was != before {
			return fmt.Errorf("it has written %q, and before %q", was, before)
		}
		return nil
	})
	for range 3 {
		if got, _, err := c.shell(t.Context(), protocol, "entered", "echo heard", nil); err != nil || got != "heard\n" {
			t.Errorf("another command: %v, %q", err, got)
		}
		waitLog(t, c, "speaks", "spoken\n")
	}
	cancel()
	<-ended
	// By the container runtime interface nothing ends a command that reads nothing.
	if _, _, err := c.shell(t.Context(), protocol, "entered", "kill -9 $(cat /data/writes); rm /data/writes", nil); err != nil {
		t.Error(err)
	}
}

func copies(t *testing.T, c *cluster) {
	dir := t.TempDir()
	want := bytes.Repeat([]byte("bytes\x00\xff\n"), 300_000)
	if err := os.WriteFile(filepath.Join(dir, "there"), want, 0o600); err != nil {
		t.Fatal(err)
	}
	c.berth(t, "cp", filepath.Join(dir, "there"), "entered:/data/file")
	c.berth(t, "cp", "entered:/data/file", filepath.Join(dir, "back"))
	if got, err := os.ReadFile(filepath.Join(dir, "back")); err != nil || !bytes.Equal(got, want) {
		t.Errorf("%v, %d bytes of %d came back", err, len(got), len(want))
	}
}

// A pod that goes takes along who is in it.
func deletedMeanwhile(t *testing.T, c *cluster) {
	create(t, c.Reader().Kube, imaged("goes", "exec sleep 1000"))
	c.waitRunning(t, "default", "goes")
	begun, begins := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		s := session{server: c.Reader(), ns: "default", pod: "goes", protocol: "websocket", command: []string{"/bin/sh", "-c", "echo; exec sleep 1000"},
			StreamOptions: remotecommand.StreamOptions{Stdout: begins}}
		ended <- s.run(t.Context())
		begins.Close()
	}()
	if _, err := begun.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	now := int64(1)
	if err := c.Reader().Kube.CoreV1().Pods("default").Delete(t.Context(), "goes", metav1.DeleteOptions{GracePeriodSeconds: &now}); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err == nil {
		t.Error("a command ended well in a pod that was deleted")
	}
}

// forwarded asks an HTTP server in a pod, or where the pod's loopback is, the host's.
func forwarded(t *testing.T, c *cluster, containers bool, more ...func(*corev1.Pod)) {
	pod, port := "entered", "8080"
	if containers {
		pod = "listens"
		create(t, c.Reader().Kube, imaged(pod, "mkdir /tmp/www; echo hello > /tmp/www/index.html; exec httpd -f -p 127.0.0.1:8080 -h /tmp/www", more...))
		c.waitRunning(t, "default", pod)
	} else {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello\n") }))
		defer s.Close()
		_, port, _ = net.SplitHostPort(s.Listener.Addr().String())
	}
	url := c.Reader().Kube.CoreV1().RESTClient().Post().Namespace("default").Resource("pods").Name(pod).SubResource("portforward").URL()
	config := c.Reader().RESTConfig()
	for protocol, dial := range map[string]func() (httpstream.Dialer, error){
		"websocket": func() (httpstream.Dialer, error) { return portforward.NewSPDYOverWebsocketDialer(url, config) },
		"spdy": func() (httpstream.Dialer, error) {
			transport, upgrader, err := spdy.RoundTripperFor(config)
			return spdy.NewDialer(upgrader, &http.Client{Transport: transport}, "POST", url), err
		},
	} {
		d, err := dial()
		if err != nil {
			t.Fatal(err)
		}
		stop, ready := make(chan struct{}), make(chan struct{})
		f, err := portforward.New(d, []string{"0:" + port}, stop, ready, io.Discard, io.Discard)
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		go func() { done <- f.ForwardPorts() }()
		select {
		case <-ready:
		case err := <-done:
			t.Fatalf("%s: %v", protocol, err)
		}
		ports, err := f.GetPorts()
		if err != nil {
			t.Fatal(err)
		}
		for range 3 {
			c.eventually(t, "an answer", func(ctx context.Context) error {
				r, err := http.NewRequestWithContext(ctx, "GET", fmt.Sprintf("http://127.0.0.1:%d/", ports[0].Local), nil)
				if err != nil {
					return err
				}
				res, err := http.DefaultClient.Do(r)
				if err != nil {
					return err
				}
				defer res.Body.Close()
				if b, err := io.ReadAll(res.Body); err != nil || string(b) != "hello\n" {
					return fmt.Errorf("%q, %w", b, err)
				}
				return nil
			})
		}
		close(stop)
		if err := <-done; err != nil {
			t.Errorf("%s: %v", protocol, err)
		}
	}
}

// A follower that does not hold the worker's connection leads into its pods all the same.
func TestFollowersLeadIntoPods(t *testing.T) {
	c := sharedCluster(t)
	ns := c.namespace(t, "entered")
	create(t, c.Reader().Kube, pod(ns, "p", "exec sleep 1000"))
	c.waitRunning(t, ns, "p")
	for _, s := range append(c.followers(t), c.waitLeader(t)) {
		for protocol := range protocols {
			var out bytes.Buffer
			err := session{server: s, ns: ns, pod: "p", protocol: protocol, command: []string{"echo", "hello"},
				StreamOptions: remotecommand.StreamOptions{Stdout: &out}}.run(t.Context())
			if err != nil || out.String() != "hello\n" {
				t.Errorf("%s through %s: %v, %q", protocol, s.Name, err, out.String())
			}
		}
	}
}
