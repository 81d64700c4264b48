package e2e

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/remotecommand"
)

// heard is what a client has read so far.
type heard struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (h *heard) Write(b []byte) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.b.Write(b)
}

func (h *heard) has(words string) func(context.Context) error {
	return func(context.Context) error {
		h.mu.Lock()
		defer h.mu.Unlock()
		if !strings.Contains(h.b.String(), words) {
			return fmt.Errorf("%q", h.b.String())
		}
		return nil
	}
}

// Clients that are attached to a container say what it reads, and see what it writes.
func attached(t *testing.T, c *cluster) {
	asks := func(p *corev1.Pod) { p.Spec.Containers[0].Stdin = true }
	script := `while read x; do echo "got $x"; test "$x" = end && exit 0; done; exit 1`
	for protocol := range protocols {
		name := "attached-" + protocol
		create(t, c.Reader().Kube, imaged(name, script, asks, policy(corev1.RestartPolicyNever)))
		c.waitRunning(t, "default", name)
		ended := make(chan error, 2)
		var typed [2]*io.PipeWriter
		var sees [2]*heard
		for i := range 2 {
			var in *io.PipeReader
			in, typed[i] = io.Pipe()
			defer typed[i].Close()
			sees[i] = &heard{}
			s := session{server: c.Reader(), ns: "default", pod: name, protocol: protocol, part: "attach",
				StreamOptions: remotecommand.StreamOptions{Stdin: in, Stdout: sees[i], Stderr: io.Discard}}
			go func() { ended <- s.run(t.Context()) }()
			say(t, typed[i], "hello\n")
			c.eventually(t, "an answer", sees[i].has("got hello\n"))
		}
		say(t, typed[0], "all\n")
		c.eventually(t, "what the other one said", sees[1].has("got all\n"))
		say(t, typed[1], "end\n")
		for range 2 {
			if err := <-ended; err != nil {
				t.Errorf("%s: the container's end: %v", protocol, err)
			}
		}
		c.waitFor(t, name, "to succeed", func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodSucceeded })
	}
	// A terminal, and the first client's end.
	create(t, c.Reader().Kube, imaged("terminal", onTerminal, asks, policy(corev1.RestartPolicyNever), func(p *corev1.Pod) {
		p.Spec.Containers[0].StdinOnce, p.Spec.Containers[0].TTY = true, true
	}))
	c.waitRunning(t, "default", "terminal")
	terminal(t, c, session{server: c.Reader(), ns: "default", pod: "terminal", protocol: "websocket", part: "attach"})
}

func say(t *testing.T, to io.Writer, words string) {
	t.Helper()
	if _, err := io.WriteString(to, words); err != nil {
		t.Error(err)
	}
}

// EC1 to EC4: what is added to look into a pod runs beside its containers, once.
func debugged(t *testing.T, c *cluster) {
	create(t, c.Reader().Kube, imaged("debugged", "exec sleep 1234"))
	before := c.waitRunning(t, "default", "debugged")[0]
	image := before.Spec.Containers[0].Image
	c.berth(t, "debug", "debugged", "--image="+image, "--container=look", "--target=main", "--profile=general", "--",
		"/bin/sh", "-c", `cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\0' ' ' | grep -q 'sleep 1[2]34' && echo seen; exit 5`)
	ended := func(name string) func(p *corev1.Pod) bool {
		return func(p *corev1.Pod) bool {
			for _, s := range p.Status.EphemeralContainerStatuses {
				if s.Name == name {
					return s.State.Terminated != nil
				}
			}
			return false
		}
	}
	p := c.waitFor(t, "debugged", "to have been looked into", ended("look"))
	if x := p.Status.EphemeralContainerStatuses[0]; x.State.Terminated.ExitCode != 5 || x.RestartCount != 0 || !podReady(p) ||
		p.Status.ContainerStatuses[0].ContainerID != before.Status.ContainerStatuses[0].ContainerID {
		t.Errorf("it is now %+v", p.Status)
	}
	if got := c.berth(t, "logs", "debugged", "-c", "look"); got != "seen\n" {
		t.Errorf("it saw %q", got)
	}
	// One that stays can be entered, and outlives the worker.
	c.berth(t, "debug", "debugged", "--image="+image, "--container=stays", "--profile=general", "--", "/bin/sh", "-c", "exec sleep 1000")
	c.waitFor(t, "debugged", "to be looked into", func(p *corev1.Pod) bool {
		return len(p.Status.EphemeralContainerStatuses) == 2 && p.Status.EphemeralContainerStatuses[1].State.Running != nil
	})
	if got := c.berth(t, "exec", "debugged", "-c", "stays", "--", "echo", "in"); got != "in\n" {
		t.Errorf("it said %q", got)
	}
	w := c.Workers()[0]
	w.Kill()
	startWorker(t, c, w)
	if got := c.berth(t, "exec", "debugged", "-c", "stays", "--", "echo", "again"); got != "again\n" {
		t.Errorf("it said %q", got)
	}
	// A copy of the pod, with another command.
	c.berth(t, "debug", "debugged", "--copy-to=copied", "--container=main", "--image="+image, "--profile=general", "--", "/bin/sh", "-c", "echo copied; exec sleep 1000")
	c.waitRunning(t, "default", "copied")
	c.eventually(t, "the copy's log", func(context.Context) error {
		if got := c.berth(t, "logs", "copied"); got != "copied\n" {
			return fmt.Errorf("it is %q", got)
		}
		return nil
	})
}
