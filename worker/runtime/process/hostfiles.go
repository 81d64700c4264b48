package process

import (
	"os"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/worker/runtime"
	"github.com/berth-dev/berth/worker/runtime/naming"
)

// hostMount is a file of a container's directory that stands in for one of the host's.
type hostMount struct{ Source, Target string }

// hostMounts are the files of the host that are others in this pod.
func (r *Runtime) hostMounts(pod *corev1.Pod) []hostMount {
	var out []hostMount
	if len(pod.Spec.HostAliases) > 0 || !pod.Spec.HostNetwork {
		out = append(out, hostMount{hostsFile, "/etc/hosts"})
	}
	if pod.Spec.DNSConfig != nil || pod.Spec.DNSPolicy == corev1.DNSNone {
		out = append(out, hostMount{resolvFile, "/etc/resolv.conf"})
	}
	return out
}

// hostFiles writes what hostMounts names into the container's directory.
func (r *Runtime) hostFiles(spec *runtime.Spec, dir string) error {
	pod := spec.Pod
	for _, m := range r.hostMounts(pod) {
		host, err := os.ReadFile(m.Target)
		if err != nil && !os.IsNotExist(err) {
			return err
		}
		text := string(host)
		if !pod.Spec.HostNetwork { // PO1: its name is its own
			text = naming.SharedHosts(text, pod, spec.IPs, r.opts.Domain)
		}
		text = naming.Hosts(text, pod.Spec.HostAliases)
		if m.Source == resolvFile {
			text = naming.ResolverOf(string(host), pod.Spec.DNSPolicy, pod.Spec.DNSConfig).String()
		}
		if err := os.WriteFile(filepath.Join(dir, m.Source), []byte(text), 0o644); err != nil { // #nosec G306 -- every user of the pod reads its /etc/hosts
			return err
		}
	}
	return nil
}
