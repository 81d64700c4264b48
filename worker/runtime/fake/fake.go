// Package fake is a container runtime in memory: containers are entries that start, run and end by the script in their
// pod's annotations and by the signals they get. It is for tests, simulations and scale; ten thousand of them share one
// Timeline. It must never touch the host.
package fake

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/worker/runtime"
)

// Runtime is one node's containers. It outlives agents: a second Open finds what runs.
type Runtime struct {
	timeline *Timeline
	images   []runtime.Image

	mu     sync.Mutex
	notify func(runtime.Event)
	pods   map[types.UID]*pod
}

var (
	_ runtime.Runtime     = (*Runtime)(nil)
	_ runtime.ImageLister = (*Runtime)(nil)
	_ runtime.Prober      = (*Runtime)(nil)
	_ runtime.Resizer     = (*Runtime)(nil)
)

type pod struct {
	pod        *corev1.Pod
	containers []*container
}

type container struct {
	runtime.Container
	script  script
	running bool
	next    *entry
}

// New returns an empty runtime on the timeline, which has these images.
func New(tl *Timeline, images ...runtime.Image) *Runtime {
	return &Runtime{timeline: tl, images: images}
}

// Images implements runtime.ImageLister.
func (r *Runtime) Images() ([]runtime.Image, error) { return r.images, nil }

// Name implements runtime.Runtime.
func (r *Runtime) Name() string { return "fake" }

// Open implements runtime.Runtime.
func (r *Runtime) Open(notify func(runtime.Event)) ([]runtime.Pod, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.notify = notify
	var out []runtime.Pod
	for _, p := range r.pods {
		rp := runtime.Pod{Pod: p.pod}
		for _, c := range p.containers {
			if c.running || c.Exit != nil {
				rp.Containers = append(rp.Containers, c.Container)
			}
		}
		out = append(out, rp)
	}
	slices.SortFunc(out, func(a, b runtime.Pod) int { return cmp.Compare(a.Pod.UID, b.Pod.UID) })
	return out, nil
}

// Start implements runtime.Runtime.
func (r *Runtime) Start(_ context.Context, spec runtime.Spec) error {
	s, err := readScript(&spec)
	if err != nil {
		return &runtime.StartError{Err: err}
	}
	if s.startError != "" {
		return &runtime.StartError{Err: errors.New(s.startError)}
	}
	now := r.timeline.clock.Now()
	c := &container{script: s, Container: runtime.Container{ID: spec.ID, Image: spec.Container.Image}}
	r.mu.Lock()
	if r.pods == nil {
		r.pods = map[types.UID]*pod{}
	}
	p := r.pods[spec.ID.Pod]
	if p == nil {
		p = &pod{pod: spec.Pod}
		r.pods[spec.ID.Pod] = p
	}
	p.pod = spec.Pod // containers may have been added
	// One ended attempt before the new one is kept, as its logs may be asked for.
	p.containers = slices.DeleteFunc(p.containers, func(o *container) bool {
		return o.ID.Container == spec.ID.Container && o.Attempt < spec.Attempt-1
	})
	p.containers = append(p.containers, c)
	if s.delay > 0 {
		c.next = r.timeline.at(now.Add(s.delay), func(now time.Time) { r.begin(c, now) })
		r.mu.Unlock()
		return nil
	}
	r.run(c, now)
	return nil
}

func (r *Runtime) begin(c *container, now time.Time) {
	r.mu.Lock()
	if c.running || c.Exit != nil {
		r.mu.Unlock() // a signal came first
		return
	}
	early := c.next
	r.run(c, now)
	r.timeline.cancel(early)
}

// run: a container that was taken on begins to run. It is called with the lock held, and gives it back: whoever looks
// sees a container that was not yet taken on, or one that runs.
func (r *Runtime) run(c *container, now time.Time) {
	c.running = true
	c.StartedAt = now
	c.next = nil
	if c.script.run > 0 {
		c.next = r.timeline.at(now.Add(c.script.run), func(now time.Time) { r.endByItself(c, now) })
	}
	started, notify := c.Container, r.notify
	r.mu.Unlock()
	notify(started)
	if c.script.run == 0 {
		r.endByItself(c, now)
	}
}

func (r *Runtime) endByItself(c *container, now time.Time) {
	if c.script.oom {
		r.end(c, runtime.Exit{Code: 137, Signal: 9, Reason: runtime.ReasonOOMKilled}, now)
		return
	}
	r.end(c, runtime.Exit{Code: c.script.code}, now)
}

func (r *Runtime) end(c *container, exit runtime.Exit, now time.Time) {
	r.mu.Lock()
	if !c.running {
		r.mu.Unlock()
		return
	}
	c.running = false
	next := c.next
	c.next = nil
	exit.StartedAt, exit.FinishedAt = c.StartedAt, now
	if exit.Reason == "" {
		exit.Reason = runtime.ReasonCompleted
		if exit.Code != 0 {
			exit.Reason = runtime.ReasonError
		}
	}
	c.Exit = &exit
	ended, notify := c.Container, r.notify
	r.mu.Unlock()
	r.timeline.cancel(next)
	notify(ended)
}

