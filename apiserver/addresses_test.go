package apiserver

import (
	"net/netip"
	"testing"
)

// Ranges extend each other, and every address has its object; what somebody keeps is given to no service.
func TestServiceRangesByKubectl(t *testing.T) {
	s := start(t, newDouble(t), func(c *Config) {
		c.Services = ServiceRanges{ClusterIPs: []netip.Prefix{netip.MustParsePrefix("10.7.0.0/29")}, FirstNodePort: 31000, LastNodePort: 31099}
	})
	k := newKubectl(t, s, "kube-public")
	cidr := func(name, cidrs string) string {
		return "apiVersion: networking.k8s.io/v1\nkind: ServiceCIDR\nmetadata: {name: " + name + "}\nspec: {cidrs: [" + cidrs + "]}"
	}
	address := func(name string) string {
		return "apiVersion: networking.k8s.io/v1\nkind: IPAddress\nmetadata: {name: " + name + "}\nspec: {parentRef: {group: example.com, resource: routers, name: one}}"
	}
	k.want(cidr("kubernetes", "10.7.0.0/29"), []string{"create"}, "created")
	for _, name := range []string{"a", "b", "c", "d", "e"} {
		k.want(serviceManifest(name, ""), []string{"create"}, "created")
	}
	k.want("", []string{"get", "ipaddresses", "-l", "ipaddress.kubernetes.io/managed-by=ipallocator.k8s.io"}, "10.7.0.2", "10.7.0.6", "services/kube-public/e")
	k.refused(serviceManifest("f", ""), []string{"create"}, "range is full")
	k.refused(serviceManifest("f", "clusterIP: 10.8.0.5"), []string{"create"}, "not in the valid range. The range of valid IPs is 10.7.0.0/29")
	k.want(cidr("more", "10.8.0.0/28"), []string{"create"}, "created")
	k.want(serviceManifest("f", "clusterIP: 10.8.0.5"), []string{"create"}, "created")
	k.want("", []string{"get", "ip", "10.8.0.5"}, "services/kube-public/f")
	k.want(address("10.8.0.1"), []string{"create"}, "created")
	k.want(serviceManifest("g", ""), []string{"create"}, "created")
	k.want("", []string{"get", "service", "g"}, "10.8.0.")

	k.refused(address("10.8.0.5"), []string{"create"}, `ipaddresses.networking.k8s.io "10.8.0.5" already exists`)
	k.refused(serviceManifest("h", "clusterIP: 10.8.0.1"), []string{"create"}, "failed to allocate IP 10.8.0.1: provided IP is already allocated")
	k.want("", []string{"delete", "ip", "10.8.0.1"}, "deleted")
	k.want(serviceManifest("h", "clusterIP: 10.8.0.1"), []string{"create"}, "created")
	k.want("", []string{"delete", "service", "h"}, "deleted")
	k.refused("", []string{"get", "ip", "10.8.0.1"}, "not found")

	k.refused(cidr("both", `"10.9.0.0/24", "10.10.0.0/24"`), []string{"create"}, "may specify no more than one IP for each IP family")
	k.refused(address("10.09.0.1"), []string{"create"}, "must not have leading 0s")
	k.refused("", []string{"patch", "servicecidr", "more", "--type=merge", "-p", `{"spec":{"cidrs":["10.9.0.0/24"]}}`}, "field is immutable")
	k.want("", []string{"patch", "servicecidr", "more", "--type=merge", "-p", `{"metadata":{"finalizers":["example.com/held"]}}`}, "patched")
	k.want("", []string{"delete", "servicecidr", "more", "--wait=false"}, "deleted")
	k.refused(serviceManifest("h", ""), []string{"create"}, "range is full") // nothing new comes of one that goes
	k.refused(serviceManifest("h", "clusterIP: 10.8.0.1"), []string{"create"}, "not in the valid range. The range of valid IPs is 10.7.0.0/29")
	k.want(serviceManifest("f", "externalIPs: [192.0.2.1]"), []string{"apply"}, "configured") // and who has one keeps it
}
