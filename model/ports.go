package model

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// AnyHostIP is the address that stands for all of a host's addresses.
const AnyHostIP = "0.0.0.0"

// HostPort is a port of the host that a pod occupies. IP and Protocol are never empty (0.0.0.0 and TCP by default).
type HostPort struct {
	IP       string
	Protocol string
	Port     int32
}

func (p HostPort) String() string { return fmt.Sprintf("%s:%d/%s", p.IP, p.Port, p.Protocol) }

func compareHostPorts(a, b HostPort) int {
	if a.Port != b.Port {
		return cmp.Compare(a.Port, b.Port)
	}
	return cmp.Or(strings.Compare(a.Protocol, b.Protocol), strings.Compare(a.IP, b.IP))
}

// HostPorts returns the host ports of the pod's containers and sidecars, sorted; nil when there are none. Ordinary init
// containers are gone before the containers start and do not count.
func HostPorts(pod *corev1.Pod) []HostPort {
	var out []HostPort
	add := func(c *corev1.Container) {
		for _, p := range c.Ports {
			if p.HostPort <= 0 {
				continue
			}
			hp := HostPort{IP: p.HostIP, Protocol: string(p.Protocol), Port: p.HostPort}
			if hp.IP == "" {
				hp.IP = AnyHostIP
			}
			if hp.Protocol == "" {
				hp.Protocol = string(corev1.ProtocolTCP)
			}
			out = append(out, hp)
		}
	}
	for i := range pod.Spec.InitContainers {
		if c := &pod.Spec.InitContainers[i]; c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			add(c)
		}
	}
	for i := range pod.Spec.Containers {
		add(&pod.Spec.Containers[i])
	}
	slices.SortFunc(out, compareHostPorts)
	return out
}

// compareSockets is compareHostPorts without the address.
func compareSockets(a, b HostPort) int {
	if a.Port != b.Port {
		return cmp.Compare(a.Port, b.Port)
	}
	return strings.Compare(a.Protocol, b.Protocol)
}

// TakesPortOf says whether pods of two classes cannot be on one host because of their host ports.
func (c *Class) TakesPortOf(b *Class) bool {
	x, y := c.Ports, b.Ports
	for len(x) > 0 && len(y) > 0 {
		switch order := compareSockets(x[0], y[0]); {
		case order < 0:
			x = x[1:]
		case order > 0:
			y = y[1:]
		default:
			i, j := sameSocket(x), sameSocket(y)
			if contend(x[:i], y[:j]) {
				return true
			}
			x, y = x[i:], y[j:]
		}
	}
	return false
}

// sameSocket is how many of a sorted list have the port and protocol of the first.
func sameSocket(list []HostPort) int {
	n := 1
	for n < len(list) && compareSockets(list[0], list[n]) == 0 {
		n++
	}
	return n
}

// contend says whether one of each of two sorted lists conflict that are of one port and protocol.
func contend(x, y []HostPort) bool {
	everywhere := func(p HostPort) bool { return p.IP == AnyHostIP }
	if slices.ContainsFunc(x, everywhere) || slices.ContainsFunc(y, everywhere) {
		return true
	}
	for len(x) > 0 && len(y) > 0 {
		switch order := strings.Compare(x[0].IP, y[0].IP); {
		case order == 0:
			return true
		case order < 0:
			x = x[1:]
		default:
			y = y[1:]
		}
	}
	return false
}

// UsedPorts are the host ports that a set of pods occupies. They are immutable, and those that are made from others share
// with them what did not change, for a node may have a million. The zero value has none.
type UsedPorts struct {
	chunks [][]usedPort // sorted; none is empty
	n      int
	// beside are more of them, too many to be merged for a few questions; none has such itself.
	beside []UsedPorts
}

// usedPort is a port, and how many of the pods have it: when one of them goes the others still do.
type usedPort struct {
	HostPort
	pods int32
}

func comparePortTo(u usedPort, p HostPort) int { return compareHostPorts(u.HostPort, p) }

