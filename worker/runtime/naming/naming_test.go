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
}
