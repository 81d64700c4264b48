package devices

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/berth-dev/berth/worker/runtime"
)

// grant is what a container has of one resource.
type grant struct {
	Pod       types.UID `json:"pod"`
	Container string    `json:"container"`
	// Passing: the container is over before the pod's others begin, and they may have the same devices.
	Passing  bool     `json:"passing,omitempty"`
	Resource string   `json:"resource"`
	Devices  []string `json:"devices"`
	// Answer is how the plugin wants them to be given.
	Answer *pluginapi.ContainerAllocateResponse `json:"answer"`
}

// Give gives a container its devices: those that it has already, or others that nobody has. holds says whether a pod is still one
// that keeps what it has.
func (r *Registry) Give(ctx context.Context, pod *corev1.Pod, c *corev1.Container, holds func(types.UID) bool) (runtime.Devices, error) {
	var out runtime.Devices
	var names []string
	r.mu.Lock()
	for _, name := range slices.Sorted(maps.Keys(c.Resources.Limits)) {
		if amount := c.Resources.Limits[name]; r.resources[string(name)] != nil && !amount.IsZero() {
			names = append(names, string(name))
		}
	}
	r.mu.Unlock()
	if len(names) == 0 {
		return out, nil
	}
	r.release(holds)
	for _, name := range names {
		amount := c.Resources.Limits[corev1.ResourceName(name)]
		g, p, err := r.hold(ctx, pod, c, name, int(amount.Value()))
		if err == nil {
			err = prepare(ctx, p, g.Devices)
		}
		if err == nil {
			err = add(&out, g.Answer)
		}
		if err != nil {
			return runtime.Devices{}, fmt.Errorf("devices %s: %w", name, err)
		}
	}
	return out, nil
}

// hold gives devices of one resource while nobody else is given any of it: a plugin that does not answer holds up those who ask for its devices, and nobody else.
func (r *Registry) hold(ctx context.Context, pod *corev1.Pod, c *corev1.Container, name string, n int) (grant, *plugin, error) {
	r.mu.Lock()
	k := r.resources[name]
	r.mu.Unlock()
	select {
	case k.giving <- struct{}{}:
		defer func() { <-k.giving }()
	case <-ctx.Done():
		return grant{}, nil, fmt.Errorf("waiting for their plugin, which others ask: %w", context.Cause(ctx))
	}
	return r.give(ctx, pod, c, name, n)
}

// release takes back what pods had that are over.
func (r *Registry) release(holds func(types.UID) bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	before := len(r.grants)
	r.grants = slices.DeleteFunc(r.grants, func(g grant) bool { return !holds(g.Pod) })
	if len(r.grants) != before {
		if err := r.save(); err != nil {
			r.log.Warn("which devices are free again cannot be kept", "error", err)
		}
	}
}

// give finds a container's devices of one resource, and the plugin that they are of, if it is there. giving is the caller's.
func (r *Registry) give(ctx context.Context, pod *corev1.Pod, c *corev1.Container, name string, n int) (g grant, p *plugin, err error) {
	r.mu.Lock()
	k := r.resources[name]
	p = k.plugin
	i := slices.IndexFunc(r.grants, func(g grant) bool { return g.Pod == pod.UID && g.Container == c.Name && g.Resource == name })
	var bad []string
	if i >= 0 {
		g = r.grants[i]
		for _, id := range g.Devices {
			if p != nil && !k.healthy(id) {
				bad = append(bad, id)
			}
		}
	}
	r.mu.Unlock()
	switch {
	case len(bad) > 0:
		return g, p, fmt.Errorf("%s, which the container has, is not healthy", strings.Join(bad, ", "))
	case i < 0 && p == nil:
		return g, p, errors.New("their plugin is gone")
	case i < 0:
		g, err = r.choose(ctx, p, pod, c, name, n)
	}
	return g, p, err
}

