package model

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// Check returns every filter that keeps a pod of class c off the node, in kube-scheduler's order, all reasons and not
// only the first; nil means that the pod fits. alloc is Allocatable(n), u what occupies the node already. It is the one
// function that decides whether a pod fits a node.
func Check(c *Class, n *corev1.Node, alloc Resources, u *Usage) []Reason {
	return append(CheckNode(c, n), CheckUsage(c, alloc, u)...)
}

// Fits says whether Check would return no reason, without building any.
func Fits(c *Class, n *corev1.Node, alloc *Resources, u *Usage) bool {
	return FitsNode(c, n) && FitsUsage(c, alloc, u)
}

// CheckNode is the part of Check that depends on the node object alone and not on what runs there.
func CheckNode(c *Class, n *corev1.Node) []Reason {
	var out []Reason
	if !cordonTolerated(c, n) {
		out = append(out, Reason{Kind: NodeUnschedulable})
	}
	if c.NodeName != "" && c.NodeName != n.Name {
		out = append(out, Reason{Kind: NodeName, Detail: "wants " + c.NodeName})
	}
	if bad := untolerated(c, n); len(bad) > 0 {
		out = append(out, Reason{Kind: Taint, Detail: strings.Join(bad, ", ")})
	}
	if !matchesAffinity(c, n) {
		out = append(out, Reason{Kind: NodeAffinity})
	}
	return out
}

// FitsNode says whether CheckNode would return no reason.
func FitsNode(c *Class, n *corev1.Node) bool {
	if !cordonTolerated(c, n) || c.NodeName != "" && c.NodeName != n.Name {
		return false
	}
	for i := range n.Spec.Taints {
		if t := &n.Spec.Taints[i]; keepsOut(t) && !tolerates(c.Tolerations, t) {
			return false
		}
	}
	return matchesAffinity(c, n)
}

// CheckUsage is the part of Check that depends on what runs on the node: host ports and resources.
func CheckUsage(c *Class, alloc Resources, u *Usage) []Reason {
	var out []Reason
	if taken := takenPorts(c.Ports, u.Ports); len(taken) > 0 {
		out = append(out, Reason{Kind: Ports, Detail: strings.Join(taken, ", ")})
	}
	short := func(name string, want, capacity, used int64) {
		if want <= capacity-used {
			return
		}
		kind := InsufficientResource
		if want > capacity {
			kind = ExceedsCapacity
		}
		out = append(out, Reason{Kind: kind, Resource: name, ShortBy: want - (capacity - used)})
	}
	short("pods", c.Request.Pods, alloc.Pods, u.Requested.Pods)
	// A resource that the pod does not ask for cannot keep it off, even where the node is overcommitted.
	if c.Request.MilliCPU > 0 {
		short("cpu", c.Request.MilliCPU, alloc.MilliCPU, u.Requested.MilliCPU)
	}
	if c.Request.MemoryBytes > 0 {
		short("memory", c.Request.MemoryBytes, alloc.MemoryBytes, u.Requested.MemoryBytes)
	}
	if c.Request.EphemeralStorageBytes > 0 {
		short("ephemeral-storage", c.Request.EphemeralStorageBytes, alloc.EphemeralStorageBytes, u.Requested.EphemeralStorageBytes)
	}
	for _, s := range c.Request.Scalars {
		if s.Value > 0 {
			short(s.Name, s.Value, alloc.Get(s.Name), u.Requested.Get(s.Name))
		}
	}
	return out
}

// FitsUsage says whether CheckUsage would return no reason.
func FitsUsage(c *Class, alloc *Resources, u *Usage) bool {
	r, used := &c.Request, &u.Requested
	if r.Pods > alloc.Pods-used.Pods ||
		r.MilliCPU > 0 && r.MilliCPU > alloc.MilliCPU-used.MilliCPU ||
		r.MemoryBytes > 0 && r.MemoryBytes > alloc.MemoryBytes-used.MemoryBytes ||
		r.EphemeralStorageBytes > 0 && r.EphemeralStorageBytes > alloc.EphemeralStorageBytes-used.EphemeralStorageBytes {
		return false
	}
	for _, s := range r.Scalars {
		if s.Value > 0 && s.Value > alloc.Get(s.Name)-used.Get(s.Name) {
			return false
		}
	}
	for i := range c.Ports {
		for j := range u.Ports {
			if c.Ports[i].Conflicts(u.Ports[j]) {
				return false
			}
		}
	}
	return true
}

func cordonTolerated(c *Class, n *corev1.Node) bool {
	return !n.Spec.Unschedulable || tolerates(c.Tolerations, &unschedulableTaint)
}

func untolerated(c *Class, n *corev1.Node) []string {
	var out []string
	for i := range n.Spec.Taints {
		if t := &n.Spec.Taints[i]; keepsOut(t) && !tolerates(c.Tolerations, t) {
			out = append(out, "{"+t.Key+": "+t.Value+"}")
		}
	}
	return out
}

// matchesAffinity applies nodeSelector and required node affinity (AF1). A term that does not parse matches nothing.
func matchesAffinity(c *Class, n *corev1.Node) bool {
	if !c.selects {
		return true
	}
	ok, err := c.required.Match(n)
	return ok && err == nil
}

func takenPorts(want, used []HostPort) []string {
	var out []string
	for _, w := range want {
		for _, u := range used {
			if w.Conflicts(u) {
				out = append(out, w.String())
				break
			}
		}
	}
	return out
}

// FormatAmount writes an amount of a resource as Kubernetes writes quantities: cpu from thousandths, bytes with a binary
// suffix.
func FormatAmount(name string, v int64) string {
	switch {
	case name == "cpu":
		return resource.NewMilliQuantity(v, resource.DecimalSI).String()
	case name == "memory" || name == "ephemeral-storage" || strings.HasPrefix(name, "hugepages-"):
		return resource.NewQuantity(v, resource.BinarySI).String()
	}
	return resource.NewQuantity(v, resource.DecimalSI).String()
}
