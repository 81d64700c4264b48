package model

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// Resizing says whether what a pod is charged for differs from what its spec asks for: it is bound, and by its status
// its containers have more than that, or its node will never give them what they ask for.
func Resizing(pod *corev1.Pod) bool { return resizing(pod, false) }

// resizing is Resizing; all: also where only an init container is resized that is no sidecar.
func resizing(pod *corev1.Pod, all bool) bool {
	s := &pod.Status
	if pod.Spec.NodeName == "" || len(s.ContainerStatuses)+len(s.InitContainerStatuses) == 0 && s.Resources == nil {
		return false
	}
	infeasible := infeasible(pod)
	differs := func(c *corev1.Container, cs *corev1.ContainerStatus) bool {
		return cs != nil && cs.Resources != nil && !chargedAs(&c.Resources, cs.Resources, cs.AllocatedResources, infeasible)
	}
	for i := range pod.Spec.Containers {
		if c := &pod.Spec.Containers[i]; differs(c, statusOf(s.ContainerStatuses, i, c.Name)) {
			return true
		}
	}
	for i := range pod.Spec.InitContainers {
		if c := &pod.Spec.InitContainers[i]; (all || isSidecar(c)) && differs(c, statusOf(s.InitContainerStatuses, i, c.Name)) {
			return true
		}
	}
	own := pod.Spec.Resources
	if own == nil || s.Resources == nil {
		return false
	}
	actual, allocated := wholePods(pod)
	return !chargedAs(own, actual, allocated, infeasible)
}

// SameCharge says whether two states of a pod with one spec are charged alike, whatever else of their status differs.
func SameCharge(a, b *corev1.Pod) bool {
	x, y := Resizing(a), Resizing(b)
	if !x || !y {
		return x == y
	}
	p, q := Charged(a), Charged(b)
	same := func(c, d []corev1.Container) bool {
		for i := range c {
			if !sameAmounts(c[i].Resources.Requests, d[i].Resources.Requests) || !sameAmounts(c[i].Resources.Limits, d[i].Resources.Limits) {
				return false
			}
		}
		return true
	}
	if len(p.Spec.Containers) != len(q.Spec.Containers) || len(p.Spec.InitContainers) != len(q.Spec.InitContainers) {
		return false
	}
	if m, n := p.Spec.Resources, q.Spec.Resources; m != nil && n != nil && (!sameAmounts(m.Requests, n.Requests) || !sameAmounts(m.Limits, n.Limits)) {
		return false
	}
	return same(p.Spec.Containers, q.Spec.Containers) && same(p.Spec.InitContainers, q.Spec.InitContainers)
}

// Charged is the pod with the requests and limits that it is charged for in place of those of its spec, by
// kube-scheduler's rule: of what it asks for, what its node has set aside for it and what its containers really have, the
// most of each resource; what it asks for is left out while the node says that it can never have it. A pod that is not
// being resized is its own answer; else it is a copy, which shares with the pod what is not its resources.
func Charged(pod *corev1.Pod) *corev1.Pod { return charged(pod, false) }

// Most is Charged with what init containers have that are no sidecars. kube-scheduler does not count that, but what bounds the whole of a pod must not
// be less than what bounds one of its containers.
func Most(pod *corev1.Pod) *corev1.Pod { return charged(pod, true) }

func charged(pod *corev1.Pod, inits bool) *corev1.Pod {
	if !resizing(pod, inits) {
		return pod
	}
	out, infeasible := *pod, infeasible(pod)
	charge := func(list []corev1.Container, statuses []corev1.ContainerStatus, all bool) []corev1.Container {
		charged := slices.Clone(list)
		for i := range charged {
			c := &charged[i]
			if cs := statusOf(statuses, i, c.Name); cs != nil && cs.Resources != nil && (all || isSidecar(c)) {
				c.Resources = charges(&c.Resources, cs.Resources, cs.AllocatedResources, infeasible)
			}
		}
		return charged
	}
	out.Spec.Containers = charge(pod.Spec.Containers, pod.Status.ContainerStatuses, true)
	out.Spec.InitContainers = charge(pod.Spec.InitContainers, pod.Status.InitContainerStatuses, inits)
	if own := pod.Spec.Resources; own != nil && pod.Status.Resources != nil {
		actual, allocated := wholePods(pod)
		charged := charges(own, actual, allocated, infeasible)
		out.Spec.Resources = &charged
	}
	return &out
}

// infeasible says whether the pod's node has said that it can never give the pod what it asks for now. What it said of an
// older spec says nothing of this one.
func infeasible(pod *corev1.Pod) bool {
	for i := range pod.Status.Conditions {
		if c := &pod.Status.Conditions[i]; c.Type == corev1.PodResizePending {
			old := c.ObservedGeneration != 0 && c.ObservedGeneration < pod.Generation && pod.DeletionTimestamp == nil
			return c.Reason == corev1.PodReasonInfeasible && !old
		}
	}
	return false
}

