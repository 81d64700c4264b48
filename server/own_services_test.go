package server

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/rpc"
)

// The API's endpoint slices are those of the servers, by port and family.
func TestAPISlice(t *testing.T) {
	slice := apiSlice("kubernetes-7640", []netip.Addr{netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")}, 7640)
	if got := fmt.Sprintln(len(slice.Endpoints), *slice.Ports[0].Port, slice.AddressType, slice.Labels[discoveryv1.LabelServiceName]); got != "2 7640 IPv4 kubernetes\n" {
		t.Error(got)
	}
	if slice = apiSlice("kubernetes-1-ipv6", []netip.Addr{netip.MustParseAddr("fd00::1")}, 1); slice.AddressType != discoveryv1.AddressTypeIPv6 {
		t.Error(slice.AddressType)
	}
}

// ownServicesAreKept: a cluster has the services that everybody takes for granted, with the addresses
// that users expect; one of before services had addresses gets its own.
func ownServicesAreKept(t *testing.T, c *testCluster) {
	leader := c.leader()
	has := func(name, address string) {
		await(t, leader, name, func(v *fsm.View) bool {
			o, ok := v.Objects.Get("services/" + name)
			return ok && o.Value.(*corev1.Service).Spec.ClusterIP == address
		})
	}
	has("default/kubernetes", "10.96.0.1")
	has("kube-system/kube-dns", "10.96.0.10")
	v := leader.state.View()
	commands, err := leader.ownServices(v, metav1.Now())
	if err != nil || len(commands) != 0 {
		t.Errorf("there is more to do: %d commands, %v", len(commands), err)
	}
	if commands, err = leader.apiEndpoints(v, metav1.Now()); err != nil || len(commands) != 0 {
		t.Errorf("addresses of the loopback interface are told: %d commands, %v", len(commands), err)
	}
	o, _ := v.Objects.Get("services/default/kubernetes")
	old := o.Value.(*corev1.Service).DeepCopy()
	old.Spec.ClusterIP, old.Spec.ClusterIPs, old.Spec.IPFamilies = corev1.ClusterIPNone, []string{corev1.ClusterIPNone}, nil
	raw, err := old.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	if r, err := leader.proposeOne(t.Context(), systemUser, &fsm.PutObject{Resource: services, Raw: raw}); err != nil || r.Refused() {
		t.Fatalf("%+v, %v", r, err)
	}
	gone := &fsm.DeleteObject{Resource: services, Namespace: metav1.NamespaceSystem, Name: dnsServiceName}
	if r, err := leader.proposeOne(t.Context(), systemUser, gone); err != nil || r.Refused() {
		t.Fatalf("%+v, %v", r, err)
	}
	has("default/kubernetes", "10.96.0.1")
	has("kube-system/kube-dns", "10.96.0.10")
	// Who comes from another server is told what went, and not everything anew.
	l := leader.loadServices()
	went := slices.ContainsFunc(l.Gone, func(o rpc.ServiceRevision) bool { return o.Name == dnsServiceName && o.Revision > l.Horizon })
	if !went || l.Horizon >= v.Revision() {
		t.Errorf("of what went since %d (the state is at %d) is known: %+v", l.Horizon, l.Revision, l.Gone)
	}
}
