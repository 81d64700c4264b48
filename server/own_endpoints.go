package server

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"

	"github.com/berth-dev/berth/fsm"
)

// apiSlicePrefix is what the names of the API's endpoint slices begin with; the port follows.
const apiSlicePrefix = apiServiceName + "-"

// apiEndpoints are the commands that make the endpoint slices of the API, and its endpoints, those of the servers that answer.
// Servers whose API has another port are in another slice. Addresses of the loopback interface lead to nobody from a pod. While no server
// with another address answers, what was said before stays.
func (s *Server) apiEndpoints(v *fsm.View, now metav1.Time) ([]fsm.Command, error) {
	if v.Version() < fsm.SinceWorkloads {
		return nil, nil
	}
	want := map[string][]netip.Addr{} // by the slice's name
	ports := map[string]int32{}
	for _, at := range s.apiAddresses() {
		to, err := netip.ParseAddrPort(at)
		if err != nil || to.Addr().IsLoopback() || to.Addr().IsUnspecified() {
			continue
		}
		ip := to.Addr().Unmap()
		name := apiSlicePrefix + strconv.Itoa(int(to.Port()))
		if ip.Is6() {
			name += "-ipv6"
		}
		want[name], ports[name] = append(want[name], ip), int32(to.Port())
	}
	if len(want) == 0 {
		return nil, nil
	}
	var out []fsm.Command
	for _, name := range slices.Sorted(maps.Keys(want)) {
		ips := want[name]
		slices.SortFunc(ips, netip.Addr.Compare)
		slice := apiSlice(name, slices.Compact(ips), ports[name])
		old, ok := v.Objects.Get(fsm.ObjectKey(endpointSlices, corev1.NamespaceDefault, name))
		if ok {
			was := old.Value.(*discoveryv1.EndpointSlice)
			if equality.Semantic.DeepEqual(was.Endpoints, slice.Endpoints) && equality.Semantic.DeepEqual(was.Ports, slice.Ports) &&
				was.AddressType == slice.AddressType && was.Labels[discoveryv1.LabelServiceName] == apiServiceName {
				continue
			}
			meta := was.ObjectMeta.DeepCopy()
			meta.Labels, meta.Generation = slice.Labels, meta.Generation+1
			slice.ObjectMeta = *meta
		} else {
			slice.UID, slice.CreationTimestamp, slice.Generation = types.UID(uuid.NewUUID()), now, 1
		}
		raw, err := slice.Marshal()
		if err != nil {
			return nil, fmt.Errorf("encode endpoint slice %s: %w", name, err)
		}
		out = append(out, &fsm.PutObject{Resource: endpointSlices, Raw: raw, Create: !ok})
	}
	one, err := s.oldEndpoints(v, want, ports, now)
	if err != nil {
		return nil, err
	}
	out = append(out, one...)
	v.Objects.Scan(fsm.ObjectKey(endpointSlices, corev1.NamespaceDefault, apiSlicePrefix), func(_ string, o *fsm.Object) bool {
		slice := o.Value.(*discoveryv1.EndpointSlice)
		if want[slice.Name] == nil && slice.Labels[discoveryv1.LabelManagedBy] == managedBy {
			out = append(out, &fsm.DeleteObject{Resource: endpointSlices, Namespace: slice.Namespace, Name: slice.Name})
		}
		return true
	})
	return out, nil
}

// endpoints is the resource of what was there before endpoint slices.
const endpoints = "endpoints"

// oldEndpoints are the commands that make the Endpoints of the API what its slices say of the first family of addresses,
// for clients that know of no slices. They are not mirrored, since the slices are there.
func (s *Server) oldEndpoints(v *fsm.View, servers map[string][]netip.Addr, ports map[string]int32, now metav1.Time) ([]fsm.Command, error) {
	is6 := s.config.Services.First().Addr().Is6()
	e := &corev1.Endpoints{ObjectMeta: metav1.ObjectMeta{
		Namespace: corev1.NamespaceDefault, Name: apiServiceName, Labels: map[string]string{discoveryv1.LabelSkipMirror: "true"},
	}}
	for _, name := range slices.Sorted(maps.Keys(servers)) {
		ips := slices.Compact(servers[name]) // sorted already
		if ips[0].Is6() != is6 {
			continue
		}
		subset := corev1.EndpointSubset{Ports: []corev1.EndpointPort{{Name: "https", Port: ports[name], Protocol: corev1.ProtocolTCP}}}
		for _, ip := range ips {
			subset.Addresses = append(subset.Addresses, corev1.EndpointAddress{IP: ip.String()})
		}
		e.Subsets = append(e.Subsets, subset)
	}
	old, ok := v.Objects.Get(fsm.ObjectKey(endpoints, corev1.NamespaceDefault, apiServiceName))
	if ok {
		was := old.Value.(*corev1.Endpoints)
		if equality.Semantic.DeepEqual(was.Subsets, e.Subsets) && was.Labels[discoveryv1.LabelSkipMirror] == "true" {
			return nil, nil
		}
		meta := was.ObjectMeta.DeepCopy()
		meta.Labels, meta.Generation = e.Labels, meta.Generation+1
		e.ObjectMeta = *meta
	} else {
		e.UID, e.CreationTimestamp, e.Generation = types.UID(uuid.NewUUID()), now, 1
	}
	raw, err := e.Marshal()
	if err != nil {
		return nil, fmt.Errorf("encode the endpoints of the API: %w", err)
	}
	return []fsm.Command{&fsm.PutObject{Resource: endpoints, Raw: raw, Create: !ok}}, nil
}

// managedBy tells the API's slices from those that controllers make.
const managedBy = "server.berth.dev"

func apiSlice(name string, ips []netip.Addr, port int32) *discoveryv1.EndpointSlice {
	ready, protocol, portName := true, corev1.ProtocolTCP, "https"
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Namespace: corev1.NamespaceDefault, Name: name,
			Labels: map[string]string{discoveryv1.LabelServiceName: apiServiceName, discoveryv1.LabelManagedBy: managedBy}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: &portName, Port: &port, Protocol: &protocol}},
	}
	if ips[0].Is6() {
		slice.AddressType = discoveryv1.AddressTypeIPv6
	}
	for _, ip := range ips {
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{Addresses: []string{ip.String()}, Conditions: discoveryv1.EndpointConditions{Ready: &ready}})
	}
	return slice
}
