package cri

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-dev/berth/atomicfile"
	"github.com/berth-dev/berth/worker/runtime"
	"github.com/berth-dev/berth/worker/runtime/mounts"
	"github.com/berth-dev/berth/worker/runtime/naming"
	"github.com/berth-dev/berth/worker/runtime/record"
)

// hostsFile is the pod's /etc/hosts in its directory. emptiedFile has the names of its sandboxes that hold nothing any more.
const (
	hostsFile   = "hosts"
	emptiedFile = "emptied"
)

// Where a host's resolver is configured; the second is systemd-resolved's, whose first is of no use on another network.
const (
	resolverFile = "/etc/resolv.conf"
	resolvedFile = "/run/systemd/resolve/resolv.conf"
	resolvedStub = "127.0.0.53"
)

// ResolverFiles are where the resolvers of this machine may stand, in the order in which they count.
func ResolverFiles() []string { return []string{resolverFile, resolvedFile} }

// RunSandbox implements runtime.Sandboxer.
func (r *Runtime) RunSandbox(ctx context.Context, pod *corev1.Pod) (runtime.Sandbox, error) {
	defer r.rests.hold()()
	if err := r.removeRest(ctx, pod.UID); err != nil { // the servers went back to a state of theirs in which it was there
		return runtime.Sandbox{}, err
	}
	old, err := r.sandboxesOf(ctx, pod.UID)
	if err != nil {
		return runtime.Sandbox{}, err
	}
	attempt := uint32(0)
	for i, s := range old {
		attempt = max(attempt, s.GetMetadata().GetAttempt()+1)
		if i == 0 && s.State == criv1.PodSandboxState_SANDBOX_READY {
			// The agent did not hear that it was made, or has ended before all was done.
			return r.takeSandbox(ctx, pod, s.Id, s.GetMetadata().GetAttempt())
		}
		// The newest is kept for the exit codes and logs of what ran in it; its network is given back.
		if i == 0 {
			err = r.stopSandboxes(ctx, pod.UID, old[:1])
		} else {
			err = r.endSandbox(ctx, s.Id, true)
		}
		if err != nil {
			return runtime.Sandbox{}, err
		}
	}
	if err := r.killLeft(pod.UID); err != nil {
		return runtime.Sandbox{}, err
	}
	handler, err := r.handler(ctx, pod)
	if err != nil {
		return runtime.Sandbox{}, err
	}
	if err := os.MkdirAll(r.logDir(pod.UID), 0o755); err != nil { // #nosec G301 -- who collects logs reads them there, as in Kubernetes
		return runtime.Sandbox{}, err
	}
	// From here on there may be something to adopt.
	if err := record.Write(r.podDir(pod.UID), pod); err != nil {
		return runtime.Sandbox{}, fmt.Errorf("keeping the pod's object: %w", err)
	}
	if err := r.podCgroup(pod); err != nil {
		return runtime.Sandbox{}, err
	}
	config, err := r.sandboxConfig(ctx, pod, attempt)
	if err != nil {
		return runtime.Sandbox{}, err
	}
	made, err := r.runtime.RunPodSandbox(ctx, &criv1.RunPodSandboxRequest{Config: config, RuntimeHandler: handler})
	if err != nil {
		return runtime.Sandbox{}, asked(err)
	}
	return r.takeSandbox(ctx, pod, made.PodSandboxId, attempt)
}

func (r *Runtime) handler(ctx context.Context, pod *corev1.Pod) (string, error) {
	class := pod.Spec.RuntimeClassName
	if class == nil || *class == "" {
		return "", nil
	}
	if r.opts.Handler == nil {
		return "", fmt.Errorf("runtime class %q: this node knows no runtime classes", *class)
	}
	return r.opts.Handler(ctx, *class)
}

// takeSandbox makes a sandbox the pod's. None of its containers is started before there is the /etc/hosts that says its addresses.
func (r *Runtime) takeSandbox(ctx context.Context, pod *corev1.Pod, id string, attempt uint32) (runtime.Sandbox, error) {
	box, err := r.statusOf(ctx, id, attempt)
	if err == nil {
		err = r.writeHosts(ctx, pod, box.ips)
	}
	if err != nil {
		return runtime.Sandbox{}, err
	}
	return r.hasSandbox(pod.UID, box), nil
}

