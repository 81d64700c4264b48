package model

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// imagesOf appends the images that the pod needs, one for each container and image volume.
func imagesOf(pod *corev1.Pod, to []string) []string {
	for i := range pod.Spec.InitContainers {
		to = append(to, imageName(pod.Spec.InitContainers[i].Image))
	}
	for i := range pod.Spec.Containers {
		to = append(to, imageName(pod.Spec.Containers[i].Image))
	}
	for i := range pod.Spec.Volumes {
		if v := pod.Spec.Volumes[i].Image; v != nil {
			to = append(to, imageName(v.Reference))
		}
	}
	return to
}

// imageName is the name by which nodes report an image: one without a tag means :latest.
func imageName(name string) string {
	if strings.LastIndexByte(name, ':') <= strings.LastIndexByte(name, '/') {
		return name + ":latest"
	}
	return name
}
