package naming

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestResolver(t *testing.T) {
	two := "2"
	none := &corev1.PodDNSConfig{Nameservers: []string{"1.2.3.4"}, Searches: []string{"a.b", "c.d"},
		Options: []corev1.PodDNSConfigOption{{Name: "ndots", Value: &two}, {Name: "edns0"}}}
	more := &corev1.PodDNSConfig{Nameservers: []string{"1.1.1.1", "9.9.9.9"}, Options: []corev1.PodDNSConfigOption{{Name: "ndots", Value: &two}}}
	for _, c := range []struct {
		host   string
		policy corev1.DNSPolicy
		pod    *corev1.PodDNSConfig
		want   string
	}{
		{"nameserver 9.9.9.9\n", corev1.DNSNone, none, "search a.b c.d\nnameserver 1.2.3.4\noptions ndots:2 edns0\n"},
		{"domain x\nnameserver 9.9.9.9\noptions ndots:5 rotate\n", corev1.DNSClusterFirst, nil,
			"search x\nnameserver 9.9.9.9\noptions ndots:5 rotate\n"},
		{"search x y\nnameserver 9.9.9.9\noptions ndots:5 rotate\n", corev1.DNSDefault, more,
			"search x y\nnameserver 9.9.9.9\nnameserver 1.1.1.1\noptions rotate ndots:2\n"},
	} {
		if got := ResolverOf(c.host, c.policy, c.pod).String(); got != c.want {
			t.Errorf("%q with %s: %q, want %q", c.host, c.policy, got, c.want)
		}
	}
}

// A pod finds itself by its whole name, where its service has given it one, without asking anybody.
func TestOwnHosts(t *testing.T) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "ns"}, Spec: corev1.PodSpec{Hostname: "web-0"}}
	ends := func(want string, domain string) {
		t.Helper()
		if got := OwnHosts(pod, []string{"10.0.0.1"}, domain); !strings.HasSuffix(got, "\n"+want+"\n") {
			t.Errorf("%q, want %q at its end", got, want)
		}
	}
	ends("10.0.0.1\tweb-0", "cluster.local")
	pod.Spec.Subdomain = "web"
	ends("10.0.0.1\tweb-0.web.ns.svc.cluster.local\tweb-0", "cluster.local")
	ends("10.0.0.1\tweb-0", "")
	override := "other"
	pod.Spec.HostnameOverride = &override
	ends("10.0.0.1\tother", "cluster.local")
}

// A pod of the host's network with a name of its own finds that beside what its host finds.
func TestSharedHosts(t *testing.T) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "ns"}, Spec: corev1.PodSpec{Subdomain: "web"}}
	for _, c := range []struct{ host, domain, want string }{
		{"127.0.0.1 localhost", "", "127.0.0.1 localhost\n10.0.0.1\tp\n"},
		{"", "cluster.local", "10.0.0.1\tp.web.ns.svc.cluster.local\tp\n"},
	} {
		if got := SharedHosts(c.host, pod, []string{"10.0.0.1"}, c.domain); got != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
}

// The whole name of a pod's host, for those that want it.
func TestHostFQDN(t *testing.T) {
	yes, override := true, "other"
	pod := func(change func(*corev1.PodSpec)) *corev1.Pod {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "shop"}, Spec: corev1.PodSpec{SetHostnameAsFQDN: &yes, Subdomain: "sub"}}
		change(&p.Spec)
		return p
	}
	for _, c := range []struct {
		change       func(*corev1.PodSpec)
		domain, want string
	}{
		{func(*corev1.PodSpec) {}, "cluster.local", "web.sub.shop.svc.cluster.local"},
		{func(s *corev1.PodSpec) { s.Hostname = "h" }, "example.com", "h.sub.shop.svc.example.com"},
		{func(s *corev1.PodSpec) { s.Subdomain = "" }, "", "web"},
		{func(s *corev1.PodSpec) { s.SetHostnameAsFQDN = nil }, "", "web"},
		{func(s *corev1.PodSpec) { s.HostnameOverride = &override }, "", "other"},
		{func(*corev1.PodSpec) {}, "", ""},
		{func(s *corev1.PodSpec) { s.Subdomain = strings.Repeat("s", 40) }, "cluster.local", ""}, // 65 characters and more
	} {
		got, err := HostFQDN(pod(c.change), c.domain)
		if got != c.want || (err == nil) != (c.want != "") {
			t.Errorf("in %q it is %q, %v; want %q", c.domain, got, err, c.want)
		}
	}
}
