package worker

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/worker/probes"
	"github.com/berth-dev/berth/worker/runtime"
	"github.com/berth-dev/berth/worker/runtime/mounts"
)

// probeTries is how often a probe is tried that cannot be made.
const probeTries = 3

// probe runs a probe (PB1), with the action's timeout for each try. A warning comes with a success. An error is a failure, but for a
// *runtime.ProbeError and runtime.ErrUnavailable: then it is not known how the container is (PB2).
func (c *caller) probe(ctx context.Context, a Action) (warning string, err error) {
	for range probeTries {
		var unmade *runtime.ProbeError
		warning, err = c.probeOnce(ctx, a)
		if !errors.As(err, &unmade) || ctx.Err() != nil {
			break
		}
	}
	return warning, err
}

func (c *caller) probeOnce(ctx context.Context, a Action) (warning string, err error) {
	timeout := a.Timeout
	if timeout <= 0 {
		timeout = callTimeout
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	if own, ok := c.runtime.(runtime.Prober); ok {
		return "", own.Probe(ctx, a.ID, lower(a.ProbeKind))
	}
	var failure string
	switch h := &a.Probe.ProbeHandler; {
	case h.Exec != nil:
		return "", c.probeCommand(ctx, a.ID, probeWords(h.Exec.Command, a.Container))
	case h.HTTPGet != nil:
		warning, failure, err = c.http.Probe(ctx, h.HTTPGet, a.Container, first(a.IPs))
	case h.TCPSocket != nil:
		failure, err = probes.TCP(ctx, h.TCPSocket, a.Container, first(a.IPs))
	case h.GRPC != nil:
		return "", c.grpcHealth(ctx, a, h.GRPC)
	default:
		err = errors.New("the probe is of a kind that this node does not know")
	}
	switch {
	case err != nil:
		return "", &runtime.ProbeError{Err: err}
	case failure != "":
		return "", errors.New(failure)
	}
	return warning, nil
}

// probeCommand runs a probe's command. As in Kubernetes an exit code says how the container is, and so does a command that does not come
// to its end in time; one that could not be run at all says nothing.
func (c *caller) probeCommand(ctx context.Context, id runtime.ID, command []string) error {
	res, err := c.exec(ctx, id, command)
	switch {
	case err == nil:
		return exited(command, res)
	case errors.Is(err, runtime.ErrUnavailable):
		return err
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return fmt.Errorf("command %q timed out", command)
	}
	return &runtime.ProbeError{Err: fmt.Errorf("running %q: %w", command, err)}
}

// exec runs a command in a container. Of a command that has had its time a runtime may wait for what holds its output: nobody waits for that
// when the worker ends.
func (c *caller) exec(ctx context.Context, id runtime.ID, command []string) (runtime.ExecResult, error) {
	result := make(chan runtime.ExecResult, 1)
	err := mounts.Apart(lifeOf(ctx), func() error {
		res, err := c.runtime.Exec(ctx, id, command)
		result <- res
		return err
	})
	if err != nil {
		return runtime.ExecResult{}, err
	}
	return <-result, nil
}

// probeWords are a probe's command with the container's variables in it, as a kubelet has them: by what the spec says of them itself; one whose
// value comes from elsewhere is empty. The commands of hooks have none.
func probeWords(command []string, c *corev1.Container) []string {
	lookup := func(name string) (value string, known bool) {
		for i := range c.Env {
			if c.Env[i].Name == name {
				value, known = c.Env[i].Value, true // the last one counts
			}
		}
		return value, known
	}
	out := make([]string, len(command))
	for i, word := range command {
		out[i] = expand(word, lookup)
	}
	return out
}

// command runs a command in a container; an exit code other than 0 is an
// error.
func (c *caller) command(ctx context.Context, id runtime.ID, command []string) error {
	res, err := c.exec(ctx, id, command)
	if err != nil {
		return fmt.Errorf("running %q: %w", command, err)
	}
	return exited(command, res)
}

func exited(command []string, res runtime.ExecResult) error {
	if res.Code != 0 {
		return fmt.Errorf("command %q exited with %d: %s", command, res.Code, strings.TrimSpace(string(res.Output)))
	}
	return nil
}

func (c *caller) grpcHealth(ctx context.Context, a Action, action *corev1.GRPCAction) error {
	addr := net.JoinHostPort(first(a.IPs), strconv.Itoa(int(action.Port)))
	conn, err := grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithNoProxy(),
		grpc.WithUserAgent(probes.UserAgent()))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }() // the answer is there
	request := &healthv1.HealthCheckRequest{}
	if action.Service != nil {
		request.Service = *action.Service
	}
	answer, err := healthv1.NewHealthClient(conn).Check(ctx, request)
	if err != nil {
		return err
	}
	if answer.GetStatus() != healthv1.HealthCheckResponse_SERVING {
		return fmt.Errorf("the service at %s says %s", addr, answer.GetStatus())
	}
	return nil
}
