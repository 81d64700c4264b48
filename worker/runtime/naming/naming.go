// Package naming says what a pod is called and how it finds others by name: its host name, its hosts file and the
// configuration of its resolver. It must never touch a file.
package naming

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// Hostname is the name of the pod's host as the pod sees it, unless it is on the host's network.
func Hostname(pod *corev1.Pod) string {
	name := pod.Name
	if pod.Spec.Hostname != "" {
		name = pod.Spec.Hostname
	}
	if overridden(pod) {
		name = *pod.Spec.HostnameOverride
	}
	const longest = 63
	if len(name) > longest {
		name = strings.TrimRight(name[:longest], "-.")
	}
	return name
}

// overridden: the pod says what its host is called, and that is all of its name.
func overridden(pod *corev1.Pod) bool {
	h := pod.Spec.HostnameOverride
	return h != nil && *h != ""
}

// HostFQDN is Hostname or, where the pod wants its whole name for that and has a subdomain, that name in the cluster's domain. As with the
// kubelet it is an error if that is longer than the kernel lets a host's name be.
func HostFQDN(pod *corev1.Pod, domain string) (string, error) {
	if !WantsFQDN(pod) {
		return Hostname(pod), nil
	}
	if domain == "" {
		return "", fmt.Errorf("spec.setHostnameAsFQDN: the cluster's domain is not known")
	}
	const longest = 64
	name := fullName(pod, domain)
	if len(name) > longest {
		return "", fmt.Errorf("failed to construct FQDN from pod hostname and cluster domain, FQDN %s is too long (%d characters is the max, %d characters requested)",
			name, longest, len(name))
	}
	return name, nil
}

// WantsFQDN says whether the pod's host is to be called by its whole name. One without a subdomain has none.
func WantsFQDN(pod *corev1.Pod) bool {
	s := &pod.Spec
	return s.SetHostnameAsFQDN != nil && *s.SetHostnameAsFQDN && s.Subdomain != "" && !overridden(pod)
}

func fullName(pod *corev1.Pod, domain string) string {
	return fmt.Sprintf("%s.%s.%s.svc.%s", Hostname(pod), pod.Spec.Subdomain, pod.Namespace, domain)
}

// Hosts is an /etc/hosts with a pod's aliases at its end.
func Hosts(host string, aliases []corev1.HostAlias) string {
	var b strings.Builder
	b.WriteString(host)
	if host != "" && !strings.HasSuffix(host, "\n") {
		b.WriteByte('\n')
	}
	if len(aliases) == 0 {
		return b.String()
	}
	b.WriteString("\n# Entries added by HostAliases.\n")
	for _, a := range aliases {
		fmt.Fprintf(&b, "%s\t%s\n", a.IP, strings.Join(a.Hostnames, "\t"))
	}
	return b.String()
}

// OwnHosts is the /etc/hosts of a pod with addresses of its own, before its aliases. domain is the cluster's; empty: there are no names.
func OwnHosts(pod *corev1.Pod, ips []string, domain string) string {
	var b strings.Builder
	b.WriteString("# Kubernetes-managed hosts file.\n" +
		"127.0.0.1\tlocalhost\n" +
		"::1\tlocalhost ip6-localhost ip6-loopback\n" +
		"fe00::0\tip6-localnet\n" +
		"fe00::0\tip6-mcastprefix\n" +
		"fe00::1\tip6-allnodes\n" +
		"fe00::2\tip6-allrouters\n")
	b.WriteString(ownNames(pod, ips, domain))
	return b.String()
}

// SharedHosts is the /etc/hosts of a pod that has a name of its own and the addresses of its host, whose file is host.
func SharedHosts(host string, pod *corev1.Pod, ips []string, domain string) string {
	return Hosts(host, nil) + ownNames(pod, ips, domain)
}

// ownNames are the lines of an /etc/hosts by which a pod finds itself.
func ownNames(pod *corev1.Pod, ips []string, domain string) string {
	var b strings.Builder
	names := Hostname(pod)
	if pod.Spec.Subdomain != "" && domain != "" && !overridden(pod) {
		names = fullName(pod, domain) + "\t" + names
	}
	for _, ip := range ips {
		fmt.Fprintf(&b, "%s\t%s\n", ip, names)
	}
	return b.String()
}

// Resolver is the configuration of a pod's resolver.
type Resolver struct{ Servers, Searches, Options []string }

// ClusterDNS is where names of the cluster are answered.
type ClusterDNS struct {
	Servers []string
	Domain  string
}

// AsksCluster says whether a pod finds others by the cluster's names: by its policy, and those of the host's network only where they say so.
func AsksCluster(pod *corev1.Pod) bool {
	switch pod.Spec.DNSPolicy {
	case corev1.DNSClusterFirstWithHostNet:
		return true
	case corev1.DNSClusterFirst, "":
		return !pod.Spec.HostNetwork
	}
	return false
}

// ResolverFor is the configuration of a pod's resolver over the host's; with a cluster's for those pods
// that ask it, as a kubelet makes it.
func ResolverFor(host string, pod *corev1.Pod, cluster *ClusterDNS) Resolver {
	if cluster == nil || !AsksCluster(pod) {
		return ResolverOf(host, pod.Spec.DNSPolicy, pod.Spec.DNSConfig)
	}
	svc := "svc." + cluster.Domain
	searches := union([]string{pod.Namespace + "." + svc, svc, cluster.Domain}, ResolverOf(host, corev1.DNSDefault, nil).Searches)
	text := Resolver{Servers: cluster.Servers, Searches: searches, Options: []string{"ndots:5"}}.String()
	return ResolverOf(text, corev1.DNSDefault, pod.Spec.DNSConfig)
}

// ResolverOf is a host's resolv.conf with what the pod adds to it; with the policy None, it has only that. An option of
// the pod's takes the place of the host's.
func ResolverOf(host string, policy corev1.DNSPolicy, c *corev1.PodDNSConfig) Resolver {
	var r Resolver
	for line := range strings.Lines(host) {
		f := strings.Fields(line)
		if len(f) < 2 || policy == corev1.DNSNone {
			continue
		}
		switch f[0] {
		case "nameserver":
			r.Servers = append(r.Servers, f[1])
		case "search", "domain":
			r.Searches = f[1:]
		case "options":
			r.Options = append(r.Options, f[1:]...)
		}
	}
	if c == nil {
		return r
	}
	r.Servers, r.Searches = union(r.Servers, c.Nameservers), union(r.Searches, c.Searches)
	for _, o := range c.Options {
		r.Options = slices.DeleteFunc(r.Options, func(s string) bool { name, _, _ := strings.Cut(s, ":"); return name == o.Name })
		text := o.Name
		if o.Value != nil {
			text += ":" + *o.Value
		}
		r.Options = append(r.Options, text)
	}
	return r
}

// String is the resolv.conf.
func (r Resolver) String() string {
	var b strings.Builder
	if len(r.Searches) > 0 {
		fmt.Fprintf(&b, "search %s\n", strings.Join(r.Searches, " "))
	}
	for _, s := range r.Servers {
		fmt.Fprintf(&b, "nameserver %s\n", s)
	}
	if len(r.Options) > 0 {
		fmt.Fprintf(&b, "options %s\n", strings.Join(r.Options, " "))
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
