package apiserver

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func serviceManifest(name, spec string) string {
	return "apiVersion: v1\nkind: Service\nmetadata: {name: " + name + "}\nspec: {ports: [{port: 80}], selector: {app: web}, " + spec + "}"
}

// Services get addresses and ports of their own, and are refused others' in Kubernetes'
// words.
func TestServiceAddressesByKubectl(t *testing.T) {
	s := start(t, newDouble(t), func(c *Config) {
		c.Services = ServiceRanges{ClusterIPs: []netip.Prefix{netip.MustParsePrefix("10.7.0.0/24")}, FirstNodePort: 31000, LastNodePort: 31099}
	})
	k := newKubectl(t, s, "kube-public")
	field := func(name, path string) string {
		k.t.Helper()
		out, err := k.run("", "get", "service", name, "-o", "jsonpath={"+path+"}")
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	k.want(serviceManifest("web", ""), []string{"apply"}, "service/web created")
	k.want(serviceManifest("web", ""), []string{"apply"}, "unchanged")
	ip := field("web", ".spec.clusterIP")
	if !strings.HasPrefix(ip, "10.7.0.") || field("web", ".spec.clusterIPs[*]") != ip || field("web", ".spec.ipFamilies[*]") != "IPv4" {
		t.Errorf("the service has the address %q", ip)
	}
	k.want(serviceManifest("web", "type: NodePort"), []string{"apply"}, "configured")
	port := field("web", ".spec.ports[0].nodePort")
	if !strings.HasPrefix(port, "310") || field("web", ".spec.clusterIP") != ip {
		t.Errorf("the service has the port %q", port)
	}
	k.want(serviceManifest("headless", "clusterIP: None"), []string{"create"}, "created")
	k.want(serviceManifest("fixed", "clusterIP: 10.7.0.9"), []string{"create"}, "created")
	for _, tt := range []struct{ spec, refusal string }{
		{"clusterIP: 10.7.0.9", `spec.clusterIPs: Invalid value: ["10.7.0.9"]: failed to allocate IP 10.7.0.9: provided IP is already allocated`},
		{"clusterIP: 10.8.0.9", "failed to allocate IP 10.8.0.9: the provided IP (10.8.0.9) is not in the valid range. The range of valid IPs is 10.7.0.0/24"},
		{"clusterIP: 10.7.0.0", "the provided IP (10.7.0.0) is not in the valid range. The range of valid IPs is 10.7.0.0/24"},     // the range's own
		{"clusterIP: 10.7.0.255", "the provided IP (10.7.0.255) is not in the valid range. The range of valid IPs is 10.7.0.0/24"}, // a broadcast's
		{"type: NodePort, ports: [{port: 80, nodePort: " + port + "}]", "spec.ports[0].nodePort: Invalid value: " + port + ": provided port is already allocated"},
		{"type: NodePort, ports: [{port: 80, nodePort: 80}]", "provided port is not in the valid range. The range of valid ports is 31000-31099"},
		{"ipFamilyPolicy: RequireDualStack", "this cluster is not configured for dual-stack services"},
	} {
		m := serviceManifest("other", tt.spec)
		if strings.Contains(tt.spec, "ports:") {
			m = strings.Replace(m, "ports: [{port: 80}], ", "", 1)
		}
		k.refused(m, []string{"create"}, tt.refusal)
		k.refused(m, []string{"apply", "--server-side"}, tt.refusal)
		k.refused(m, []string{"create", "--dry-run=server"}, tt.refusal)
	}
	k.want(serviceManifest("balanced", "type: LoadBalancer"), []string{"create"}, "created")
	k.want("", []string{"get", "svc", "balanced"}, "LoadBalancer", "<pending>")
	if got := field("balanced", ".status.conditions[*].reason"); got != "NoProvider" {
		t.Errorf("the status says %q", got)
	}
	k.want("", []string{"patch", "svc", "balanced", "--subresource=status", "--type=merge", "-p", `{"status":{"loadBalancer":{"ingress":[{"ip":"192.0.2.1"}]}}}`}, "patched")
	if got := field("balanced", ".status.conditions[*].reason"); got != "" {
		t.Errorf("the status says %q of a service that has an address", got)
	}
	k.want(serviceManifest("web", "type: ExternalName, externalName: example.com"), []string{"apply"}, "configured")
	k.want(serviceManifest("other", "clusterIP: "+ip), []string{"create"}, "created") // it is free again
}

// Two dual-stack families, and a range that runs full.
func TestServiceAddressesOfTwoFamilies(t *testing.T) {
	s := start(t, newDouble(t), func(c *Config) {
		c.Services = ServiceRanges{ClusterIPs: []netip.Prefix{netip.MustParsePrefix("fd00::/125"), netip.MustParsePrefix("10.7.0.0/29")}, FirstNodePort: 31000, LastNodePort: 31001}
	})
	k := newKubectl(t, s, "kube-public")
	k.want(serviceManifest("both", "ipFamilyPolicy: RequireDualStack"), []string{"create"}, "created")
	k.want("", []string{"get", "svc", "both", "-o", "jsonpath={.spec.ipFamilies[*]} {.spec.clusterIPs[*]}"}, "IPv6 IPv4 fd00::", " 10.7.0.")
	for i := range 4 { // two to six are given out
		k.want(serviceManifest(fmt.Sprint("s", i), ""), []string{"create"}, "created")
	}
	k.refused(serviceManifest("more", ""), []string{"create"}, "range is full")
	k.refused(serviceManifest("zero", "ipFamilies: [IPv6], clusterIP: 'fd00::'"), []string{"create"}, "is not in the valid range")
	k.want(serviceManifest("last", "ipFamilies: [IPv6], clusterIP: 'fd00::7'"), []string{"create"}, "created") // nothing is sent to all by IPv6
	k.want("", []string{"delete", "svc", "s2"}, "deleted")
	k.want(serviceManifest("more", ""), []string{"create"}, "created")
}

// However many ask at once: everybody gets an address, and nobody another's.
func TestServiceAddressesAreNobodyElses(t *testing.T) {
	d := newDouble(t)
	ranges := ServiceRanges{ClusterIPs: []netip.Prefix{netip.MustParsePrefix("10.7.0.0/25")}, FirstNodePort: 31000, LastNodePort: 31099}
	one, two := start(t, d, func(c *Config) { c.Services = ranges }), start(t, d, func(c *Config) { c.Services = ranges })
	const each = 30
	var asking sync.WaitGroup
	for w, s := range []*testServer{one, one, two, two} {
		client := s.client(t)
		asking.Go(func() {
			for i := range each {
				o := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("s%d-%d", w, i)}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}}}
				if i%2 == 0 {
					o.Spec.Type = corev1.ServiceTypeNodePort
				}
				if _, err := client.CoreV1().Services("kube-public").Create(context.Background(), o, metav1.CreateOptions{}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	asking.Wait()
	list, err := one.client(t).CoreV1().Services("kube-public").List(t.Context(), metav1.ListOptions{})
	if err != nil || len(list.Items) != 4*each {
		t.Fatalf("%d services: %v", len(list.Items), err)
	}
	seen := map[string]string{}
	for _, o := range list.Items {
		for _, what := range []string{o.Spec.ClusterIP, fmt.Sprint(o.Spec.Ports[0].NodePort)} {
			if what == "" || what != "0" && seen[what] != "" {
				t.Errorf("%s and %s have %q", seen[what], o.Name, what)
			}
			seen[what] = o.Name
		}
	}
}
