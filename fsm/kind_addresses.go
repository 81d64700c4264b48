package fsm

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/codec"
)

// The resources of the ranges that services get their addresses from, and of the addresses
// that somebody has.
const (
	ServiceCIDRs = "servicecidrs"
	IPAddresses  = "ipaddresses"
)

// SinceAddresses is the version of the rules that brought them: every address of a service
// has its object from then on, and what a service gets is of a range that stays.
const SinceAddresses = 16

// MaxServiceCIDRs bounds the ranges: all of them are asked about a new address.
const MaxServiceCIDRs = 256

// addressManager is who manages the addresses of services, in Kubernetes' label for that.
const addressManager = "ipallocator.k8s.io"

func serviceCIDRKind() ObjectKind {
	return ObjectKind{
		Group: networkingv1.GroupName, Resource: ServiceCIDRs, Kind: "ServiceCIDR", ClusterScoped: true,
		Since: SinceAddresses, MostInNamespace: MaxServiceCIDRs, New: func() codec.Object { return new(networkingv1.ServiceCIDR) },
	}
}

func ipAddressKind() ObjectKind {
	return ObjectKind{
		Group: networkingv1.GroupName, Resource: IPAddresses, Kind: "IPAddress", ClusterScoped: true,
		Since: SinceAddresses, New: func() codec.Object { return new(networkingv1.IPAddress) },
	}
}

// ServiceRanges are the ranges that new addresses of services may be of, and whether there
// are any that say so: while there is none, nobody knows here.
func (v *View) ServiceRanges() (ranges []netip.Prefix, known bool) {
	v.Objects.Scan(ObjectKey(ServiceCIDRs, "", ""), func(_ string, o *Object) bool {
		known = true
		r := o.Value.(*networkingv1.ServiceCIDR)
		if r.DeletionTimestamp != nil || !isReadyRange(r) {
			return true
		}
		for _, text := range r.Spec.CIDRs {
			if p, err := netip.ParsePrefix(text); err == nil && !slices.Contains(ranges, p) {
				ranges = append(ranges, p)
			}
		}
		return true
	})
	return ranges, known
}

// isReadyRange: one of which nobody has said anything is ready, as in Kubernetes.
func isReadyRange(r *networkingv1.ServiceCIDR) bool {
	for i := range r.Status.Conditions {
		if c := &r.Status.Conditions[i]; c.Type == networkingv1.ServiceCIDRConditionReady {
			return c.Status == metav1.ConditionTrue
		}
	}
	return true
}

// OfServiceRange says whether an address is of one of the ranges, whether these are ready or not.
func (v *View) OfServiceRange(address string) (of bool) {
	a, err := netip.ParseAddr(address)
	if err != nil {
		return false
	}
	v.Objects.Scan(ObjectKey(ServiceCIDRs, "", ""), func(_ string, o *Object) bool {
		for _, text := range o.Value.(*networkingv1.ServiceCIDR).Spec.CIDRs {
			p, err := netip.ParsePrefix(text)
			of = of || err == nil && p.Contains(a)
		}
		return !of
	})
	return of
}

// ipAddress is the object of an address.
func (v *View) ipAddress(a netip.Addr) (*networkingv1.IPAddress, bool) {
	return objectIn[networkingv1.IPAddress](v, IPAddresses, "", a.String())
}

// addressesOf are a service's own addresses.
func addressesOf(s *corev1.Service) (out []netip.Addr) {
	texts := s.Spec.ClusterIPs
	if len(texts) == 0 {
		texts = []string{s.Spec.ClusterIP}
	}
	for _, text := range texts {
		if a, err := netip.ParseAddr(text); err == nil {
			out = append(out, a)
		}
	}
	return out
}

// checkAddresses refuses addresses that a service is to get and that are of no range, or
// somebody else's; and the object of an address that a service has, for somebody else.
func (v *live) checkAddresses(value, old codec.Object) (Result, bool) {
	if v.Version() < SinceAddresses {
		return Result{}, true
	}
	switch o := value.(type) {
	case *networkingv1.IPAddress:
		if old != nil {
			break
		}
		at, ok := v.serviceAt(o.Name)
		if ok && !isOfService(o, at) {
			return refuseExists(ipAddressKind().GroupResource(), o.Name), false
		}
		if !ok && o.Labels[networkingv1.LabelManagedBy] == addressManager {
			return refuseConflict(ipAddressKind().GroupResource(), o.Name, "no service has the address, and it is said to be managed by "+addressManager), false
		}
	case *corev1.Service:
		var had []netip.Addr
		if before, ok := old.(*corev1.Service); ok {
			had = addressesOf(before)
		}
		ranges, known := v.ServiceRanges()
		for _, a := range addressesOf(o) {
			if slices.Contains(had, a) {
				continue
			}
			if _, taken := v.ipAddress(a); taken {
				return refuseConflict(serviceResource.groupResource(), o.Name, fmt.Sprintf("somebody has the address %s", a)), false
			}
			if known && !slices.ContainsFunc(ranges, func(p netip.Prefix) bool { return p.Contains(a) }) {
				return refuseConflict(serviceResource.groupResource(), o.Name, fmt.Sprintf("the address %s is of no range for services any more", a)), false
			}
		}
	}
	return Result{}, true
}

