package naming

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
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