// hasSandbox takes note of a pod's sandbox.
func (r *Runtime) hasSandbox(pod types.UID, box sandbox) runtime.Sandbox {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sandboxes[pod] = box
	return runtime.Sandbox{IPs: box.ips, Unknown: box.unknown}
}

// askAgain asks for the addresses of a sandbox that was taken over without them, and tells them.
func (r *Runtime) askAgain(ctx context.Context, pod types.UID, was sandbox) error {
	box, err := r.statusOf(ctx, was.id, was.attempt)
	if errors.Is(err, runtime.ErrNotFound) {
		r.lost(pod, was.id)
		return nil
	}
	if err != nil {
		return err
	}
	r.mu.Lock()
	now := r.sandboxes[pod]
	still := now.id == was.id && now.unknown
	if still {
		r.sandboxes[pod] = box
	}
	r.mu.Unlock()
	if still {
		r.notify(runtime.Event{ID: runtime.ID{Pod: pod}, Sandbox: &runtime.Sandbox{IPs: box.ips}})
	}
	return nil
}

// statusOf asks for what a pod has of a sandbox.
func (r *Runtime) statusOf(ctx context.Context, id string, attempt uint32) (sandbox, error) {
	ctx, cancel := asking(ctx)
	defer cancel()
	s, err := r.runtime.PodSandboxStatus(ctx, &criv1.PodSandboxStatusRequest{PodSandboxId: id})
	if err != nil {
		return sandbox{}, fmt.Errorf("asking for the addresses of the sandbox: %w", asked(err))
	}
	box := sandbox{id: id, attempt: attempt}
	if n := s.GetStatus().GetNetwork(); n.GetIp() != "" {
		box.ips = append(box.ips, n.Ip)
		for _, more := range n.AdditionalIps {
			box.ips = append(box.ips, more.Ip)
		}
	}
	return box, nil
}

// HasAddress says whether an address is that of a pod that is here.
func (r *Runtime) HasAddress(address string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, box := range r.sandboxes {
		if slices.Contains(box.ips, address) {
			return true
		}
	}
	return false
}

// sandboxesOf lists the pod's sandboxes, the newest first.
func (r *Runtime) sandboxesOf(ctx context.Context, pod types.UID) ([]*criv1.PodSandbox, error) {
	list, err := r.runtime.ListPodSandbox(ctx, &criv1.ListPodSandboxRequest{Filter: &criv1.PodSandboxFilter{
		LabelSelector: map[string]string{labelNode: r.opts.Node, labelPodUID: string(pod)}}})
	if err != nil {
		return nil, fmt.Errorf("listing the pod's sandboxes: %w", asked(err))
	}
	newestFirst(list.Items)
	return list.Items, nil
}

func newestFirst(boxes []*criv1.PodSandbox) {
	slices.SortFunc(boxes, func(a, b *criv1.PodSandbox) int {
		return cmp.Or(cmp.Compare(b.GetMetadata().GetAttempt(), a.GetMetadata().GetAttempt()), cmp.Compare(b.CreatedAt, a.CreatedAt))
	})
}

// endSandbox gives back what a sandbox holds, and forgets it with its containers, too, if it is to.
func (r *Runtime) endSandbox(ctx context.Context, id string, forget bool) error {
	remove := func() error {
		_, err := r.runtime.RemovePodSandbox(ctx, &criv1.RemovePodSandboxRequest{PodSandboxId: id})
		if err == nil || notFound(err) {
			r.mu.Lock()
			delete(r.emptied, id)
			r.mu.Unlock()
		}
		return err
	}
	if forget && r.known().name == containerd {
		// It stops what it removes, in any case: told to stop it before, it would have the network's plugins run twice. Earlier versions refuse
		// one that has broken, unless it was stopped.
		if err := remove(); err == nil || notFound(err) {
			return nil
		}
	}
	_, err := r.runtime.StopPodSandbox(ctx, &criv1.StopPodSandboxRequest{PodSandboxId: id})
	if err == nil && forget {
		err = remove()
	}
	if err != nil && !notFound(err) {
		return fmt.Errorf("ending a sandbox of the pod: %w", asked(err))
	}
	return nil
}

