package config

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// Bits of a range that addresses differ in: enough for a gateway and some services, and no more
// than can be searched for one that is free.
const leastHostBits, mostHostBits = 3, 16

// Ranges are the ranges that services get their addresses from, the first one by default.
func (s *Services) Ranges() ([]netip.Prefix, error) {
	var out []netip.Prefix
	for _, text := range s.ClusterIPRanges {
		p, err := netip.ParsePrefix(text)
		if err != nil {
			return nil, fmt.Errorf("%q is no range like \"10.96.0.0/16\"", text)
		}
		if p != p.Masked() {
			return nil, fmt.Errorf("%q is not where a range begins; that is %q", text, p.Masked())
		}
		if bits := p.Addr().BitLen() - p.Bits(); bits < leastHostBits || bits > mostHostBits {
			return nil, fmt.Errorf("%q has %d addresses' bits; it must be %d to %d, as /%d is", text, bits, leastHostBits, mostHostBits, p.Addr().BitLen()-mostHostBits)
		}
		if p.Addr().Is4In6() || p.Addr().IsLoopback() || p.Addr().IsUnspecified() || p.Addr().IsMulticast() || p.Addr().IsLinkLocalUnicast() {
			return nil, fmt.Errorf("%q has addresses that are nobody's in particular", text)
		}
		out = append(out, p)
	}
	switch {
	case len(out) == 0 || len(out) > 2:
		return nil, errors.New("it must be one range, or one of IPv4 and one of IPv6")
	case len(out) == 2 && out[0].Addr().Is4() == out[1].Addr().Is4():
		return nil, errors.New("of two ranges one must be of IPv4 and one of IPv6")
	}
	return out, nil
}

// Ports are the first and the last of the ports that services get on every node.
func (s *Services) Ports() (first, last int, err error) {
	from, to, _ := strings.Cut(s.NodePorts, "-")
	first, err = strconv.Atoi(from)
	if err == nil {
		last, err = strconv.Atoi(to)
	}
	if err != nil {
		return 0, 0, fmt.Errorf("%q is not of the form \"30000-32767\"", s.NodePorts)
	}
	if first < 1024 || last > 65535 || last < first {
		return 0, 0, fmt.Errorf("%q must lie between 1024 and 65535", s.NodePorts)
	}
	return first, last, nil
}