func isSidecar(c *corev1.Container) bool {
	return c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways
}

// statusOf finds a container's status, most often where the container is.
func statusOf(all []corev1.ContainerStatus, at int, name string) *corev1.ContainerStatus {
	if at < len(all) && all[at].Name == name {
		return &all[at]
	}
	for i := range all {
		if all[i].Name == name {
			return &all[i]
		}
	}
	return nil
}

// charges is what one container, or a whole pod, is charged for.
func charges(spec, actual *corev1.ResourceRequirements, allocated corev1.ResourceList, infeasible bool) corev1.ResourceRequirements {
	if infeasible {
		return corev1.ResourceRequirements{Requests: most(actual.Requests, allocated), Limits: most(actual.Limits)}
	}
	return corev1.ResourceRequirements{Requests: most(spec.Requests, actual.Requests, allocated), Limits: most(spec.Limits, actual.Limits)}
}

// chargedAs says whether charges are what the spec says.
func chargedAs(spec, actual *corev1.ResourceRequirements, allocated corev1.ResourceList, infeasible bool) bool {
	if infeasible {
		c := charges(spec, actual, allocated, infeasible)
		return sameAmounts(c.Requests, spec.Requests) && sameAmounts(c.Limits, spec.Limits)
	}
	return within(actual.Requests, spec.Requests) && within(allocated, spec.Requests) && within(actual.Limits, spec.Limits)
}

// within says whether no amount of a is above b's.
func within(a, b corev1.ResourceList) bool {
	// order does not matter: each name is looked at by itself.
	for name, q := range a {
		if r, ok := b[name]; !ok || q.Cmp(r) > 0 {
			return false
		}
	}
	return true
}

// wholePods is what the status says of the pod as a whole, of the resources that its spec names so: a status may have
// those of its containers, too.
func wholePods(pod *corev1.Pod) (actual *corev1.ResourceRequirements, allocated corev1.ResourceList) {
	own, s := pod.Spec.Resources, &pod.Status
	return &corev1.ResourceRequirements{Requests: named(s.Resources.Requests, own.Requests), Limits: named(s.Resources.Limits, own.Limits)},
		named(s.AllocatedResources, own.Requests)
}

func named(list, names corev1.ResourceList) corev1.ResourceList {
	out := corev1.ResourceList{}
	// order does not matter: each name is looked at by itself.
	for name := range names {
		if q, ok := list[name]; ok {
			out[name] = q
		}
	}
	return out
}

func most(lists ...corev1.ResourceList) corev1.ResourceList {
	var out corev1.ResourceList
	for _, list := range lists {
		// order does not matter: each name is looked at by itself.
		for name, q := range list {
			if out == nil {
				out = corev1.ResourceList{}
			}
			if had, ok := out[name]; !ok || q.Cmp(had) > 0 {
				out[name] = q
			}
		}
	}
	return out
}

func sameAmounts(a, b corev1.ResourceList) bool {
	if len(a) != len(b) {
		return false
	}
	// order does not matter: all have to be equal.
	for name, q := range a {
		if r, ok := b[name]; !ok || q.Cmp(r) != 0 {
			return false
		}
	}
	return true
}

// ShareResources lets a status say with the memory of the spec what it says of resources, where both say the same: nearly
// every pod has what it asks for. The status' lists of containers must be the caller's own.
func ShareResources(status *corev1.PodStatus, spec *corev1.PodSpec) {
	share := func(statuses []corev1.ContainerStatus, list []corev1.Container) {
		for i := range statuses {
			cs := &statuses[i]
			if i >= len(list) || list[i].Name != cs.Name {
				continue
			}
			own := &list[i].Resources
			if r := cs.Resources; r != nil && len(r.Claims)+len(own.Claims) == 0 && writtenAlike(r.Requests, own.Requests) && writtenAlike(r.Limits, own.Limits) {
				cs.Resources = own
			}
			if writtenAlike(cs.AllocatedResources, own.Requests) {
				cs.AllocatedResources = own.Requests
			}
		}
	}
	share(status.ContainerStatuses, spec.Containers)
	share(status.InitContainerStatuses, spec.InitContainers)
}

func writtenAlike(a, b corev1.ResourceList) bool {
	if len(a) != len(b) || (a == nil) != (b == nil) {
		return false
	}
	// order does not matter: all have to be equal.
	for name, q := range a {
		if r, ok := b[name]; !ok || q.Cmp(r) != 0 || q.Format != r.Format {
			return false
		}
	}
	return true
}
