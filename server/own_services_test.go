package server

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

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
	endpointsOfTheAPI(t, leader)
	o, _ := v.Objects.Get("services/default/kubernetes")
	old := o.Value.(*corev1.Service).DeepCopy()
	old.Spec.ClusterIP, old.Spec.ClusterIPs, old.Spec.IPFamilies = corev1.ClusterIPNone, []string{corev1.ClusterIPNone}, nil
	raw, err := old.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	if r, err := leader.proposeOne(t.Context(), &fsm.PutObject{Resource: services, Raw: raw}); err != nil || r.Refused() {
		t.Fatalf("%+v, %v", r, err)
	}
	gone := &fsm.DeleteObject{Resource: services, Namespace: metav1.NamespaceSystem, Name: dnsServiceName}
	if r, err := leader.proposeOne(t.Context(), gone); err != nil || r.Refused() {
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

// localAPIServiceIsAvailable: an APIService whose service was taken away says that the group is served here.
func localAPIServiceIsAvailable(t *testing.T, c *testCluster) {
	leader := c.leader()
	had := apiregistrationv1.APIServiceCondition{Type: apiregistrationv1.Available, Status: apiregistrationv1.ConditionFalse, Reason: "ServiceNotFound"}
	o := &apiregistrationv1.APIService{
		ObjectMeta: metav1.ObjectMeta{Name: "v1.apps", UID: "apps"},
		Spec:       apiregistrationv1.APIServiceSpec{Group: "apps", Version: "v1", GroupPriorityMinimum: 2000, VersionPriority: 10},
		Status:     apiregistrationv1.APIServiceStatus{Conditions: []apiregistrationv1.APIServiceCondition{had}},
	}
	raw, err := o.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	c.propose(leader, &fsm.PutObject{Resource: fsm.APIServices, Create: true, Raw: raw})
	await(t, leader, "it to be available", func(v *fsm.View) bool {
		o, ok := v.Objects.Get(fsm.ObjectKey(fsm.APIServices, "", "v1.apps"))
		if !ok {
			return false
		}
		c := o.Value.(*apiregistrationv1.APIService).Status.Conditions
		return len(c) == 1 && c[0].Status == apiregistrationv1.ConditionTrue && c[0].Reason == "Local"
	})
}

// endpointsOfTheAPI: those of the first family are in Endpoints, too, by their ports, until they are others.
func endpointsOfTheAPI(t *testing.T, leader *Server) {
	ports := map[string]int32{"kubernetes-1": 1, "kubernetes-2": 2, "kubernetes-2-ipv6": 2}
	servers := map[string][]netip.Addr{}
	told := func(want string) {
		t.Helper()
		commands, err := leader.oldEndpoints(leader.state.View(), servers, ports, metav1.Now())
		if err != nil || len(commands) != 1 {
			t.Fatalf("%d commands, %v", len(commands), err)
		}
		if r, err := leader.proposeOne(t.Context(), commands[0]); err != nil || r.Refused() {
			t.Fatalf("%+v, %v", r, err)
		}
		v := leader.state.View()
		o, _ := v.Objects.Get("endpoints/default/kubernetes")
		e, got := o.Value.(*corev1.Endpoints), ""
		for _, s := range e.Subsets {
			for _, a := range s.Addresses {
				got += fmt.Sprintf("%s:%d ", a.IP, s.Ports[0].Port)
			}
		}
		if got != want || e.Labels[discoveryv1.LabelSkipMirror] != "true" {
			t.Errorf("%q %v, want %q", got, e.Labels, want)
		}
		if again, err := leader.oldEndpoints(v, servers, ports, metav1.Now()); err != nil || len(again) != 0 {
			t.Errorf("there is more to do: %d commands, %v", len(again), err)
		}
	}
	a, b := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
	servers["kubernetes-1"], servers["kubernetes-2"], servers["kubernetes-2-ipv6"] = []netip.Addr{a, b}, []netip.Addr{b}, []netip.Addr{netip.MustParseAddr("fd00::1")}
	told("192.0.2.1:1 192.0.2.2:1 192.0.2.2:2 ")
	delete(servers, "kubernetes-1")
	told("192.0.2.2:2 ")
}
