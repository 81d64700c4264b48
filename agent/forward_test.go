package agent

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"path/filepath"
	"sync"
	"testing"

	"github.com/hashicorp/go-hclog"
	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/pki"
)

// echo answers every line with its name, until the test ends or it is stopped.
func echo(t *testing.T, name string) (addr string, stop func()) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	stop = sync.OnceFunc(func() { _ = l.Close() })
	t.Cleanup(stop)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer func() { _ = c.Close() }()
				for lines := bufio.NewScanner(c); lines.Scan(); {
					fmt.Fprintf(c, "%s %s\n", name, lines.Text())
				}
			}()
		}
	}()
	return l.Addr().String(), stop
}

// TestForwarder: pods find the API at one place, whichever server lives, also after the worker was started again.
func TestForwarder(t *testing.T) {
	one, stopOne := echo(t, "one")
	two, stopTwo := echo(t, "two")
	dir := filepath.Join(t.TempDir(), "worker")
	start := func() (*forwarder, func()) {
		f, err := openForwarder(hclog.NewNullLogger(), dir, "127.0.0.1", func() []string { return []string{one, two} })
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); f.run(ctx) }()
		return f, func() { cancel(); <-done }
	}
	f, stop := start()
	ask := func() string {
		c, err := net.Dial("tcp", net.JoinHostPort(loopback, f.port))
		if err != nil {
			return err.Error()
		}
		defer func() { _ = c.Close() }()
		fmt.Fprintln(c, "hello")
		line, err := bufio.NewReader(c).ReadString('\n')
		if err != nil {
			return err.Error()
		}
		return line
	}
	if got := ask(); got != "one hello\n" && got != "two hello\n" {
		t.Error(got)
	}
	stopOne()
	if got := ask(); got != "two hello\n" {
		t.Errorf("one server is gone: %q", got)
	}
	port := f.port
	stop()
	f, stop = start()
	defer stop()
	if f.port != port || ask() != "two hello\n" {
		t.Errorf("after a restart it is at %s, and was at %s", f.port, port)
	}
	stopTwo()
	if got := ask(); got == "two hello\n" {
		t.Error("who answers?")
	}
}

// No pod takes the way to the API from the others.
func TestForwarderIsShared(t *testing.T) {
	f := &forwarder{from: map[string]int{}}
	taken := 0
	for f.enter("10.0.0.1") {
		taken++
	}
	if taken != forwardsOfPod || !f.enter("10.0.0.2") {
		t.Errorf("one pod has %d connections, and another none", taken)
	}
	for f.enter("") {
		taken++
	}
	if taken+1 != forwardsAtOnce {
		t.Errorf("%d in all", taken+1)
	}
	f.leave("10.0.0.1")
	if f.leave(""); !f.enter("10.0.0.1") || f.enter("10.0.0.1") {
		t.Error("what is given back is not there for others, or too much is")
	}
}

func TestForwarderAddresses(t *testing.T) {
	own, host := &corev1.Pod{}, &corev1.Pod{Spec: corev1.PodSpec{HostNetwork: true}}
	for _, tt := range []struct {
		node       string
		pod        *corev1.Pod
		ownNetwork bool
		want       string
	}{
		{"", own, false, loopback},
		{"10.0.0.1", own, true, pki.ServerDNSName},
		{"10.0.0.1", host, true, loopback},
		{"", own, true, ""},
	} {
		f := &forwarder{node: tt.node, port: "7"}
		if got, _ := f.addressFor(tt.pod, tt.ownNetwork); got != tt.want {
			t.Errorf("%+v: %q", tt, got)
		}
	}
}
