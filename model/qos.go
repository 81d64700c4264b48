package model

import corev1 "k8s.io/api/core/v1"

// QOS returns the pod's quality-of-service class (IN7): Guaranteed when every container, init containers included, has
// cpu and memory limits and the requests equal them; BestEffort when none has any; else Burstable. Ephemeral containers
// do not count. Pod-level resources decide alone where they are set.
func QOS(pod *corev1.Pod) corev1.PodQOSClass {
	requests, limits := corev1.ResourceList{}, corev1.ResourceList{}
	guaranteed := true
	count := func(r corev1.ResourceRequirements) {
		addCompute(requests, r.Requests)
		if addCompute(limits, r.Limits) < 2 {
			guaranteed = false
		}
	}
	if pl := pod.Spec.Resources; pl != nil {
		addCompute(requests, pl.Requests)
		if n := addCompute(limits, pl.Limits); len(pl.Limits) > 0 && n < 2 {
			guaranteed = false
		}
	} else {
		for i := range pod.Spec.Containers {
			count(pod.Spec.Containers[i].Resources)
		}
		for i := range pod.Spec.InitContainers {
			count(pod.Spec.InitContainers[i].Resources)
		}
	}
	switch {
	case len(requests) == 0 && len(limits) == 0:
		return corev1.PodQOSBestEffort
	case guaranteed && sameCompute(requests, limits):
		return corev1.PodQOSGuaranteed
	}
	return corev1.PodQOSBurstable
}

// addCompute adds the positive cpu and memory amounts of list to sum and returns how many of the two there were.
func addCompute(sum, list corev1.ResourceList) int {
	n := 0
	for _, name := range [...]corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
		q, ok := list[name]
		if !ok || q.Sign() <= 0 {
			continue
		}
		n++
		total := q.DeepCopy()
		total.Add(sum[name])
		sum[name] = total
	}
	return n
}

func sameCompute(requests, limits corev1.ResourceList) bool {
	if len(requests) != len(limits) {
		return false
	}
	for _, name := range [...]corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
		r, asked := requests[name]
		l, capped := limits[name]
		if asked != capped || r.Cmp(l) != 0 {
			return false
		}
	}
	return true
}
