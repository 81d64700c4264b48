package services

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func clockAt(seconds int) time.Time { return time.Unix(1_700_000_000+int64(seconds), 0) }

// told keeps what a carrier is told.
type told struct {
	has    map[string]bool
	synced int
	labels map[string]string
}

func (c *told) set(o metav1.Object, there bool) {
	if there {
		c.has[o.GetName()] = true
	} else {
		delete(c.has, o.GetName())
	}
}

func (c *told) OnServiceUpdate(old, s *corev1.Service) {
	if s == nil {
		c.set(old, false)
	} else {
		c.set(s, true)
	}
}
func (c *told) OnServiceSynced()                                      { c.synced++ }
func (c *told) OnEndpointSliceUpdate(_, s *discoveryv1.EndpointSlice) { c.set(s, true) }
func (c *told) OnEndpointSliceDelete(s *discoveryv1.EndpointSlice)    { c.set(s, false) }
func (c *told) OnEndpointSlicesSynced()                               { c.synced++ }
func (c *told) OnTopologyChange(labels map[string]string)             { c.labels = labels }
func (c *told) SyncLoop()                                             {}

func (c *told) String() string {
	var names []string
	for name := range c.has {
		names = append(names, name)
	}
	slices.Sort(names)
	return fmt.Sprintf("%s synced=%d %v", strings.Join(names, " "), c.synced, c.labels)
}

func TestCarrierIsTold(t *testing.T) {
	table := NewTable()
	c := &told{has: map[string]bool{}}
	p := newProxy(table, c, hclog.NewNullLogger())
	is := func(want string) {
		t.Helper()
		p.follow(table.takeChanges())
		if got := c.String(); got != want {
			t.Errorf("%s\nwant %s", got, want)
		}
	}
	take := func(d Delta) {
		t.Helper()
		if err := table.Take(d); err != nil {
			t.Fatal(err)
		}
	}
	if err := table.Take(Delta{Revision: 3}); !errors.Is(err, errBeginning) {
		t.Errorf("changes before everything: %v", err)
	}
	names := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "kube-dns"}, Spec: cluster("10.96.0.10")}
	other := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "other", Labels: map[string]string{"service.kubernetes.io/service-proxy-name": "x"}},
		Spec: cluster("10.96.0.11")}
	slice := func(name string) Object {
		return object(t, slicesResource, "shop", name, &discoveryv1.EndpointSlice{
			ObjectMeta:  metav1.ObjectMeta{Namespace: "shop", Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: "web"}},
			AddressType: discoveryv1.AddressTypeIPv4, Endpoints: []discoveryv1.Endpoint{endpoint("10.0.0.1", "", true)},
		})
	}
	take(Delta{Full: true, Revision: 5, Topology: map[string]string{"zone": "a"}, Objects: []Object{
		service(t, "web", cluster("10.96.1.1")), slice("web-1"), headlessSlice(t, "db-1", "db", endpoint("10.0.0.1", "", true)),
		object(t, servicesResource, "kube-system", "kube-dns", names), object(t, servicesResource, "shop", "other", other),
	}})
	is("web web-1 synced=2 map[zone:a]")
	take(Delta{Revision: 6, Objects: []Object{slice("web-2"), {Resource: slicesResource, Namespace: "shop", Name: "web-1"}}})
	is("web web-2 synced=2 map[zone:a]")
	if at, here := table.ResolverAddresses(); fmt.Sprint(at) != "[10.96.0.10]" || !here {
		t.Errorf("names are answered at %v, here: %v", at, here)
	}
	// Somebody's own resolver is a service like others.
	names.Spec.Selector = map[string]string{"app": "coredns"}
	take(Delta{Revision: 7, Objects: []Object{object(t, servicesResource, "kube-system", "kube-dns", names)}})
	is("kube-dns web web-2 synced=2 map[zone:a]")
	if at, here := table.ResolverAddresses(); fmt.Sprint(at) != "[10.96.0.10]" || here {
		t.Errorf("names are answered at %v, here: %v", at, here)
	}
	if err := table.Take(Delta{Revision: 8, Objects: []Object{{Resource: servicesResource, Name: "broken", Raw: []byte{1}}, slice("web-3")}}); err == nil {
		t.Error("what cannot be read was taken")
	}
	is("kube-dns web web-2 synced=2 map[zone:a]")
	// Everything anew: what is not in it is gone.
	take(Delta{Full: true, Revision: 9, Objects: []Object{slice("web-3")}})
	is("web-3 synced=2 map[zone:a]")
	if at, _ := table.ResolverAddresses(); at != nil || table.Revision() != 9 || len(table.spaces)+len(table.byIP)+len(table.headless) != 0 {
		t.Errorf("something is left: %v, %v, %v", table.spaces, table.byIP, table.headless)
	}
}
