package worker

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/berth-dev/berth/worker/runtime"
)

// probe runs a probe (PB1); nil is a success. The action's timeout bounds it.
func (c *caller) probe(ctx context.Context, a Action) error {
	if own, ok := c.runtime.(runtime.Prober); ok {
		return own.Probe(ctx, a.ID, lower(a.ProbeKind))
	}
	switch h := &a.Probe.ProbeHandler; {
	case h.Exec != nil:
		return c.command(ctx, a.ID, h.Exec.Command)
	case h.HTTPGet != nil:
		return c.httpGet(ctx, a, h.HTTPGet)
	case h.TCPSocket != nil:
		host := h.TCPSocket.Host
		if host == "" {
			host = first(a.IPs)
		}
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", net.JoinHostPort(host, portOf(h.TCPSocket.Port, a.Container)))
		if err != nil {
			return err
		}
		return conn.Close()
	case h.GRPC != nil:
		return c.grpcHealth(ctx, a, h.GRPC)
	}
	return fmt.Errorf("the probe is of a kind that this node does not know")
}

// command runs a command in a container; an exit code other than 0 is an
// error.
func (c *caller) command(ctx context.Context, id runtime.ID, command []string) error {
	res, err := c.runtime.Exec(ctx, id, command)
	if err != nil {
		return fmt.Errorf("running %q: %w", command, err)
	}
	if res.Code != 0 {
		return fmt.Errorf("command %q exited with %d: %s", command, res.Code, strings.TrimSpace(string(res.Output)))
	}
	return nil
}

// httpGet asks a container: an answer from 200 to 399 is a good one.
func (c *caller) httpGet(ctx context.Context, a Action, get *corev1.HTTPGetAction) error {
	host, scheme := get.Host, strings.ToLower(string(get.Scheme))
	if host == "" {
		host = first(a.IPs)
	}
	if scheme == "" {
		scheme = "http"
	}
	url := scheme + "://" + net.JoinHostPort(host, portOf(get.Port, a.Container)) + "/" + strings.TrimPrefix(get.Path, "/")
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	for _, h := range get.HTTPHeaders {
		if http.CanonicalHeaderKey(h.Name) == "Host" {
			req.Host = h.Value
			continue
		}
		req.Header.Add(h.Name, h.Value)
	}
	// As in Kubernetes: what a pod serves is its own affair, and no proxy of
	// the node's is asked.
	transport := &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
	defer transport.CloseIdleConnections()
	res, err := (&http.Client{Transport: transport}).Do(req)
	if err != nil {
		return err
	}
	_ = res.Body.Close() // only the status matters
	if res.StatusCode < 200 || res.StatusCode >= 400 {
		return fmt.Errorf("GET %s answered %s", url, res.Status)
	}
	return nil
}

// portOf is a port by number, or by the name that the container gives it.
func portOf(port intstr.IntOrString, container *corev1.Container) string {
	for _, p := range container.Ports {
		if port.Type == intstr.String && p.Name == port.StrVal {
			return strconv.Itoa(int(p.ContainerPort))
		}
	}
	return port.String()
}

func (c *caller) grpcHealth(ctx context.Context, a Action, action *corev1.GRPCAction) error {
	addr := net.JoinHostPort(first(a.IPs), strconv.Itoa(int(action.Port)))
	conn, err := grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithNoProxy())
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