// stopSandboxes gives back what the sandboxes of a pod hold: of each once, as the network's plugins run every time that one is stopped.
func (r *Runtime) stopSandboxes(ctx context.Context, pod types.UID, boxes []*criv1.PodSandbox) error {
	for _, s := range boxes {
		r.mu.Lock()
		_, done := r.emptied[s.Id]
		r.mu.Unlock()
		if done && s.State != criv1.PodSandboxState_SANDBOX_READY {
			continue
		}
		if err := r.endSandbox(ctx, s.Id, false); err != nil {
			return err
		}
		r.mu.Lock()
		r.emptied[s.Id] = pod
		r.mu.Unlock()
		r.noteEmptied(pod)
	}
	return nil
}

// noteEmptied writes down which sandboxes of a pod hold nothing any more. Where that cannot be, the next agent has them stopped once more.
func (r *Runtime) noteEmptied(pod types.UID) {
	var ids []string
	r.mu.Lock()
	for id, of := range r.emptied {
		if of == pod {
			ids = append(ids, id)
		}
	}
	r.mu.Unlock()
	err := os.WriteFile(filepath.Join(r.podDir(pod), emptiedFile), []byte(strings.Join(ids, "\n")), 0o600)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		r.log.Debug("that a sandbox holds nothing any more cannot be written down", "pod", pod, "error", err)
	}
}

// recallEmptied takes over what noteEmptied wrote, and says whether a pod has a sandbox, other than current, that may hold something.
func (r *Runtime) recallEmptied(pod types.UID, boxes []*criv1.PodSandbox, current string) (owing bool) {
	noted, _ := os.ReadFile(filepath.Join(r.podDir(pod), emptiedFile)) // none: nothing is known
	r.mu.Lock()
	defer r.mu.Unlock()
	for id := range strings.Lines(string(noted)) {
		r.emptied[strings.TrimSpace(id)] = pod
	}
	return slices.ContainsFunc(boxes, func(b *criv1.PodSandbox) bool {
		_, empty := r.emptied[b.Id]
		return b.Id != current && (!empty || b.State == criv1.PodSandboxState_SANDBOX_READY)
	})
}

// StopSandbox implements runtime.Sandboxer.
func (r *Runtime) StopSandbox(ctx context.Context, pod types.UID) error {
	defer r.rests.hold()()
	r.mu.Lock()
	delete(r.sandboxes, pod)
	r.mu.Unlock()
	boxes, err := r.sandboxesOf(ctx, pod)
	if err != nil {
		return err
	}
	if err := r.stopSandboxes(ctx, pod, boxes); err != nil {
		return err
	}
	return r.killLeft(pod)
}

// sandboxConfig is what the runtime is told of a pod, at its sandbox's start and with each of its containers.
func (r *Runtime) sandboxConfig(ctx context.Context, pod *corev1.Pod, attempt uint32) (*criv1.PodSandboxConfig, error) {
	c := &criv1.PodSandboxConfig{
		Metadata:     &criv1.PodSandboxMetadata{Name: pod.Name, Namespace: pod.Namespace, Uid: string(pod.UID), Attempt: attempt},
		LogDirectory: r.logDir(pod.UID),
		Labels:       r.labels(pod),
		Annotations:  pod.Annotations,
		Linux: &criv1.LinuxPodSandboxConfig{
			CgroupParent:    r.cgroupParent(pod),
			Sysctls:         map[string]string{},
			SecurityContext: sandboxSecurity(pod),
		},
	}
	var err error
	if !pod.Spec.HostNetwork {
		if c.Hostname, err = naming.HostFQDN(pod, r.opts.Domain); err != nil {
			return nil, err
		}
	}
	var cluster *naming.ClusterDNS
	if r.opts.ClusterDNS != nil && naming.AsksCluster(pod) {
		if cluster, err = r.opts.ClusterDNS(ctx); err != nil {
			return nil, err
		}
	}
	if c.DnsConfig, err = dnsConfig(pod, cluster); err != nil {
		return nil, err
	}
	if s := pod.Spec.SecurityContext; s != nil {
		for _, one := range s.Sysctls {
			c.Linux.Sysctls[one.Name] = one.Value
		}
	}
	if pod.Spec.HostNetwork {
		return c, nil
	}
	for i := range pod.Spec.InitContainers {
		c.PortMappings = append(c.PortMappings, portMappings(&pod.Spec.InitContainers[i])...)
	}
	for i := range pod.Spec.Containers {
		c.PortMappings = append(c.PortMappings, portMappings(&pod.Spec.Containers[i])...)
	}
	return c, nil
}

