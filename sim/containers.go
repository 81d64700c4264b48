package sim

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/worker/runtime"
	"github.com/berth-dev/berth/worker/runtime/fake"
)

// containers is a node's runtime as one life of its worker sees it: what the
// worker asks for after its end reaches nobody, calls fail now and then, and
// events come late and twice.
type containers struct {
	*fake.Runtime
	checker *checker

	// life is held by whoever is in a call that changes something: what was begun before the worker's end is done before
	// the next one looks.
	life sync.RWMutex

	mu   sync.Mutex
	rand *rand.Rand
	dead bool
	node string

	addresses *addresses
}

var errRuntime = errors.New("the runtime does not answer")

func (c *containers) end() {
	c.life.Lock()
	defer c.life.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.dead = true
}

// fails says whether a call is to fail, one in so many.
func (c *containers) fails(oneIn int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.dead || c.rand.IntN(oneIn) == 0
}

// Open implements runtime.Runtime.
func (c *containers) Open(notify func(runtime.Event)) ([]runtime.Pod, error) {
	pods, err := c.Runtime.Open(func(e runtime.Event) {
		c.checker.truth.happens(c.node, e)
		if e.Exit == nil {
			c.checker.story.tell(c.node, "container %s runs", e.ID)
		} else {
			c.checker.story.tell(c.node, "container %s has ended with code %d (%s)", e.ID, e.Exit.Code, e.Exit.Reason)
		}
		c.mu.Lock()
		dead, late, twice := c.dead, time.Duration(0), c.rand.IntN(20) == 0
		if c.rand.IntN(20) == 0 {
			late = time.Duration(c.rand.Int64N(int64(2 * time.Second)))
		}
		c.mu.Unlock()
		switch {
		case dead:
		case e.Exit == nil || late == 0:
			notify(e)
			if twice && e.Exit != nil {
				notify(e)
			}
		default:
			time.AfterFunc(late, func() { notify(e) })
		}
	})
	for i := range pods {
		if ip := c.addresses.has(pods[i].Pod.UID); ip != "" {
			pods[i].Sandbox = &runtime.Sandbox{IPs: []string{ip}}
		}
	}
	return pods, err
}

// RunSandbox implements runtime.Sandboxer.
func (c *containers) RunSandbox(_ context.Context, pod *corev1.Pod) (runtime.Sandbox, error) {
	c.life.RLock()
	defer c.life.RUnlock()
	c.checker.truth.tries(pod.UID)
	if c.fails(30) {
		return runtime.Sandbox{}, errRuntime
	}
	return runtime.Sandbox{IPs: []string{c.addresses.take(pod.UID)}}, nil
}

// StopSandbox implements runtime.Sandboxer.
func (c *containers) StopSandbox(_ context.Context, pod types.UID) error {
	c.life.RLock()
	defer c.life.RUnlock()
	if c.fails(30) {
		return errRuntime
	}
	if c.checker.truth.runs(pod, c.node) {
		c.checker.violated("the address of pod %s is given back, and a container of it runs", pod)
	}
	c.addresses.giveBack(pod)
	return nil
}

// Start implements runtime.Runtime.
func (c *containers) Start(ctx context.Context, spec runtime.Spec) error {
	c.life.RLock()
	defer c.life.RUnlock()
	c.checker.truth.tries(spec.ID.Pod)
	if c.fails(30) {
		return errRuntime
	}
	c.checker.story.tell(c.node, "starts container %s of pod %s", spec.ID, spec.Pod.Name)
	if c.addresses.has(spec.ID.Pod) == "" {
		c.checker.violated("container %s is started, and its pod has no address", spec.ID)
	}
	if c.checker.truth.starts(spec.ID) {
		c.checker.contradicted("container %s was started twice", spec.ID)
	}
	if spec.Pod.Spec.RestartPolicy == corev1.RestartPolicyNever && spec.Attempt > 0 {
		c.checker.contradicted("container %s of a pod that never restarts was started again", spec.ID)
	}
	return c.Runtime.Start(ctx, spec)
}

// Signal implements runtime.Runtime.
func (c *containers) Signal(ctx context.Context, id runtime.ID, signal runtime.Signal) error {
	c.life.RLock()
	defer c.life.RUnlock()
	fails := c.fails(30)
	since, heard := c.checker.truth.signals(id, !fails, signal)
	if fails {
		return errRuntime
	}
	c.checker.story.tell(c.node, "sends %s to container %s", signal, id)
	if signal == runtime.Kill {
		c.checker.kills(id, since, heard)
	}
	return c.Runtime.Signal(ctx, id, signal)
}

// Remove implements runtime.Runtime.
func (c *containers) Remove(ctx context.Context, pod types.UID) error {
	c.life.RLock()
	defer c.life.RUnlock()
	if c.fails(30) {
		return errRuntime
	}
	c.checker.story.tell(c.node, "removes pod %s", pod)
	return c.Runtime.Remove(ctx, pod)
}
