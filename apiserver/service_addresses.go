package apiserver

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	core "k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/registry/core/service/ipallocator"
	"k8s.io/kubernetes/pkg/registry/core/service/portallocator"
	servicestorage "k8s.io/kubernetes/pkg/registry/core/service/storage"

	"github.com/berth-dev/berth/fsm"
)

// ServiceRanges are where services get their addresses and ports from.
type ServiceRanges struct {
	// ClusterIPs are one range, or one of each family; the first is the default.
	ClusterIPs []netip.Prefix
	// FirstNodePort to LastNodePort are the ports on the nodes.
	FirstNodePort, LastNodePort int
}

// usualClusterIPs are the ranges where nobody says others.
var usualClusterIPs = []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")}

func (r ServiceRanges) withDefaults() ServiceRanges {
	if len(r.ClusterIPs) == 0 {
		r.ClusterIPs = usualClusterIPs
	}
	if r.FirstNodePort == 0 {
		r.FirstNodePort, r.LastNodePort = 30000, 32767
	}
	return r
}

// Prefixes are the ranges of cluster addresses.
func (r ServiceRanges) Prefixes() []netip.Prefix { return r.withDefaults().ClusterIPs }

// First is the range that addresses are of by default.
func (r ServiceRanges) First() netip.Prefix { return r.withDefaults().ClusterIPs[0] }

// Has says whether an address is of the ranges.
func (r ServiceRanges) Has(address string) bool {
	a, err := netip.ParseAddr(address)
	return err == nil && slices.ContainsFunc(r.withDefaults().ClusterIPs, func(p netip.Prefix) bool { return p.Contains(a) })
}

// services serves services by upstream's rules for addresses, over allocators that hold
// nothing: they choose what is free in this server's view, and the command is refused if
// it is not free any more when it is applied. Then it is chosen anew.
type services struct{ *served }

func (g *registry) services(s *served, ranges ServiceRanges) (rest.Storage, error) {
	view := g.backend.View
	byFamily := map[core.IPFamily]ipallocator.Interface{}
	first := familyOf(ranges.ClusterIPs[0])
	for _, p := range ranges.ClusterIPs {
		byFamily[familyOf(p)] = &addresses{view: view, configured: p, chosen: map[netip.Prefix]*chosen{}}
	}
	ports := &nodePorts{view: view, first: ranges.FirstNodePort, last: ranges.LastNodePort, chosen: newChosen()}
	upstream, _, _, err := servicestorage.NewREST(g.options(serviceDescription()), first, byFamily, ports, nil, nil, nil)
	if err != nil {
		return nil, fmt.Errorf("registry of services: %w", err)
	}
	known := func() bool { return view().Version() >= fsm.SinceServiceAddresses }
	s.BeginCreate = func(ctx context.Context, obj runtime.Object, options *metav1.CreateOptions) (genericregistry.FinishFunc, error) {
		if !known() { // nobody would see to it that they are free
			return func(context.Context, bool) {}, nil
		}
		return upstream.BeginCreate(ctx, obj, options)
	}
	s.BeginUpdate = func(ctx context.Context, obj, old runtime.Object, options *metav1.UpdateOptions) (genericregistry.FinishFunc, error) {
		if !known() {
			return func(context.Context, bool) {}, nil
		}
		return upstream.BeginUpdate(ctx, obj, old, options)
	}
	return &services{s}, nil
}

func familyOf(p netip.Prefix) core.IPFamily {
	if p.Addr().Is4() {
		return core.IPv4Protocol
	}
	return core.IPv6Protocol
}

// Create implements rest.Creater: who was overtaken chooses anew, or is told of what was
// asked for.
func (r *services) Create(ctx context.Context, obj runtime.Object, validate rest.ValidateObjectFunc, options *metav1.CreateOptions) (runtime.Object, error) {
	for try := 0; ; try++ {
		out, err := r.served.Create(ctx, obj.DeepCopyObject(), validate, options)
		if !apierrors.IsConflict(err) || try >= maxTries {
			return out, err
		}
		if err := r.backend.ReadIndex(ctx); err != nil { // this server's view may not have it yet
			return nil, readError(err)
		}
	}
}

// chosen remembers what was chosen of late, so that two that ask at once, or one that asks
// twice, do not choose the same.
type chosen struct {
	mu   sync.Mutex
	ring [512]int
	at   int
	is   map[int]bool
}

func newChosen() *chosen { return &chosen{is: map[int]bool{}} }

// choose finds a number from first to last that is not taken, at random; the first of them
// last, which are left to those who ask for one.
func (c *chosen) choose(first, last int, taken func(n int) bool) (int, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	size := last - first + 1
	band := min(max(size/32, 16), 256)
	if band >= size {
		band = 0
	}
	try := func(first, last int, taken func(n int) bool) (int, bool) {
		size := last - first + 1
		if size <= 0 {
			return 0, false
		}
		for i, from := 0, rand.IntN(size); i < size; i++ { // #nosec G404 -- no secret: two servers rarely try the same address
			if n := first + (from+i)%size; !taken(n) {
				return n, true
			}
		}
		return 0, false
	}
	for _, remembered := range []bool{true, false} { // what was chosen and came to nothing, in the end
		for _, part := range [][2]int{{first + band, last}, {first, first + band - 1}} {
			n, ok := try(part[0], part[1], func(n int) bool { return remembered && c.is[n] || taken(n) })
			if ok {
				delete(c.is, c.ring[c.at])
				c.ring[c.at], c.is[n] = n, true
				c.at = (c.at + 1) % len(c.ring)
				return n, true
			}
		}
	}
	return 0, false
}