// Crash ends a running container as if it had done so itself; tests and demonstrations use it.
func (r *Runtime) Crash(id runtime.ID, code int32) error {
	c, err := r.find(id, false)
	if err != nil {
		return err
	}
	r.end(c, runtime.Exit{Code: code}, r.timeline.clock.Now())
	return nil
}

// find returns a container that runs, or one that was taken on and has not ended.
func (r *Runtime) find(id runtime.ID, starting bool) (*container, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if p := r.pods[id.Pod]; p != nil {
		for _, c := range p.containers {
			if c.ID == id && (c.running || starting && c.Exit == nil) {
				return c, nil
			}
		}
	}
	return nil, fmt.Errorf("container %s: %w", id, runtime.ErrNotFound)
}

// Signal implements runtime.Runtime. Who is still starting hears it as the first thing.
func (r *Runtime) Signal(_ context.Context, id runtime.ID, signal runtime.Signal) error {
	c, err := r.find(id, true)
	if err != nil {
		return err
	}
	now := r.timeline.clock.Now()
	r.begin(c, now)
	switch {
	case signal == runtime.Kill:
		r.end(c, runtime.Exit{Code: 137, Signal: 9}, now)
	case c.script.ignoreTerm:
	case c.script.term > 0:
		r.mu.Lock()
		old := c.next
		c.next = r.timeline.at(now.Add(c.script.term), func(now time.Time) {
			r.end(c, runtime.Exit{Code: c.script.termCode}, now)
		})
		r.mu.Unlock()
		r.timeline.cancel(old)
	default:
		r.end(c, runtime.Exit{Code: c.script.termCode}, now)
	}
	return nil
}

// Resize implements runtime.Resizer: nothing here is bounded. By its script a container may use so much memory that it
// cannot have less.
func (r *Runtime) Resize(_ context.Context, z runtime.Resize) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	p := r.pods[z.Pod.UID]
	if p == nil {
		return nil
	}
	for i := range z.Containers {
		limit, lower := z.LowersMemory(&z.Containers[i])
		for _, c := range p.containers {
			if c.ID == z.Containers[i].ID && c.running && lower && c.script.memory >= limit {
				return runtime.BelowUse(c.ID.Container, limit, c.script.memory)
			}
		}
	}
	p.pod = z.Pod
	return nil
}

// Exec implements runtime.Runtime.
func (r *Runtime) Exec(_ context.Context, id runtime.ID, _ []string) (runtime.ExecResult, error) {
	c, err := r.find(id, false)
	if err != nil {
		return runtime.ExecResult{}, err
	}
	return runtime.ExecResult{Code: int(c.script.hookCode)}, nil
}

// Probe implements runtime.Prober.
func (r *Runtime) Probe(_ context.Context, id runtime.ID, kind string) error {
	c, err := r.find(id, false)
	if err != nil {
		return err
	}
	runs := r.timeline.clock.Now().Sub(c.StartedAt)
	if runs < c.script.unprobed {
		return &runtime.ProbeError{Err: errors.New("by its script it cannot be probed yet")}
	}
	if kind == "liveness" {
		if c.script.unhealthy >= 0 && runs >= c.script.unhealthy {
			return errors.New("by its script it is not well any more")
		}
		return nil
	}
	if runs < c.script.ready {
		return errors.New("by its script it is not ready yet")
	}
	return nil
}

// Remove implements runtime.Runtime.
func (r *Runtime) Remove(_ context.Context, uid types.UID) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	p := r.pods[uid]
	if p == nil {
		return nil
	}
	for _, c := range p.containers {
		if c.Exit == nil {
			return fmt.Errorf("removing pod %s: container %s still runs", uid, c.ID.Container)
		}
	}
	delete(r.pods, uid)
	return nil
}

// Logs implements runtime.Runtime.
func (r *Runtime) Logs(_ context.Context, id runtime.ID, opts runtime.LogOptions) (io.ReadCloser, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	p := r.pods[id.Pod]
	if p == nil {
		return nil, fmt.Errorf("logs of %s: %w", id, runtime.ErrNotFound)
	}
	i := slices.IndexFunc(p.containers, func(c *container) bool { return c.ID == id })
	if i < 0 {
		return nil, fmt.Errorf("logs of %s: %w", id, runtime.ErrNotFound)
	}
	c := p.containers[i]
	var lines []string
	if c.script.log != "" && !c.StartedAt.Before(opts.Since) {
		lines = strings.Split(strings.TrimSuffix(c.script.log, "\n"), "\n")
	}
	if n := opts.TailLines; n != nil && *n < int64(len(lines)) {
		lines = lines[int64(len(lines))-max(*n, 0):]
	}
	var b strings.Builder
	for _, line := range lines {
		if opts.Timestamps {
			b.WriteString(c.StartedAt.UTC().Format(time.RFC3339Nano) + " ")
		}
		b.WriteString(line + "\n")
	}
	text := b.String()
	if n := opts.LimitBytes; n != nil && *n < int64(len(text)) {
		text = text[:*n]
	}
	return io.NopCloser(strings.NewReader(text)), nil
}
