package cri

import (
	"context"
	"fmt"
	"net/http"
	"net/url"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/proxy"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"

	"github.com/berth-dev/berth/worker/runtime"
)

var _ runtime.Streamer = (*Runtime)(nil)

// Commands and attachments are taken up here, and carried on to the runtime's own server by a connection of their own: it alone knows how they end, and only who
// speaks their protocol can tell a client why they end sooner.

// ExecStream implements runtime.Streamer.
func (r *Runtime) ExecStream(ctx context.Context, id runtime.ID, o runtime.StreamOptions) (http.Handler, error) {
	c, err := r.find(id)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	res, err := r.runtime.Exec(ctx, &criv1.ExecRequest{ContainerId: c.ref, Cmd: o.Command,
		Stdin: o.Stdin, Stdout: o.Stdout, Stderr: o.Stderr, Tty: o.TTY})
	to, err := carry(res.GetUrl(), o, err)
	if err != nil {
		return nil, err
	}
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		remotecommand.ServeExec(w, req, to, "", string(id.Pod), id.Container, o.Command, to.options(),
			runtime.StreamIdle, runtime.StreamSetup, remotecommand.SupportedStreamingProtocols)
	}), nil
}

// AttachStream implements runtime.Streamer.
func (r *Runtime) AttachStream(ctx context.Context, id runtime.ID, o runtime.StreamOptions) (http.Handler, error) {
	c, err := r.find(id)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	res, err := r.runtime.Attach(ctx, &criv1.AttachRequest{ContainerId: c.ref,
		Stdin: o.Stdin, Stdout: o.Stdout, Stderr: o.Stderr, Tty: o.TTY})
	to, err := carry(res.GetUrl(), o, err)
	if err != nil {
		return nil, err
	}
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		remotecommand.ServeAttach(w, req, to, "", string(id.Pod), id.Container, to.options(),
			runtime.StreamIdle, runtime.StreamSetup, remotecommand.SupportedStreamingProtocols)
	}), nil
}

// ForwardStream implements runtime.Streamer.
func (r *Runtime) ForwardStream(ctx context.Context, pod types.UID, ports []int32) (http.Handler, error) {
	r.mu.Lock()
	box, ok := r.sandboxes[pod]
	r.mu.Unlock()
	if !ok {
		return nil, fmt.Errorf("the sandbox of pod %s: %w", pod, runtime.ErrNotFound)
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	res, err := r.runtime.PortForward(ctx, &criv1.PortForwardRequest{PodSandboxId: box.id, Port: ports})
	return passOn(res.GetUrl(), err)
}

// passOn lets the runtime's own server answer, which expects the request at that address once.
func passOn(address string, err error) (http.Handler, error) {
	if err != nil {
		return nil, asked(err)
	}
	u, err := url.Parse(address)
	if err != nil {
		return nil, fmt.Errorf("the container runtime wants streams at %q: %w", address, err)
	}
	return proxy.NewUpgradeAwareHandler(u, nil, false, true, refusal{}), nil
}

// refusal answers what the runtime's server does not.
type refusal struct{}

// Error implements proxy.ErrorResponder.
func (refusal) Error(w http.ResponseWriter, _ *http.Request, err error) {
	http.Error(w, fmt.Sprintf("the container runtime's streams: %v", err), http.StatusInternalServerError)
}