// prepare tells a plugin that a container with its devices is about to start, where it wants to be told.
func prepare(ctx context.Context, p *plugin, devices []string) error {
	if p == nil || !p.preStart {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	if _, err := p.client.PreStartContainer(ctx, &pluginapi.PreStartContainerRequest{DevicesIds: devices}); err != nil {
		return fmt.Errorf("their plugin, before the container starts: %w", err)
	}
	return nil
}

// choose gives devices to a container that has none.
func (r *Registry) choose(ctx context.Context, p *plugin, pod *corev1.Pod, c *corev1.Container, name string, n int) (grant, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	free, first := r.free(pod, name)
	if len(free) < n {
		return grant{}, fmt.Errorf("%d are asked for, and %d are healthy and free", n, len(free))
	}
	ids := r.pick(ctx, p, name, free, first, n)
	answer, err := p.client.Allocate(ctx, &pluginapi.AllocateRequest{ContainerRequests: []*pluginapi.ContainerAllocateRequest{{DevicesIds: ids}}})
	if err != nil {
		return grant{}, fmt.Errorf("their plugin does not give %s: %w", strings.Join(ids, ", "), err)
	}
	if len(answer.ContainerResponses) != 1 {
		return grant{}, fmt.Errorf("their plugin answers for %d containers instead of one", len(answer.ContainerResponses))
	}
	g := grant{Pod: pod.UID, Container: c.Name, Passing: passing(pod, c.Name), Resource: name, Devices: ids, Answer: answer.ContainerResponses[0]}
	if err := add(new(runtime.Devices), g.Answer); err != nil {
		return g, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.grants = append(r.grants, g)
	if err := r.save(); err != nil {
		r.grants = r.grants[:len(r.grants)-1]
		return g, fmt.Errorf("they cannot be kept for the container: %w", err)
	}
	return g, nil
}

// passing: an init container that is no sidecar.
func passing(pod *corev1.Pod, name string) bool {
	return slices.ContainsFunc(pod.Spec.InitContainers, func(c corev1.Container) bool {
		return c.Name == name && (c.RestartPolicy == nil || *c.RestartPolicy != corev1.ContainerRestartPolicyAlways)
	})
}

// free are the healthy devices that a pod's next container may have, and which of them the pod had already for containers that are
// over: those come first.
func (r *Registry) free(pod *corev1.Pod, name string) (free, first []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	taken, again := map[string]bool{}, map[string]bool{}
	for _, g := range r.grants {
		for _, id := range g.Devices {
			switch {
			case g.Resource != name:
			case g.Pod == pod.UID && g.Passing:
				again[id] = true
			default:
				taken[id] = true
			}
		}
	}
	k := r.resources[name]
	for _, id := range slices.Sorted(maps.Keys(k.devices)) {
		if k.healthy(id) && !taken[id] {
			if free = append(free, id); again[id] {
				first = append(first, id)
			}
		}
	}
	return free, first
}

// pick takes n of the free devices: those that the pod had first, and what the plugin prefers.
func (r *Registry) pick(ctx context.Context, p *plugin, name string, free, first []string, n int) []string {
	if len(first) >= n {
		return first[:n:n]
	}
	if p.prefers {
		answer, err := p.client.GetPreferredAllocation(ctx, &pluginapi.PreferredAllocationRequest{ContainerRequests: []*pluginapi.ContainerPreferredAllocationRequest{
			{AvailableDeviceIDs: free, MustIncludeDeviceIDs: first, AllocationSize: int32(n)},
		}})
		if err == nil && len(answer.ContainerResponses) == 1 {
			ids := slices.Sorted(slices.Values(answer.ContainerResponses[0].DeviceIDs))
			if len(ids) == n && len(slices.Compact(slices.Clone(ids))) == n && within(ids, free) && within(first, ids) {
				return ids
			}
			err = fmt.Errorf("it answers %q", answer.ContainerResponses[0].DeviceIDs)
		}
		r.log.Warn("a device plugin does not say which devices it prefers", "resource", name, "error", err)
	}
	ids := slices.Clone(first)
	for _, id := range free {
		if len(ids) < n && !slices.Contains(ids, id) {
			ids = append(ids, id)
		}
	}
	return ids
}

func within(part, all []string) bool {
	return !slices.ContainsFunc(part, func(id string) bool { return !slices.Contains(all, id) })
}

// add puts together what plugins want a container to have.
func add(out *runtime.Devices, a *pluginapi.ContainerAllocateResponse) error {
	for _, name := range slices.Sorted(maps.Keys(a.GetEnvs())) {
		if name == "" || strings.ContainsAny(name, "=\x00") {
			return fmt.Errorf("their plugin names a variable %q", name)
		}
		out.Env = append(out.Env, name+"="+a.Envs[name])
	}
	for _, m := range a.GetMounts() {
		if !filepath.IsAbs(m.HostPath) || !filepath.IsAbs(m.ContainerPath) {
			return fmt.Errorf("their plugin mounts %q at %q", m.HostPath, m.ContainerPath)
		}
		out.Mounts = append(out.Mounts, runtime.Mount{Source: m.HostPath, Target: m.ContainerPath, ReadOnly: m.ReadOnly})
	}
	for _, d := range a.GetDevices() {
		if !filepath.IsAbs(d.HostPath) || !filepath.IsAbs(d.ContainerPath) {
			return fmt.Errorf("their plugin gives the device %q at %q", d.HostPath, d.ContainerPath)
		}
		out.Nodes = append(out.Nodes, runtime.DeviceNode{HostPath: d.HostPath, Path: d.ContainerPath, Permissions: d.Permissions})
	}
	if out.Annotations == nil {
		out.Annotations = map[string]string{}
	}
	maps.Copy(out.Annotations, a.GetAnnotations())
	for _, d := range a.GetCdiDevices() {
		out.CDI = append(out.CDI, d.Name)
	}
	return nil
}
