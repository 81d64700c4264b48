package cri

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/resource"

	"github.com/berth-dev/berth/model"
)

// The kernel's badness of a container when memory is short: what must go last, what goes first, and what lies between.
const (
	badnessLast  = -997
	badnessFirst = 1000
)

// badness is the kubelet's (GetContainerOOMScoreAdjust): Guaranteed pods and those that are critical to the node last, BestEffort ones first,
// Burstable ones the less they asked for the sooner. What the pod asks for as a whole and its containers do not is shared by them, and a
// sidecar goes no sooner than the container that asks for the least.
func (r *Runtime) badness(pod *corev1.Pod, c *corev1.Container) int64 {
	critical := pod.Spec.PriorityClassName == model.SystemNodeCritical && pod.Spec.Priority != nil && *pod.Spec.Priority >= model.SystemCriticalPriority
	qos := model.QOS(pod)
	switch {
	case qos == corev1.PodQOSGuaranteed, critical:
		return badnessLast
	case qos == corev1.PodQOSBestEffort, r.opts.MemoryBytes <= 0:
		return badnessFirst
	}
	asks := memoryOf(c)
	if sidecar(pod, c) {
		least := memoryOf(&pod.Spec.Containers[0])
		for i := range pod.Spec.Containers {
			least = min(least, memoryOf(&pod.Spec.Containers[i]))
		}
		asks = max(asks, least)
	}
	score := 1000 - 1000*(asks+sharedMemory(pod))/r.opts.MemoryBytes
	return min(max(score, 1000+badnessLast), badnessFirst-1)
}

func memoryOf(c *corev1.Container) int64 { return c.Resources.Requests.Memory().Value() }

func sidecar(pod *corev1.Pod, c *corev1.Container) bool {
	for i := range pod.Spec.InitContainers {
		if pod.Spec.InitContainers[i].Name == c.Name {
			return c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways
		}
	}
	return false
}

// sharedMemory is what each container has of the bytes that the pod asks for as a whole beyond what its containers do.
func sharedMemory(pod *corev1.Pod) int64 {
	if pod.Spec.Resources == nil {
		return 0
	}
	whole := pod.Spec.Resources.Requests.Memory().Value()
	if whole == 0 {
		return 0
	}
	own := resource.AggregateContainerRequests(pod, resource.PodResourcesOptions{})
	return (whole - own.Memory().Value()) / int64(len(pod.Spec.Containers)+len(pod.Spec.InitContainers))
}
