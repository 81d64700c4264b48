package services

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// Object is a service or an endpoint slice as a server sends it.
type Object struct {
	Resource, Namespace, Name string
	// Raw is protobuf; empty: it is gone.
	Raw []byte
}

// Delta is what has changed.
type Delta struct {
	// Full: what is not in it is not there.
	Full     bool
	Revision int64
	Objects  []Object
	// Topology are the labels of this node by which endpoints are chosen; nil: as before.
	Topology map[string]string
}

// key names an object by namespace and name.
type key struct{ namespace, name string }

// Table is what there is of services, and who is behind them.
type Table struct {
	mu       sync.RWMutex
	changed  []chan struct{} // of capacity 1, one for each who follows
	synced   chan struct{}   // closed when everything has come once
	named    chan struct{}   // closed when it was told once where names are answered
	names    sync.Once
	revision int64
	services map[key]*corev1.Service
	slices   map[key]*discoveryv1.EndpointSlice
	topology map[string]string
	// Derived: slices by service, and services and headless endpoints by address.
	behind   map[key]map[string]*discoveryv1.EndpointSlice
	byIP     map[netip.Addr]key
	headless map[netip.Addr]key // of a slice
	spaces   map[string]int     // services of each namespace
	// What the one who carries them has not taken yet.
	dirtyServices, dirtySlices map[key]struct{}
}

// NewTable makes an empty one.
func NewTable() *Table {
	return &Table{
		synced: make(chan struct{}), named: make(chan struct{}),
		services: map[key]*corev1.Service{}, slices: map[key]*discoveryv1.EndpointSlice{},
		behind: map[key]map[string]*discoveryv1.EndpointSlice{}, byIP: map[netip.Addr]key{}, headless: map[netip.Addr]key{}, spaces: map[string]int{},
		dirtyServices: map[key]struct{}{}, dirtySlices: map[key]struct{}{},
	}
}

// Synced is closed when everything has come once.
func (t *Table) Synced() <-chan struct{} { return t.synced }

// Revision is up to where it has everything.
func (t *Table) Revision() int64 {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.revision
}

const servicesResource, slicesResource = "services", "endpointslices"

var errBeginning = errors.New("a server tells of changes before it has told everything")

