package process

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// hostMount is a file of a container's directory that stands in for one of the host's.
type hostMount struct{ Source, Target string }

// hostMounts are the files of the host that are others in this pod.
func (r *Runtime) hostMounts(pod *corev1.Pod) []hostMount {
	var out []hostMount
	if len(pod.Spec.HostAliases) > 0 {
		out = append(out, hostMount{hostsFile, "/etc/hosts"})
	}
	if pod.Spec.DNSConfig != nil || pod.Spec.DNSPolicy == corev1.DNSNone {
		out = append(out, hostMount{resolvFile, "/etc/resolv.conf"})
	}
	return out
}

// hostFiles writes what hostMounts names into the container's directory.
func (r *Runtime) hostFiles(pod *corev1.Pod, dir string) error {
	for _, m := range r.hostMounts(pod) {
		host, err := os.ReadFile(m.Target)
		if err != nil && !os.IsNotExist(err) {
			return err
		}
		text := hostsWith(string(host), pod.Spec.HostAliases)
		if m.Source == resolvFile {
			text = resolverConfig(string(host), pod.Spec.DNSPolicy, pod.Spec.DNSConfig)
		}
		if err := os.WriteFile(filepath.Join(dir, m.Source), []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// hostsWith is an /etc/hosts with a pod's aliases at its end.
func hostsWith(host string, aliases []corev1.HostAlias) string {
	var b strings.Builder
	b.WriteString(host)
	if host != "" && !strings.HasSuffix(host, "\n") {
		b.WriteByte('\n')
	}
	b.WriteString("\n# Entries added by HostAliases.\n")
	for _, a := range aliases {
		fmt.Fprintf(&b, "%s\t%s\n", a.IP, strings.Join(a.Hostnames, "\t"))
	}
	return b.String()
}

// resolverConfig is a resolv.conf with what the pod adds to the host's; with the policy None, it has only that. An option
// of the pod's takes the place of the host's.
func resolverConfig(host string, policy corev1.DNSPolicy, c *corev1.PodDNSConfig) string {
	var servers, searches, options []string
	for line := range strings.Lines(host) {
		f := strings.Fields(line)
		if len(f) < 2 || policy == corev1.DNSNone {
			continue
		}
		switch f[0] {
		case "nameserver":
			servers = append(servers, f[1])
		case "search", "domain":
			searches = f[1:]
		case "options":
			options = append(options, f[1:]...)
		}
	}
	if c != nil {
		servers, searches = union(servers, c.Nameservers), union(searches, c.Searches)
		for _, o := range c.Options {
			options = slices.DeleteFunc(options, func(s string) bool { name, _, _ := strings.Cut(s, ":"); return name == o.Name })
			text := o.Name
			if o.Value != nil {
				text += ":" + *o.Value
			}
			options = append(options, text)
		}
	}
	var b strings.Builder
	if len(searches) > 0 {
		fmt.Fprintf(&b, "search %s\n", strings.Join(searches, " "))
	}
	for _, s := range servers {
		fmt.Fprintf(&b, "nameserver %s\n", s)
	}
	if len(options) > 0 {
		fmt.Fprintf(&b, "options %s\n", strings.Join(options, " "))
	}
	return b.String()
}

func union(a, b []string) []string {
	for _, s := range b {
		if !slices.Contains(a, s) {
			a = append(a, s)
		}
	}
	return a
}
