package fsm

import (
	"fmt"
	"net/netip"
	"strconv"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/codec"
)

// SinceServiceAddresses is the version of the rules from which on no service gets the
// address, or a port on the nodes, that another one has. Those that were stored before
// may have one together; they keep it.
const SinceServiceAddresses = 7

// What services have for themselves is known by the rows: the API chooses what is free
// as it sees it, and whether it is free still is asked when the command is applied.

// AddressTaken says whether a service has an address, or somebody keeps it.
func (v *View) AddressTaken(address string) bool {
	if v.isGiven(givenAddress(address), "") {
		return true
	}
	a, err := netip.ParseAddr(address)
	if err != nil {
		return false
	}
	_, kept := v.ipAddress(a)
	return kept
}

// NodePortTaken says whether a service has a port on the nodes, for any protocol.
func (v *View) NodePortTaken(port int32) bool { return v.isGiven(givenPort(port), "") }

// isGiven says whether something is given to a service other than one.
func (v *View) isGiven(what, but string) bool {
	taken := false
	v.given.Scan(what, func(at string, _ struct{}) bool {
		taken = at != what+but
		return !taken
	})
	return taken
}

func givenAddress(address string) string {
	if a, err := netip.ParseAddr(address); err == nil {
		address = a.String()
	}
	return "address\x00" + address + "\x00"
}

func givenPort(port int32) string { return "port\x00" + strconv.Itoa(int(port)) + "\x00" }

// givenTo calls f for everything that a service has for itself, until f returns false.
func givenTo(o codec.Object, f func(what, text string) bool) {
	s, ok := o.(*corev1.Service)
	if !ok {
		return
	}
	addresses := s.Spec.ClusterIPs
	if len(addresses) == 0 {
		addresses = []string{s.Spec.ClusterIP}
	}
	for _, a := range addresses {
		if a != "" && a != corev1.ClusterIPNone && !f(givenAddress(a), "address "+a) {
			return
		}
	}
	ports := []int32{s.Spec.HealthCheckNodePort}
	for i := range s.Spec.Ports {
		ports = append(ports, s.Spec.Ports[i].NodePort)
	}
	for _, p := range ports {
		if p != 0 && !f(givenPort(p), fmt.Sprintf("port %d on the nodes", p)) {
			return
		}
	}
}

func indexGiven(v *live, old, now *Object) {
	if old != nil {
		givenTo(old.Value, func(what, _ string) bool {
			v.given.Delete(what + PodKey(old.Value.GetNamespace(), old.Value.GetName()))
			return true
		})
	}
	if now != nil {
		givenTo(now.Value, func(what, _ string) bool {
			v.given.Set(what+PodKey(now.Value.GetNamespace(), now.Value.GetName()), struct{}{})
			return true
		})
	}
}

// checkGiven refuses a service that is to have what another one has, unless it has it
// already.
func (v *live) checkGiven(value, old codec.Object) (r Result, ok bool) {
	if v.Version() < SinceServiceAddresses {
		return Result{}, true
	}
	had := map[string]bool{}
	if old != nil {
		givenTo(old, func(what, _ string) bool {
			had[what] = true
			return true
		})
	}
	ok = true
	self := PodKey(value.GetNamespace(), value.GetName())
	givenTo(value, func(what, text string) bool {
		if !had[what] && v.isGiven(what, self) {
			r, ok = refuseConflict(serviceResource.groupResource(), value.GetName(), "another service has the "+text), false
		}
		return ok
	})
	return r, ok
}