// serviceAt is the key of a service that has an address; the first, if there are several from
// before version 7.
func (v *View) serviceAt(address string) (key string, ok bool) {
	at := givenAddress(address)
	v.given.Scan(at, func(given string, _ struct{}) bool {
		key, ok = given[len(at):], true
		return false
	})
	return key, ok
}

// isOfService: the address is that of a service, by its key.
func isOfService(a *networkingv1.IPAddress, key string) bool {
	p := a.Spec.ParentRef
	return p != nil && p.Group == "" && p.Resource == serviceResource.Name && PodKey(p.Namespace, p.Name) == key
}

// flushAddresses makes the objects of addresses those that services have, where one or the other
// has changed: so they come and go with the services, in the same entry, and one that somebody
// deletes while a service has its address is made again. It ends every command.
func (tx *Tx) flushAddresses() {
	for ; tx.addressed < len(tx.Changes()); tx.addressed++ {
		c := &tx.Changes()[tx.addressed]
		if c.Table != tx.view.Objects.Name() || tx.view.Version() < SinceAddresses {
			continue
		}
		name, isAddress := strings.CutPrefix(c.Key, ObjectKey(IPAddresses, "", ""))
		if isAddress && isGone(c.New) {
			if a, err := netip.ParseAddr(name); err == nil {
				tx.settleAddress(a, "")
			}
			continue
		}
		if !strings.HasPrefix(c.Key, serviceResource.Name+"/") {
			continue
		}
		was, is := addressesIn(c.Old), addressesIn(c.New)
		for _, a := range was {
			if !slices.Contains(is, a) {
				tx.settleAddress(a, strings.TrimPrefix(c.Key, serviceResource.Name+"/"))
			}
		}
		for _, a := range is {
			if !slices.Contains(was, a) {
				tx.settleAddress(a, "")
			}
		}
	}
}

func isGone(row any) bool {
	o, ok := row.(*Object)
	return !ok || o == nil
}

func addressesIn(row any) []netip.Addr {
	if isGone(row) {
		return nil
	}
	return addressesOf(row.(*Object).Value.(*corev1.Service))
}

// settleAddress makes the object of one address what it is to be; lostBy is the service that had it. What
// somebody else has made of an address stays.
func (tx *Tx) settleAddress(a netip.Addr, lostBy string) {
	v := tx.view
	key := ObjectKey(IPAddresses, "", a.String())
	service, has := v.serviceAt(a.String())
	if old, ok := v.Objects.Get(key); ok {
		o := old.Value.(*networkingv1.IPAddress)
		if !isOfService(o, lostBy) || has && isOfService(o, service) {
			return
		}
		if _, gone := tx.deleteObject(key, old, ""); !gone {
			return
		}
	}
	if !has {
		return
	}
	namespace, name, _ := strings.Cut(service, "/")
	of := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	put(tx, v.Objects, key, &Object{Resource: IPAddresses, Value: AddressOf(of, a, tx.newUID(), tx.now())})
}

// AddressOf is the object of an address that a service has.
func AddressOf(s *corev1.Service, a netip.Addr, uid types.UID, now metav1.Time) *networkingv1.IPAddress {
	family := corev1.IPv4Protocol
	if a.Is6() {
		family = corev1.IPv6Protocol
	}
	return &networkingv1.IPAddress{
		ObjectMeta: metav1.ObjectMeta{
			Name: a.String(), UID: uid, CreationTimestamp: now, Generation: 1,
			Labels: map[string]string{networkingv1.LabelIPAddressFamily: string(family), networkingv1.LabelManagedBy: addressManager},
		},
		Spec: networkingv1.IPAddressSpec{ParentRef: &networkingv1.ParentReference{Resource: serviceResource.Name, Namespace: s.Namespace, Name: s.Name}},
	}
}

// AddressesWithout calls f for the services that have an address of which there is no
// object, until f returns false: they were there before servers knew of such objects.
func (v *View) AddressesWithout(f func(service *corev1.Service, a netip.Addr) bool) {
	more := true
	v.Objects.Scan(serviceResource.Name+"/", func(_ string, o *Object) bool {
		s := o.Value.(*corev1.Service)
		for _, a := range addressesOf(s) {
			if _, ok := v.ipAddress(a); !ok {
				more = more && f(s, a)
			}
		}
		return more
	})
}
