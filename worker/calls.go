package worker

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/worker/runtime"
)

// callTimeout bounds a call to the runtime that has no bound of its own.
const callTimeout = 2 * time.Minute

// caller makes the calls that a Core asks for. It is safe for concurrent use.
type caller struct {
	runtime runtime.Runtime
	volumes *Volumes // nil: pods get none, as fits a runtime that runs nothing
	getter  Getter
	alloc   corev1.ResourceList
	hostIPs []string
	podIP   func(*corev1.Pod) string
}

func (c *caller) do(ctx context.Context, a Action) Outcome {
	timeout := callTimeout
	if a.Timeout > 0 {
		timeout = a.Timeout
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	var err error
	switch a.Kind {
	case ActionStart:
		err = c.start(ctx, a)
	case ActionSignal:
		err = c.runtime.Signal(ctx, a.ID, a.Signal)
	case ActionPostStart, ActionPreStop:
		err = c.hook(ctx, a)
	case ActionRemove:
		if err = c.runtime.Remove(ctx, a.ID.Pod); err == nil && c.volumes != nil {
			err = c.volumes.remove(a.ID.Pod)
		}
	}
	return Outcome{Action: a, Err: err}
}

func (c *caller) start(ctx context.Context, a Action) error {
	spec := runtime.Spec{ID: a.ID, Pod: a.Pod, Container: a.Container}
	r := &resolver{pod: a.Pod, alloc: c.alloc, podIP: c.podIP(a.Pod), hostIPs: c.hostIPs, getter: c.getter}
	env, values, err := r.environment(ctx, a.Container)
	if err != nil {
		return &prepareError{wait: "CreateContainerConfigError", event: "Failed", err: err}
	}
	spec.Env = env
	lookup := func(name string) (string, bool) { v, ok := values[name]; return v, ok }
	for _, word := range slices.Concat(a.Container.Command, a.Container.Args) {
		spec.Command = append(spec.Command, expand(word, lookup))
	}
	if c.volumes != nil {
		if spec.Mounts, err = c.volumes.mounts(ctx, r, a.Container, values); err != nil {
			return &prepareError{wait: "ContainerCreating", event: "FailedMount", err: err}
		}
	}
	return c.runtime.Start(ctx, spec)
}

// hook runs a lifecycle hook. Sleep is the state machine's and does not come here.
func (c *caller) hook(ctx context.Context, a Action) error {
	switch {
	case a.Hook.Exec != nil:
		res, err := c.runtime.Exec(ctx, a.ID, a.Hook.Exec.Command)
		if err != nil {
			return fmt.Errorf("running %q: %w", a.Hook.Exec.Command, err)
		}
		if res.Code != 0 {
			return fmt.Errorf("command %q exited with %d: %s", a.Hook.Exec.Command, res.Code, strings.TrimSpace(string(res.Output)))
		}
		return nil
	case a.Hook.HTTPGet != nil:
		return c.httpGet(ctx, a)
	}
	return fmt.Errorf("the hook is of a kind that this node does not know")
}

func (c *caller) httpGet(ctx context.Context, a Action) error {
	get := a.Hook.HTTPGet
	port := get.Port.IntValue()
	for _, p := range a.Container.Ports {
		if port == 0 && p.Name == get.Port.StrVal {
			port = int(p.ContainerPort)
		}
	}
	host, scheme := get.Host, strings.ToLower(string(get.Scheme))
	if host == "" {
		host = c.podIP(a.Pod)
	}
	if scheme == "" {
		scheme = "http"
	}
	url := scheme + "://" + net.JoinHostPort(host, strconv.Itoa(port)) + "/" + strings.TrimPrefix(get.Path, "/")
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return fmt.Errorf("hook: %w", err)
	}
	for _, h := range get.HTTPHeaders {
		req.Header.Add(h.Name, h.Value)
	}
	transport := &http.Transport{DisableKeepAlives: true}
	defer transport.CloseIdleConnections()
	res, err := (&http.Client{Transport: transport}).Do(req)
	if err != nil {
		return fmt.Errorf("hook: %w", err)
	}
	res.Body.Close()
	if res.StatusCode < 200 || res.StatusCode >= 400 {
		return fmt.Errorf("hook: GET %s answered %s", url, res.Status)
	}
	return nil
}