func portMappings(c *corev1.Container) []*criv1.PortMapping {
	var out []*criv1.PortMapping
	for i := range c.Ports {
		p := &c.Ports[i]
		if p.HostPort == 0 {
			continue
		}
		out = append(out, &criv1.PortMapping{Protocol: protocol(p.Protocol), ContainerPort: p.ContainerPort, HostPort: p.HostPort, HostIp: p.HostIP})
	}
	return out
}

func protocol(p corev1.Protocol) criv1.Protocol {
	switch p {
	case corev1.ProtocolUDP:
		return criv1.Protocol_UDP
	case corev1.ProtocolSCTP:
		return criv1.Protocol_SCTP
	}
	return criv1.Protocol_TCP
}

func dnsConfig(pod *corev1.Pod, cluster *naming.ClusterDNS) (*criv1.DNSConfig, error) {
	host, err := os.ReadFile(resolverFile)
	if err != nil && !os.IsNotExist(err) {
		return nil, fmt.Errorf("reading the host's resolver configuration: %w", err)
	}
	r := naming.ResolverOf(string(host), corev1.DNSDefault, nil)
	if !pod.Spec.HostNetwork && len(r.Servers) == 1 && r.Servers[0] == resolvedStub {
		if b, err := os.ReadFile(resolvedFile); err == nil {
			host = b
		}
	}
	r = naming.ResolverFor(string(host), pod, cluster)
	return &criv1.DNSConfig{Servers: r.Servers, Searches: r.Searches, Options: r.Options}, nil
}

// writeHosts writes the pod's /etc/hosts, which its containers have mounted.
func (r *Runtime) writeHosts(ctx context.Context, pod *corev1.Pod, ips []string) error {
	domain := ""
	if r.opts.ClusterDNS != nil {
		cluster, err := r.opts.ClusterDNS(ctx)
		if err != nil {
			return err
		}
		if cluster != nil {
			domain = cluster.Domain
		}
	}
	text, aliases := naming.OwnHosts(pod, ips, domain), slices.Concat(r.opts.HostAliases, pod.Spec.HostAliases)
	if pod.Spec.HostNetwork {
		aliases = pod.Spec.HostAliases
		host, err := os.ReadFile("/etc/hosts")
		if err != nil && !os.IsNotExist(err) {
			return err
		}
		text = string(host)
	}
	path := filepath.Join(r.podDir(pod.UID), hostsFile)
	if err := atomicfile.Write(path, []byte(naming.Hosts(text, aliases)), 0o644); err != nil {
		return fmt.Errorf("writing the pod's hosts file: %w", err)
	}
	return nil
}

// Remove implements runtime.Runtime. When it has returned nothing of the pod runs or is held: its addresses, mounts and cgroup are given back. What
// the runtime still has of it, and its logs, is removed when no pod waits for the runtime (rests).
func (r *Runtime) Remove(ctx context.Context, pod types.UID) error {
	defer r.rests.hold()()
	if left, owed := r.rests.owes(pod); owed {
		return r.removeRest(ctx, pod)
	} else if left {
		return nil
	}
	r.mu.Lock()
	for id := range r.running {
		if id.Pod == pod {
			r.mu.Unlock()
			return fmt.Errorf("removing pod %s: container %s still runs", pod, id.Container)
		}
	}
	delete(r.sandboxes, pod)
	r.mu.Unlock()
	boxes, err := r.sandboxesOf(ctx, pod)
	if err == nil {
		err = r.release(ctx, pod, boxes)
	}
	switch {
	case err != nil:
	case len(boxes) > 0:
		err = r.leave(ctx, pod)
	default:
		err = r.removeRecords(ctx, pod)
	}
	if err != nil {
		return fmt.Errorf("removing pod %s: %w", pod, err)
	}
	return nil
}

// release gives back what a pod holds in which no container runs.
func (r *Runtime) release(ctx context.Context, pod types.UID, boxes []*criv1.PodSandbox) error {
	if err := r.stopSandboxes(ctx, pod, boxes); err != nil {
		return err
	}
	if err := r.killLeft(pod); err != nil {
		return err
	}
	if err := r.removeCgroup(pod); err != nil {
		return err
	}
	if err := r.removeImageVolumes(ctx, pod); err != nil {
		return err
	}
	return mounts.RemoveAll(ctx, filepath.Join(r.podDir(pod), containersDir))
}
