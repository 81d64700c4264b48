package worker

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/worker/probes"
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
	http    probes.HTTP
	// cuttable are the calls that can be ended before their time.
	cuttable cuttable
	removals removals
	meters   *meters // nil: nothing is counted
	// refreshes holds a token for every pod whose volumes are written anew just now.
	refreshes chan struct{}
	// measures holds one for every pod that is measured just now; nil: there may be any number.
	measures chan struct{}
	// api is where a pod finds the API; nil: nowhere.
	api     func(pod *corev1.Pod) (host, port string)
	devices Devices     // nil: there are none
	pulls   PullRecords // nil: nobody keeps any, and an image that is here is any pod's
	holds   func(types.UID) bool
	// event takes events; nil: none are made.
	event func(pod *corev1.Pod, eventType, reason, message string)
}

type lifeKey struct{}

// lifeOf is the context of a call without the call's own bound: it ends when nobody waits for the call any more, also after its time.
func lifeOf(ctx context.Context) context.Context {
	if life, ok := ctx.Value(lifeKey{}).(context.Context); ok {
		return life
	}
	return context.Background()
}

func (c *caller) do(ctx context.Context, a Action) (o Outcome) {
	ctx = context.WithValue(ctx, lifeKey{}, ctx)
	// A probe has its time at every try, and a postStart hook as long as its container lives.
	if a.Kind != ActionProbe && a.Kind != ActionPostStart {
		timeout := callTimeout
		if a.Timeout > 0 {
			timeout = a.Timeout
		}
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, timeout)
		defer cancel()
	}
	var err error
	o.Action = a
	if c.meters != nil {
		began := time.Now()
		defer func() { c.meters.called(&o, time.Since(began)) }()
	}
	switch a.Kind {
	case ActionSandbox:
		if err = c.removals.await(ctx, a.ID.Pod); err == nil { // of a pod whose removal was given up, and taken back
			o.Sandbox, err = c.sandbox(ctx, a)
		}
	case ActionSandboxStop:
		if s, ok := c.runtime.(runtime.Sandboxer); ok {
			err = s.StopSandbox(ctx, a.ID.Pod)
		}
	case ActionPull:
		o.Found, err = c.pull(ctx, a)
	case ActionStart:
		if err = c.removals.await(ctx, a.ID.Pod); err == nil {
			err = c.start(ctx, a)
		}
	case ActionResize:
		if r, ok := c.runtime.(runtime.Resizer); ok {
			err = r.Resize(ctx, *a.Resize)
		}
	case ActionRefresh:
		err = c.refresh(ctx, a)
	case ActionSignal:
		var failed error
		if a.Stuck && c.volumes != nil { // first: a runtime may wait for the end
			failed = c.volumes.free(ctx, a.Pod, c.event)
		}
		if err = c.runtime.Signal(ctx, a.ID, a.Signal); err == nil {
			err = failed
		}
	case ActionPostStart, ActionPreStop:
		err = c.hook(ctx, a)
	case ActionHookEnd, ActionPullEnd:
		c.cuttable.cut(a.ID)
	case ActionProbe:
		o.Warning, err = c.probe(ctx, a)
	case ActionMeasure:
		err = c.measure(ctx, a.Pod)
	case ActionUnmount:
		err = c.giveBack(ctx, a.ID.Pod, func(ctx context.Context) error { return c.unmount(ctx, a.ID.Pod) })
	case ActionRemove:
		err = c.giveBack(ctx, a.ID.Pod, func(ctx context.Context) error { return c.remove(ctx, a.ID.Pod) })
	}
	if c.volumes != nil && (a.Kind == ActionStart || a.Kind == ActionRefresh) {
		o.RenewAt = c.volumes.renewAt(a.Pod)
	}
	o.Err = err
	return o
}

func (c *caller) sandbox(ctx context.Context, a Action) (runtime.Sandbox, error) {
	s, ok := c.runtime.(runtime.Sandboxer)
	if !ok {
		return runtime.Sandbox{}, fmt.Errorf("the runtime %s has no sandboxes", c.runtime.Name())
	}
	return s.RunSandbox(ctx, a.Pod)
}

