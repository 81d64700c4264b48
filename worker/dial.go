package worker

import (
	"context"
	"io"
	"net"
	"net/http"
	"strconv"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/worker/runtime"
)

const (
	// maxDials are the connections at a time to what listens in a node's pods, and maxPodDials those to one. Neither takes from
	// the streams, and those leave room for logs.
	maxDials    = 24
	maxPodDials = 16
	dialTimeout = 8 * time.Second
)

// Dial connects conn to a port at the pod's address. begin is called once there is a connection. It returns when either end
// has closed it, or with ctx.
func (a *Agent) Dial(ctx context.Context, pod types.UID, port uint16, conn net.Conn, begin func() error) error {
	if _, ok := a.runtime.(runtime.Streamer); !ok {
		return refuseStream(http.StatusNotImplemented, "nothing listens in the pods of node %s: nothing runs in them", a.opts.Node.Name)
	}
	a.mu.Lock()
	_, status, ok := a.core.Pod(pod, a.clock.Now())
	a.mu.Unlock()
	switch {
	case !ok:
		return refuseStream(http.StatusNotFound, "pod does not exist")
	case status.PodIP == "":
		return refuseStream(http.StatusServiceUnavailable, "the pod has no address")
	}
	if err := a.dials.enterUpTo(pod, maxDials, maxPodDials); err != nil {
		return err
	}
	defer a.dials.leave(pod)
	d := net.Dialer{Timeout: dialTimeout}
	to, err := d.DialContext(ctx, "tcp", net.JoinHostPort(status.PodIP, strconv.Itoa(int(port))))
	if err != nil {
		return refuseStream(http.StatusServiceUnavailable, "%s", err)
	}
	defer func() { _ = to.Close() }() // both ends have said what they had to
	if err := begin(); err != nil {
		return err
	}
	splice(ctx, conn, to)
	return nil
}

// splice carries bytes both ways until one of the ends is closed, or ctx ends, and closes both.
func splice(ctx context.Context, a, b net.Conn) {
	done := make(chan struct{}, 2)
	carry := func(to, from net.Conn) {
		_, _ = io.Copy(to, from) // however it ended, it has
		done <- struct{}{}
	}
	go carry(a, b)
	go carry(b, a)
	left := 2
	select {
	case <-done:
		left--
	case <-ctx.Done():
	}
	_, _ = a.Close(), b.Close() // so that the other direction ends
	for range left {
		<-done
	}
}
