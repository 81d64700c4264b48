package runtime

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/resource"
)

// LimitsOf are the limits of a pod as a whole: those that it has itself, and else those of its containers together, for what all of them are limited in.
func LimitsOf(pod *corev1.Pod) corev1.ResourceList {
	out := corev1.ResourceList{}
	cpu, memory := true, true
	limits := resource.PodLimits(pod, resource.PodResourcesOptions{ContainerFn: func(l corev1.ResourceList, _ resource.ContainerType) {
		cpu, memory = cpu && !l.Cpu().IsZero(), memory && !l.Memory().IsZero()
	}})
	if own := pod.Spec.Resources; own != nil {
		cpu, memory = cpu || !own.Limits.Cpu().IsZero(), memory || !own.Limits.Memory().IsZero()
	}
	if cpu {
		out[corev1.ResourceCPU] = *limits.Cpu()
	}
	if memory {
		out[corev1.ResourceMemory] = *limits.Memory()
	}
	return out
}
