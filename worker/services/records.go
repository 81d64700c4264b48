package services

import (
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

const (
	// recordSeconds is how long an answer about the cluster may be kept: pods come and go.
	recordSeconds = 5
	// specVersion is that of Kubernetes' specification of names.
	specVersion = "1.1.0"
)

// found is what is known of a name. Without exists there is no such name.
type found struct {
	exists bool
	answer []dns.RR
	extra  []dns.RR
	// alias is where a name that stands for another leads.
	alias string
}

// records answers for the names of a cluster, by Kubernetes' specification.
type records struct {
	table  *Table
	domain string // "cluster.local."
}

func (r *records) header(name string, kind uint16) dns.RR_Header {
	return dns.RR_Header{Name: name, Rrtype: kind, Class: dns.ClassINET, Ttl: recordSeconds}
}

// soa is what an answer without records carries, so that others know how long to keep that.
func (r *records) soa() dns.RR {
	return &dns.SOA{
		Hdr: r.header(r.domain, dns.TypeSOA), Ns: "ns.dns." + r.domain, Mbox: "hostmaster." + r.domain,
		Serial: 1, Refresh: 7200, Retry: 1800, Expire: 86400, Minttl: recordSeconds,
	}
}

// about says whether a name is one of the cluster's.
func (r *records) about(name string) bool { return dns.IsSubDomain(r.domain, name) }

// lookup answers for a name of the cluster; it is in lower case.
func (r *records) lookup(name string, kind uint16) found {
	labels := dns.SplitDomainName(strings.TrimSuffix(name, r.domain))
	n := len(labels)
	if n == 0 {
		f := found{exists: true}
		if kind == dns.TypeSOA {
			f.answer = []dns.RR{r.soa()}
		}
		return f
	}
	r.table.mu.RLock()
	defer r.table.mu.RUnlock()
	switch labels[n-1] {
	case "dns-version":
		f := found{exists: n == 1}
		if n == 1 && kind == dns.TypeTXT {
			f.answer = []dns.RR{&dns.TXT{Hdr: r.header(name, dns.TypeTXT), Txt: []string{specVersion}}}
		}
		return f
	case "pod":
		return r.pod(name, labels[:n-1], kind)
	case "svc":
		return r.service(name, labels[:n-1], kind)
	}
	return found{}
}

// pod answers for A-B-C-D.NAMESPACE.pod: whoever can ask for it knows the address.
func (r *records) pod(name string, labels []string, kind uint16) found {
	switch len(labels) {
	case 0:
		return found{exists: true}
	case 1:
		return found{exists: r.table.spaces[labels[0]] > 0}
	case 2:
	default:
		return found{}
	}
	text := labels[0]
	ip, err := netip.ParseAddr(strings.ReplaceAll(text, "-", "."))
	if err != nil {
		if ip, err = netip.ParseAddr(strings.ReplaceAll(text, "-", ":")); err != nil {
			return found{}
		}
	}
	return found{exists: true, answer: r.addresses(name, kind, []netip.Addr{ip})}
}

// addresses are records of those addresses that are of the kind that is asked for.
func (r *records) addresses(name string, kind uint16, ips []netip.Addr) []dns.RR {
	var out []dns.RR
	for _, ip := range ips {
		switch {
		case ip.Is4() && (kind == dns.TypeA || kind == dns.TypeANY):
			out = append(out, &dns.A{Hdr: r.header(name, dns.TypeA), A: net.IP(ip.AsSlice())})
		case ip.Is6() && (kind == dns.TypeAAAA || kind == dns.TypeANY):
			out = append(out, &dns.AAAA{Hdr: r.header(name, dns.TypeAAAA), AAAA: net.IP(ip.AsSlice())})
		}
	}
	rand.Shuffle(len(out), func(i, j int) { out[i], out[j] = out[j], out[i] })
	return out
}

// service answers for NAMESPACE.svc and what is below it.
func (r *records) service(name string, labels []string, kind uint16) found {
	n := len(labels)
	if n == 0 {
		return found{exists: true}
	}
	namespace := labels[n-1]
	if n == 1 {
		return found{exists: r.table.spaces[namespace] > 0}
	}
	k := key{namespace, labels[n-2]}
	s := r.table.services[k]
	if s == nil {
		return found{}
	}
	if s.Spec.Type == corev1.ServiceTypeExternalName {
		if n > 2 {
			return found{}
		}
		return found{exists: true, alias: dns.Fqdn(strings.ToLower(s.Spec.ExternalName))}
	}
	headless := s.Spec.ClusterIP == corev1.ClusterIPNone || s.Spec.ClusterIP == ""
	switch {
	case n == 2 && kind == dns.TypeSRV:
		return r.srv(name, k, s, headless, "", "")
	case n == 2 && headless:
		f := r.endpoints(name, k, kind, "")
		f.exists = true
		return f
	case n == 2:
		return found{exists: true, answer: r.addresses(name, kind, addressesOf(s))}
	case n == 3 && strings.HasPrefix(labels[0], "_"):
		return found{exists: labels[0] == "_tcp" || labels[0] == "_udp" || labels[0] == "_sctp"}
	case n == 3 && headless:
		return r.endpoints(name, k, kind, labels[0])
	case n == 4 && strings.HasPrefix(labels[0], "_") && strings.HasPrefix(labels[1], "_"):
		f := r.srv(name, k, s, headless, labels[0][1:], labels[1][1:])
		f.exists = len(f.answer) > 0
		if kind != dns.TypeSRV && kind != dns.TypeANY {
			f.answer, f.extra = nil, nil
		}
		return f
	}
	return found{}
}

// hostOf is the name of an endpoint below its service's.
func hostOf(ip netip.Addr, e *discoveryv1.Endpoint) string {
	if e.Hostname != nil && *e.Hostname != "" {
		return *e.Hostname
	}
	return dashed(ip)
}

// sorted are a service's slices, in an order.
func (t *Table) sorted(service key) []*discoveryv1.EndpointSlice {
	out := make([]*discoveryv1.EndpointSlice, 0, len(t.behind[service]))
	for _, s := range t.behind[service] {
		out = append(out, s)
	}
	slices.SortFunc(out, func(a, b *discoveryv1.EndpointSlice) int { return strings.Compare(a.Name, b.Name) })
	return out
}

// endpoints are the addresses of those behind a service; with host those that have the name.
func (r *records) endpoints(name string, service key, kind uint16, host string) found {
	var ips []netip.Addr
	seen := map[netip.Addr]bool{}
	for _, s := range r.table.behind[service] {
		eachAddress(s, func(ip netip.Addr, e *discoveryv1.Endpoint) {
			if !seen[ip] && (host == "" || host == hostOf(ip, e)) {
				seen[ip] = true
				ips = append(ips, ip)
			}
		})
	}
	return found{exists: len(ips) > 0, answer: r.addresses(name, kind, ips)}
}

// srv are the records of named ports; with port and protocol of that one.
func (r *records) srv(name string, k key, s *corev1.Service, headless bool, port, protocol string) found {
	base := fmt.Sprintf("%s.%s.svc.%s", k.name, k.namespace, r.domain)
	f := found{exists: true}
	seen := map[string]bool{}
	add := func(target string, number int32, ips ...netip.Addr) {
		if id := fmt.Sprint(target, number); !seen[id] {
			seen[id] = true
			f.answer = append(f.answer, &dns.SRV{Hdr: r.header(name, dns.TypeSRV), Weight: 1, Port: uint16(number), Target: target})
		}
		if !seen[target] {
			seen[target] = true
			f.extra = append(f.extra, r.addresses(target, dns.TypeANY, ips)...)
		}
	}
	wanted := func(name, proto string) bool {
		return name != "" && (port == "" || port == strings.ToLower(name) && protocol == strings.ToLower(proto))
	}
	if !headless {
		for i := range s.Spec.Ports {
			if p := &s.Spec.Ports[i]; wanted(p.Name, string(p.Protocol)) {
				add(base, p.Port, addressesOf(s)...)
			}
		}
		return f
	}
	for _, slice := range r.table.sorted(k) {
		for i := range slice.Ports {
			p := &slice.Ports[i]
			if p.Name == nil || p.Port == nil || p.Protocol == nil || !wanted(*p.Name, string(*p.Protocol)) {
				continue
			}
			eachAddress(slice, func(ip netip.Addr, e *discoveryv1.Endpoint) { add(hostOf(ip, e)+"."+base, *p.Port, ip) })
		}
	}
	return f
}

// reverse answers for an address of a service or of a pod behind a headless one; ok is false
// for the addresses of others.
func (r *records) reverse(name string) (found, bool) {
	ip, ok := addressOfReverse(name)
	if !ok {
		return found{}, false
	}
	r.table.mu.RLock()
	defer r.table.mu.RUnlock()
	var target string
	if k, ok := r.table.byIP[ip]; ok {
		target = fmt.Sprintf("%s.%s.svc.%s", k.name, k.namespace, r.domain)
	} else if k, ok := r.table.headless[ip]; ok {
		s := r.table.slices[k]
		eachAddress(s, func(one netip.Addr, e *discoveryv1.Endpoint) {
			if service := serviceOf(k, s); one == ip {
				target = fmt.Sprintf("%s.%s.%s.svc.%s", hostOf(ip, e), service.name, service.namespace, r.domain)
			}
		})
	}
	if target == "" {
		return found{}, false
	}
	return found{exists: true, answer: []dns.RR{&dns.PTR{Hdr: r.header(name, dns.TypePTR), Ptr: target}}}, true
}

// addressOfReverse reads a name below in-addr.arpa or ip6.arpa.
func addressOfReverse(name string) (netip.Addr, bool) {
	if rest, ok := strings.CutSuffix(name, ".in-addr.arpa."); ok {
		labels := strings.Split(rest, ".")
		slices.Reverse(labels)
		ip, err := netip.ParseAddr(strings.Join(labels, "."))
		return ip, err == nil && ip.Is4()
	}
	rest, ok := strings.CutSuffix(name, ".ip6.arpa.")
	labels := strings.Split(rest, ".")
	if !ok || len(labels) != 32 {
		return netip.Addr{}, false
	}
	slices.Reverse(labels)
	var b strings.Builder
	for i, digit := range labels {
		if i > 0 && i%4 == 0 {
			b.WriteByte(':')
		}
		b.WriteString(digit)
	}
	ip, err := netip.ParseAddr(b.String())
	return ip, err == nil
}