func (c *caller) start(ctx context.Context, a Action) error {
	spec := runtime.Spec{ID: a.ID, Pod: a.Pod, Container: a.Container, Image: a.Images.container, Target: a.Target, IPs: a.IPs}
	r := &resolver{pod: a.Pod, alloc: c.alloc, podIPs: a.IPs, hostIPs: c.hostIPs, getter: c.getter, images: a.Images.volumes}
	if c.api != nil {
		r.apiHost, r.apiPort = c.api(a.Pod)
	}
	if c.volumes != nil {
		r.volumeDir = func(volume string) string { return c.volumes.dir(a.Pod.UID, volume) }
	}
	env, values, err := r.environment(ctx, a.Container)
	if err != nil {
		return &prepareError{wait: waitConfigError, event: "Failed", err: err}
	}
	spec.Env = env
	lookup := func(name string) (string, bool) { v, ok := values[name]; return v, ok }
	expandAll := func(words []string) (out []string) {
		for _, word := range words {
			out = append(out, expand(word, lookup))
		}
		return out
	}
	spec.Command, spec.Args = expandAll(a.Container.Command), expandAll(a.Container.Args)
	if c.volumes != nil {
		var misconfigured *runtime.ConfigError
		if spec.Mounts, err = c.volumes.mounts(ctx, r, a.Container, values); errors.As(err, &misconfigured) {
			return &prepareError{wait: waitConfigError, event: "Failed", err: err}
		} else if err != nil {
			return &prepareError{wait: "ContainerCreating", event: "FailedMount", err: err}
		}
	}
	if c.devices != nil {
		over := stepAside(ctx) // a plugin may not answer
		spec.Devices, err = c.devices.Give(ctx, a.Pod, a.Container, c.holds)
		if over(); err != nil {
			return &prepareError{wait: waitConfigError, event: "FailedDevices", err: err}
		}
		spec.Env = append(spec.Devices.Env, spec.Env...) // what the container says itself wins
	}
	return c.runtime.Start(ctx, spec)
}

// giveBack calls f, which removes something of a pod; its time begins when it has a place. Where there are no volumes nothing takes long.
func (c *caller) giveBack(ctx context.Context, pod types.UID, f func(ctx context.Context) error) error {
	if c.volumes == nil {
		return f(ctx)
	}
	return c.removals.apart(lifeOf(ctx), pod, callTimeout, f)
}

// remove forgets a pod.
func (c *caller) remove(ctx context.Context, pod types.UID) error {
	if err := c.runtime.Remove(ctx, pod); err != nil || c.volumes == nil {
		return err
	}
	return c.volumes.remove(ctx, pod)
}

// unmount gives back what the volumes of a pod hold in which nothing runs.
func (c *caller) unmount(ctx context.Context, pod types.UID) error {
	if p, ok := c.runtime.(runtime.Pinner); ok {
		if err := p.Unpin(pod); err != nil {
			return err
		}
	}
	if c.volumes == nil {
		return nil
	}
	return c.volumes.remove(ctx, pod)
}

// hook runs a lifecycle hook. Sleep is the state machine's and does not come here.
func (c *caller) hook(ctx context.Context, a Action) error {
	switch {
	case a.Hook.Exec != nil:
		return c.command(ctx, a.ID, a.Hook.Exec.Command)
	case a.Hook.HTTPGet != nil:
		plain, err := c.http.Hook(ctx, a.Hook.HTTPGet, a.Container, first(a.IPs))
		if err != nil {
			return fmt.Errorf("hook: %w", err)
		}
		if plain && c.event != nil {
			c.event(a.Pod, corev1.EventTypeWarning, "LifecycleHTTPFallback",
				fmt.Sprintf("The hook of container %s asks for HTTPS and was answered over HTTP", a.Container.Name))
		}
		return nil
	}
	return fmt.Errorf("the hook is of a kind that this node does not know")
}

// cuttable are calls that run, and end when they are cut: postStart hooks and pulls. The zero value is ready to use.
type cuttable struct {
	mu sync.Mutex
	by map[runtime.ID]context.CancelFunc // a hook is of a run that there is, and a pull of the one after it
}

// begin returns the context of a call, which ends, if it is one of these, when the call is cut; over has to be called when the call is over. Others
// have their time, and are not cut. It is called in the order of the actions, so that none is cut that has yet to begin.
func (h *cuttable) begin(ctx context.Context, a Action) (_ context.Context, over func()) {
	if a.Kind != ActionPostStart && a.Kind != ActionPull {
		return ctx, func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.by == nil {
		h.by = map[runtime.ID]context.CancelFunc{}
	}
	h.by[a.ID] = cancel
	return ctx, func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.by, a.ID)
		cancel()
	}
}

// cut ends a call, where it is under way.
func (h *cuttable) cut(id runtime.ID) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if cancel := h.by[id]; cancel != nil {
		cancel()
	}
}