// mostInChunk is how many ports are copied at most when one comes or goes.
const mostInChunk = 64

// With are these and more, which are sorted.
func (u UsedPorts) With(more []HostPort) UsedPorts { return u.changed(timesOf(more, 1)) }

// Without are these but for one pod's of each of the gone, which are sorted.
func (u UsedPorts) Without(gone []HostPort) UsedPorts {
	if u.Len() == 0 {
		return u
	}
	return u.merged().changed(timesOf(gone, -1))
}

// Plus are those of both. It costs no more than a few of them do.
func (u UsedPorts) Plus(b UsedPorts) UsedPorts {
	for _, part := range append([]UsedPorts{{chunks: b.chunks, n: b.n}}, b.beside...) {
		switch {
		case u.n == 0:
			u.chunks, u.n = part.chunks, part.n
		case part.n <= mostInChunk:
			u = u.changed(slices.Concat(part.chunks...))
		default:
			u.beside = append(slices.Clip(u.beside), part)
		}
	}
	return u
}

// merged are the same in one piece.
func (u UsedPorts) merged() UsedPorts {
	out := UsedPorts{chunks: u.chunks, n: u.n}
	for _, part := range u.beside {
		out = out.changed(slices.Concat(part.chunks...))
	}
	return out
}

// timesOf are sorted ports, each once, with how often they come or go.
func timesOf(ports []HostPort, by int32) []usedPort {
	out := make([]usedPort, 0, len(ports))
	for _, p := range ports {
		if last := len(out) - 1; last >= 0 && out[last].HostPort == p {
			out[last].pods += by
		} else {
			out = append(out, usedPort{p, by})
		}
	}
	return out
}

// changed are these with so many pods more or less for each of some ports, which are sorted.
func (u UsedPorts) changed(by []usedPort) UsedPorts {
	if len(by) == 0 {
		return u
	}
	out := UsedPorts{chunks: make([][]usedPort, 0, len(u.chunks)+1+2*len(by)/mostInChunk), n: u.n, beside: u.beside}
	at := 0
	for len(by) > 0 {
		in := u.chunkOf(at, by[0].HostPort)
		out.chunks = append(out.chunks, u.chunks[at:in]...)
		var chunk []usedPort
		if at = in; in < len(u.chunks) {
			chunk, at = u.chunks[in], in+1
		}
		here := len(by)
		if at < len(u.chunks) {
			here, _ = slices.BinarySearchFunc(by, u.chunks[at][0].HostPort, comparePortTo)
		}
		merged := mergePorts(chunk, by[:here])
		out.n += len(merged) - len(chunk)
		out.append(merged)
		by = by[here:]
	}
	if out.chunks = append(out.chunks, u.chunks[at:]...); out.n == 0 {
		out.chunks = nil
	}
	return out
}

// chunkOf is the chunk, not before one, that a port is in or belongs into.
func (u UsedPorts) chunkOf(from int, p HostPort) int {
	first := func(chunk []usedPort, p HostPort) int { return comparePortTo(chunk[0], p) }
	at, found := slices.BinarySearchFunc(u.chunks[from:], p, first)
	if !found && at > 0 {
		at--
	}
	return from + at
}

// append adds ports at the end, in chunks that are neither too large nor many small ones.
func (u *UsedPorts) append(ports []usedPort) {
	if last := len(u.chunks) - 1; last >= 0 && len(ports)+len(u.chunks[last]) <= mostInChunk/2 {
		ports = slices.Concat(u.chunks[last], ports)
		u.chunks = u.chunks[:last]
	}
	for len(ports) > mostInChunk {
		u.chunks = append(u.chunks, ports[:mostInChunk/2:mostInChunk/2])
		ports = ports[mostInChunk/2:]
	}
	if len(ports) > 0 {
		u.chunks = append(u.chunks, ports)
	}
}

