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
	return cmp.Or(cmp.Compare(a.Port, b.Port), strings.Compare(a.Protocol, b.Protocol), strings.Compare(a.IP, b.IP))
}

// Conflicts says whether two pods cannot have p and b on one host: same protocol and port, and the same address or one
// of the two on all addresses.
func (p HostPort) Conflicts(b HostPort) bool {
	return p.Port == b.Port && p.Protocol == b.Protocol && (p.IP == b.IP || p.IP == AnyHostIP || b.IP == AnyHostIP)
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

// addPorts returns used and more as one sorted list with repetitions kept, so that removing one of two equal ports
// leaves the other.
func addPorts(used, more []HostPort) []HostPort {
	if len(more) == 0 {
		return used
	}
	out := make([]HostPort, 0, len(used)+len(more))
	for _, p := range more {
		at, _ := slices.BinarySearchFunc(used, p, compareHostPorts)
		out, used = append(append(out, used[:at]...), p), used[at:]
	}
	return append(out, used...)
}

// samePort are the ports of a sorted list that have a number.
func samePort(used []HostPort, port int32) []HostPort {
	from, _ := slices.BinarySearchFunc(used, port, func(p HostPort, port int32) int { return cmp.Compare(p.Port, port) })
	to := from
	for to < len(used) && used[to].Port == port {
		to++
	}
	return used[from:to]
}

// contending are those of the used ports that conflict with one of the wanted; both are sorted, as the result is.
func contending(used, wanted []HostPort) []HostPort {
	var out []HostPort
	for i := 0; i < len(wanted); {
		same := samePort(wanted[i:], wanted[i].Port)
		for _, p := range samePort(used, wanted[i].Port) {
			if slices.ContainsFunc(same, p.Conflicts) {
				out = append(out, p)
			}
		}
		i += len(same)
	}
	return out
}

// TakesPortOf says whether pods of two classes cannot be on one node because of their host ports.
func (c *Class) TakesPortOf(b *Class) bool {
	return slices.ContainsFunc(c.Ports, func(w HostPort) bool { return slices.ContainsFunc(samePort(b.Ports, w.Port), w.Conflicts) })
}

// removePorts returns used without one occurrence of each of gone.
func removePorts(used, gone []HostPort) []HostPort {
	if len(gone) == 0 {
		return used
	}
	var out []HostPort
	for _, p := range gone {
		at, there := slices.BinarySearchFunc(used, p, compareHostPorts)
		out = append(out, used[:at]...)
		if used = used[at:]; there {
			used = used[1:]
		}
	}
	if len(out) == 0 && len(used) == 0 {
		return nil
	}
	return append(out, used...)
}