// addresses is upstream's allocator of the addresses of one family.
type addresses struct {
	view func() *fsm.View
	// configured is the range that every service may have addresses of until the cluster has ranges
	// that say so.
	configured netip.Prefix

	mu     sync.Mutex
	chosen map[netip.Prefix]*chosen
}

var _ ipallocator.Interface = (*addresses)(nil)

// ranges are those of the family that new addresses are of.
func (a *addresses) ranges(v *fsm.View) []netip.Prefix {
	all, known := v.ServiceRanges()
	if !known {
		return []netip.Prefix{a.configured}
	}
	return slices.DeleteFunc(all, func(p netip.Prefix) bool { return familyOf(p) != a.IPFamily() })
}

// Allocate implements ipallocator.Interface.
func (a *addresses) Allocate(ip net.IP) error {
	v := a.view()
	ranges := a.ranges(v)
	switch {
	case len(ranges) == 0:
		return ipallocator.ErrNotReady
	case !contains(ranges, ip):
		texts := make([]string, len(ranges))
		for i, p := range ranges {
			texts[i] = p.String()
		}
		return &ipallocator.ErrNotInRange{IP: ip, ValidRange: strings.Join(texts, ", ")}
	case v.AddressTaken(ip.String()):
		return ipallocator.ErrAllocated
	}
	return nil
}

// AllocateNext implements ipallocator.Interface. The last of a range of IPv6, and the first of the configured range, which
// Kubernetes gives to its API, are given to nobody who does not ask.
func (a *addresses) AllocateNext() (net.IP, error) {
	v := a.view()
	for _, p := range a.ranges(v) {
		first := 1
		if p == a.configured {
			first = 2
		}
		n, ok := a.chosenOf(p).choose(first, sizeOf(p)-2, func(n int) bool { return v.AddressTaken(at(p, n).String()) })
		if ok {
			return at(p, n), nil
		}
	}
	return nil, ipallocator.ErrFull
}

// chosenOf is what was chosen of late from a range.
func (a *addresses) chosenOf(p netip.Prefix) *chosen {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.chosen[p] == nil {
		if len(a.chosen) >= fsm.MaxServiceCIDRs { // ranges have come and gone
			clear(a.chosen)
		}
		a.chosen[p] = newChosen()
	}
	return a.chosen[p]
}

// maxRangeBits is how much of a range is given out: of one of IPv6 the first part.
const maxRangeBits = 32

func sizeOf(p netip.Prefix) int { return 1 << min(p.Addr().BitLen()-p.Bits(), maxRangeBits) }

// at is the n-th address of a range.
func at(p netip.Prefix, n int) net.IP {
	b := p.Masked().Addr().AsSlice()
	for i := len(b) - 1; n > 0; i-- {
		b[i] |= byte(n)
		n >>= 8
	}
	return b
}

// contains says whether a service may have the address, as one of these ranges: not the range's own, nor, of IPv4, that of a
// broadcast to it.
func contains(ranges []netip.Prefix, ip net.IP) bool {
	n, ok := netip.AddrFromSlice(ip)
	n = n.Unmap()
	return ok && slices.ContainsFunc(ranges, func(p netip.Prefix) bool {
		return p.Contains(n) && n != p.Masked().Addr() && (n.Is6() || p.Contains(n.Next()))
	})
}

// Release implements ipallocator.Interface: what no service has is free.
func (*addresses) Release(net.IP) error { return nil }

// ForEach implements ipallocator.Interface.
func (*addresses) ForEach(func(net.IP)) {}

// CIDR implements ipallocator.Interface.
func (a *addresses) CIDR() net.IPNet {
	return net.IPNet{IP: at(a.configured, 0), Mask: net.CIDRMask(a.configured.Bits(), a.configured.Addr().BitLen())}
}

// IPFamily implements ipallocator.Interface.
func (a *addresses) IPFamily() core.IPFamily { return familyOf(a.configured) }

// Has implements ipallocator.Interface.
func (a *addresses) Has(ip net.IP) bool { return contains(a.ranges(a.view()), ip) }

// Destroy implements ipallocator.Interface.
func (*addresses) Destroy() {}

// EnableMetrics implements ipallocator.Interface.
func (*addresses) EnableMetrics() {}

// DryRun implements ipallocator.Interface: nothing is held in either case.
func (a *addresses) DryRun() ipallocator.Interface { return a }

// nodePorts is upstream's allocator of the ports on the nodes.
type nodePorts struct {
	view        func() *fsm.View
	first, last int
	chosen      *chosen
}

var _ portallocator.Interface = (*nodePorts)(nil)

// Allocate implements portallocator.Interface.
func (p *nodePorts) Allocate(port int) error {
	switch {
	case port < p.first || port > p.last:
		return &portallocator.ErrNotInRange{ValidPorts: fmt.Sprintf("%d-%d", p.first, p.last)}
	case p.Has(port):
		return portallocator.ErrAllocated
	}
	return nil
}

// AllocateNext implements portallocator.Interface.
func (p *nodePorts) AllocateNext() (int, error) {
	v := p.view()
	n, ok := p.chosen.choose(p.first, p.last, func(n int) bool { return v.NodePortTaken(int32(n)) })
	if !ok {
		return 0, portallocator.ErrFull
	}
	return n, nil
}

// Release implements portallocator.Interface.
func (*nodePorts) Release(int) error { return nil }

// ForEach implements portallocator.Interface.
func (*nodePorts) ForEach(func(int)) {}

// Has implements portallocator.Interface.
func (p *nodePorts) Has(port int) bool { return p.view().NodePortTaken(int32(port)) }

// Destroy implements portallocator.Interface.
func (*nodePorts) Destroy() {}

// EnableMetrics implements portallocator.Interface.
func (*nodePorts) EnableMetrics() {}