// mergePorts is one chunk with what comes and goes; what is not there does not go.
func mergePorts(chunk, by []usedPort) []usedPort {
	out := make([]usedPort, 0, len(chunk)+len(by))
	add := func(p usedPort) {
		if p.pods > 0 {
			out = append(out, p)
		}
	}
	for len(chunk) > 0 && len(by) > 0 {
		switch order := compareHostPorts(chunk[0].HostPort, by[0].HostPort); {
		case order < 0:
			out, chunk = append(out, chunk[0]), chunk[1:]
		case order > 0:
			add(by[0])
			by = by[1:]
		default:
			add(usedPort{by[0].HostPort, chunk[0].pods + by[0].pods})
			chunk, by = chunk[1:], by[1:]
		}
	}
	for _, p := range by {
		add(p)
	}
	return append(out, chunk...)
}

// from calls f for each that is not below one, sorted, until f returns false; not for those beside.
func (u UsedPorts) from(first HostPort, f func(p usedPort) bool) {
	if u.n == 0 {
		return
	}
	in := u.chunkOf(0, first)
	at, _ := slices.BinarySearchFunc(u.chunks[in], first, comparePortTo)
	for ; in < len(u.chunks); in, at = in+1, 0 {
		for _, p := range u.chunks[in][at:] {
			if !f(p) {
				return
			}
		}
	}
}

// has says whether a port is one of them; not of those beside.
func (u UsedPorts) has(p HostPort) (usedPort, bool) {
	if u.n > 0 {
		chunk := u.chunks[u.chunkOf(0, p)]
		if i, ok := slices.BinarySearchFunc(chunk, p, comparePortTo); ok {
			return chunk[i], true
		}
	}
	return usedPort{}, false
}

// conflicting calls f for each of them that conflicts with a port, until f returns false; for one that is beside another
// like it, several times.
func (u UsedPorts) conflicting(p HostPort, f func(p usedPort) bool) {
	goOn := true
	again := func(p usedPort) bool {
		goOn = f(p)
		return goOn
	}
	u.ownConflicting(p, again)
	for i := 0; goOn && i < len(u.beside); i++ {
		u.beside[i].ownConflicting(p, again)
	}
}

func (u UsedPorts) ownConflicting(p HostPort, f func(p usedPort) bool) {
	if p.IP == AnyHostIP {
		u.from(HostPort{Protocol: p.Protocol, Port: p.Port}, func(used usedPort) bool {
			return compareSockets(used.HostPort, p) == 0 && f(used)
		})
		return
	}
	used, ok := u.has(p)
	if ok && !f(used) {
		return
	}
	p.IP = AnyHostIP
	if used, ok = u.has(p); ok {
		f(used)
	}
}

// Take says whether nobody else can have a port: one of these conflicts with it.
func (u UsedPorts) Take(p HostPort) (taken bool) {
	u.conflicting(p, func(usedPort) bool {
		taken = true
		return false
	})
	return taken
}

// Toward are those of them that conflict with one of the wanted.
func (u UsedPorts) Toward(wanted []HostPort) (out UsedPorts) {
	found := map[HostPort]bool{} // for two of the wanted may conflict with one
	var all []usedPort
	for _, part := range append([]UsedPorts{u}, u.beside...) {
		clear(found)
		all = all[:0]
		for _, p := range wanted {
			part.ownConflicting(p, func(used usedPort) bool {
				if !found[used.HostPort] {
					found[used.HostPort] = true
					all = append(all, used)
				}
				return true
			})
		}
		slices.SortFunc(all, func(a, b usedPort) int { return comparePortTo(a, b.HostPort) })
		out = out.changed(all)
	}
	return out
}

// Len is how many there are; one that is beside another like it counts again.
func (u UsedPorts) Len() int {
	n := u.n
	for _, part := range u.beside {
		n += part.n
	}
	return n
}

// String lists them, with how many pods have each.
func (u UsedPorts) String() string {
	var out []string
	u.merged().from(HostPort{}, func(p usedPort) bool {
		out = append(out, fmt.Sprintf("%v*%d", p.HostPort, p.pods))
		return true
	})
	return strings.Join(out, " ")
}
