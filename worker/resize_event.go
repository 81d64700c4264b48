package worker

import (
	"encoding/json"

	corev1 "k8s.io/api/core/v1"
)

// Reasons of events about resizes, as the kubelet's.
const (
	resizeStarted    = "ResizeStarted"
	resizeCompleted  = "ResizeCompleted"
	resizeDeferred   = "ResizeDeferred"
	resizeInfeasible = "ResizeInfeasible"
	resizeError      = "ResizeError"
)

// maxEventBytes is what an event's message may hold: what is longer is said without the amounts.
const maxEventBytes = 1000

// resizeMessage is the kubelet's: what happened, and the resources of the pod's containers.
func resizeMessage(what string, pod *corev1.Pod, generation int64, failure string) string {
	type container struct {
		Name      string                      `json:"name"`
		Resources corev1.ResourceRequirements `json:"resources,omitempty"`
	}
	list := func(of []corev1.Container) (out []container) {
		for i := range of {
			out = append(out, container{of[i].Name, of[i].Resources})
		}
		return out
	}
	b, err := json.Marshal(struct {
		InitContainers []container `json:"initContainers,omitempty"`
		Containers     []container `json:"containers,omitempty"`
		Generation     int64       `json:"generation"`
		Error          string      `json:"error,omitempty"`
	}{list(pod.Spec.InitContainers), list(pod.Spec.Containers), generation, failure})
	what = "Pod resize " + what
	switch {
	case err == nil && len(b) <= maxEventBytes:
		return what + ": " + string(b)
	case failure != "":
		return what + ": " + failure
	}
	return what
}
