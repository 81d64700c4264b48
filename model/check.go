package model

import (
	"cmp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// Check returns every filter that keeps a pod of class c off the node, in kube-scheduler's order, all reasons and not
// only the first; nil means that the pod fits. alloc is Allocatable(n), u what occupies the node already. It is the one
// function that decides whether a pod fits a node; its two halves and Fits give its verdict in cheaper forms.
func Check(c *Class, n *corev1.Node, alloc Resources, u *Usage) []Reason {
	return append(CheckNode(c, n), CheckUsage(c, alloc, u)...)
}

// Fits says whether Check would return no reason, without building any.
func Fits(c *Class, n *corev1.Node, alloc *Resources, u *Usage) bool {
	return NodeFailures(c, n) == 0 && UsageFailures(c, alloc, u) == 0
}

// CheckNode is the part of Check that depends on the node object alone and not on what runs there.
func CheckNode(c *Class, n *corev1.Node) []Reason {
	out := NodeFailures(c, n).Reasons(c)
	for i := range out {
		switch out[i].Kind {
		case EnforcedAffinity:
			out[i].Detail = "by the profile " + cmp.Or(c.SchedulerName, corev1.DefaultSchedulerName)
		case Taint:
			out[i].Detail = strings.Join(untolerated(c, n), ", ")
		}
	}
	return out
}

// NodeFailures is CheckNode in its cheapest form.
func NodeFailures(c *Class, n *corev1.Node) Failures {
	f := taintFailures(c, n)
	if !c.added.admits(n) {
		f |= failEnforcedAffinity
	}
	if !matchesAffinity(c, n) {
		f |= failAffinity
	}
	return f | c.volumes.failures(n)
}

// taintFailures is the part of NodeFailures that a class's tolerations decide.
func taintFailures(c *Class, n *corev1.Node) Failures {
	var f Failures
	if n.Spec.Unschedulable && !tolerates(c.Tolerations, &unschedulableTaint) {
		f |= failUnschedulable
	}
	for i := range n.Spec.Taints {
		if t := &n.Spec.Taints[i]; keepsOut(t) && !tolerates(c.Tolerations, t) {
			return f | failTaint
		}
	}
	return f
}

// CheckUsage is the part of Check that depends on what runs on the node: host ports and resources.
func CheckUsage(c *Class, alloc Resources, u *Usage) []Reason {
	out := UsageFailures(c, &alloc, u).Reasons(c)
	for i := range out {
		if r := &out[i]; r.Kind == Ports {
			r.Detail = strings.Join(takenPorts(c.Ports, u.Ports), ", ")
		} else {
			r.ShortBy = c.Request.Get(r.Resource) - (alloc.Get(r.Resource) - u.Requested.Get(r.Resource))
		}
	}
	return out
}

// UsageFailures is CheckUsage in its cheapest form.
func UsageFailures(c *Class, alloc *Resources, u *Usage) Failures {
	var f Failures
	if slices.ContainsFunc(c.Ports, u.Ports.Take) {
		f |= failPorts
	}
	want, used := &c.Request, &u.Requested
	if want.Pods > alloc.Pods-used.Pods {
		f |= c.short(resourcePods, want.Pods > alloc.Pods)
	}
	// A resource that the pod does not ask for cannot keep it off, even where the node is overcommitted.
	if want.MilliCPU > 0 && want.MilliCPU > alloc.MilliCPU-used.MilliCPU {
		f |= c.short(resourceCPU, want.MilliCPU > alloc.MilliCPU)
	}
	if want.MemoryBytes > 0 && want.MemoryBytes > alloc.MemoryBytes-used.MemoryBytes {
		f |= c.short(resourceMemory, want.MemoryBytes > alloc.MemoryBytes)
	}
	if want.EphemeralStorageBytes > 0 && want.EphemeralStorageBytes > alloc.EphemeralStorageBytes-used.EphemeralStorageBytes {
		f |= c.short(resourceStorage, want.EphemeralStorageBytes > alloc.EphemeralStorageBytes)
	}
	for i, s := range want.Scalars {
		if s.Value <= 0 {
			continue
		}
		if offered := alloc.Get(s.Name); s.Value > offered-used.Get(s.Name) {
			f |= c.short(resourceScalars+i, s.Value > offered)
		}
	}
	return f
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

func takenPorts(want []HostPort, used UsedPorts) []string {
	var out []string
	for _, w := range want {
		if used.Take(w) {
			out = append(out, w.String())
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