// Take takes over what a server says; it is done whole or not at all.
func (t *Table) Take(d Delta) error {
	services, slices := map[key]*corev1.Service{}, map[key]*discoveryv1.EndpointSlice{}
	for _, o := range d.Objects {
		k := key{o.Namespace, o.Name}
		var err error
		switch {
		case o.Resource == servicesResource && len(o.Raw) == 0:
			services[k] = nil
		case o.Resource == servicesResource:
			s := new(corev1.Service)
			err = s.Unmarshal(o.Raw)
			services[k] = s
		case o.Resource == slicesResource && len(o.Raw) == 0:
			slices[k] = nil
		case o.Resource == slicesResource:
			s := new(discoveryv1.EndpointSlice)
			err = s.Unmarshal(o.Raw)
			slices[k] = s
		}
		if err != nil {
			return fmt.Errorf("decode %s %s/%s: %w", o.Resource, o.Namespace, o.Name, err)
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.revision == 0 && !d.Full {
		return errBeginning
	}
	if d.Full {
		for k := range t.services {
			if _, there := services[k]; !there {
				services[k] = nil
			}
		}
		for k := range t.slices {
			if _, there := slices[k]; !there {
				slices[k] = nil
			}
		}
	}
	for k, s := range services {
		t.putService(k, s)
	}
	for k, s := range slices {
		t.putSlice(k, s)
	}
	if d.Topology != nil {
		t.topology = d.Topology
	}
	if t.revision == 0 {
		close(t.synced)
	}
	t.revision = max(d.Revision, 1)
	if len(d.Objects) > 0 || d.Full || d.Topology != nil {
		for _, c := range t.changed {
			select {
			case c <- struct{}{}:
			default:
			}
		}
	}
	return nil
}

// follow gives a channel on which it is told that something has changed.
func (t *Table) follow() <-chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := make(chan struct{}, 1)
	t.changed = append(t.changed, c)
	return c
}

func (t *Table) putService(k key, s *corev1.Service) {
	if old := t.services[k]; old != nil {
		for _, ip := range addressesOf(old) {
			if t.byIP[ip] == k {
				delete(t.byIP, ip)
			}
		}
		delete(t.services, k)
		if t.spaces[k.namespace]--; t.spaces[k.namespace] == 0 {
			delete(t.spaces, k.namespace)
		}
	}
	t.dirtyServices[k] = struct{}{}
	if s == nil {
		return
	}
	t.services[k] = s
	t.spaces[k.namespace]++
	for _, ip := range addressesOf(s) {
		t.byIP[ip] = k
		if k == resolverService {
			t.names.Do(func() { close(t.named) })
		}
	}
}

// addressesOf are a service's cluster addresses.
func addressesOf(s *corev1.Service) []netip.Addr {
	var out []netip.Addr
	if s.Spec.Type == corev1.ServiceTypeExternalName {
		return nil
	}
	for _, text := range s.Spec.ClusterIPs {
		if ip, err := netip.ParseAddr(text); err == nil {
			out = append(out, ip)
		}
	}
	return out
}

func serviceOf(k key, s *discoveryv1.EndpointSlice) key {
	return key{k.namespace, s.Labels[discoveryv1.LabelServiceName]}
}

func isHeadless(s *discoveryv1.EndpointSlice) bool {
	_, headless := s.Labels[corev1.IsHeadlessService]
	return headless
}

func (t *Table) putSlice(k key, s *discoveryv1.EndpointSlice) {
	if old := t.slices[k]; old != nil {
		service := serviceOf(k, old)
		delete(t.behind[service], k.name)
		if len(t.behind[service]) == 0 {
			delete(t.behind, service)
		}
		eachAddress(old, func(ip netip.Addr, _ *discoveryv1.Endpoint) {
			if t.headless[ip] == k {
				delete(t.headless, ip)
			}
		})
		delete(t.slices, k)
	}
	t.dirtySlices[k] = struct{}{}
	if s == nil {
		return
	}
	t.slices[k] = s
	service := serviceOf(k, s)
	if t.behind[service] == nil {
		t.behind[service] = map[string]*discoveryv1.EndpointSlice{}
	}
	t.behind[service][k.name] = s
	if isHeadless(s) {
		eachAddress(s, func(ip netip.Addr, _ *discoveryv1.Endpoint) { t.headless[ip] = k })
	}
}

// eachAddress calls f for the addresses of those that are ready. What wants to be found before that is
// said to be ready by who makes slices (publishNotReadyAddresses).
func eachAddress(s *discoveryv1.EndpointSlice, f func(netip.Addr, *discoveryv1.Endpoint)) {
	for i := range s.Endpoints {
		e := &s.Endpoints[i]
		if e.Conditions.Ready != nil && !*e.Conditions.Ready {
			continue
		}
		for _, text := range e.Addresses {
			if ip, err := netip.ParseAddr(text); err == nil {
				f(ip, e)
			}
		}
	}
}

// resolverService is what stands for names: kube-system/kube-dns.
var resolverService = key{"kube-system", "kube-dns"}

// answeredHere says whether the nodes themselves answer at a service's address: that of kube-dns, as long as it names no pods.
func answeredHere(k key, s *corev1.Service) bool {
	return k == resolverService && len(s.Spec.Selector) == 0
}

// ResolverAddresses are where pods find who answers for names, and whether the nodes themselves do.
func (t *Table) ResolverAddresses() (addresses []netip.Addr, here bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	s := t.services[resolverService]
	if s == nil {
		return nil, false
	}
	return addressesOf(s), answeredHere(resolverService, s)
}

// changes are what has come since they were last taken; an object that is gone is nil.
type changes struct {
	services map[key]*corev1.Service
	slices   map[key]*discoveryv1.EndpointSlice
	topology map[string]string
}

func (t *Table) takeChanges() changes {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := changes{
		services: make(map[key]*corev1.Service, len(t.dirtyServices)), slices: make(map[key]*discoveryv1.EndpointSlice, len(t.dirtySlices)),
		topology: maps.Clone(t.topology),
	}
	for k := range t.dirtyServices {
		c.services[k] = t.services[k]
	}
	for k := range t.dirtySlices {
		c.slices[k] = t.slices[k]
	}
	t.dirtyServices, t.dirtySlices = map[key]struct{}{}, map[key]struct{}{}
	return c
}

// dashed is an address as a label of a name.
func dashed(ip netip.Addr) string {
	return strings.NewReplacer(".", "-", ":", "-").Replace(ip.String())
}
