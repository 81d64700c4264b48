package worker

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/model"
)

// waitingBytes is shared by the containers of a pod, for why each does not run: what a registry or a runtime answers is in it.
const waitingBytes = 64 << 10

// fitStatus makes a status one that the servers take, whatever its containers and those who are asked about them have written: one that is
// too large would be refused for ever, and the pod's end with it, and what they leave out of one they would not agree with. Last words are cut as
// Kubernetes' node agent does it. What a pod's spec or its images alone make too large is told without what its containers were given and whom
// they began as, or without the containers.
func fitStatus(s *corev1.PodStatus) {
	s.Message = model.CutText(s.Message, model.MaxStatusTextBytes)
	for i := range s.Conditions {
		s.Conditions[i].Message = model.CutText(s.Conditions[i].Message, model.MaxStatusTextBytes)
	}
	lists := []*[]corev1.ContainerStatus{&s.InitContainerStatuses, &s.ContainerStatuses, &s.EphemeralContainerStatuses}
	n := 0
	for _, list := range lists {
		n += len(*list)
	}
	if n == 0 {
		return
	}
	words, waiting := min(model.MaxLastWordsBytes/n, model.MaxStatusTextBytes), min(waitingBytes/n, model.MaxStatusTextBytes)
	for _, list := range lists {
		for i := range *list {
			c := &(*list)[i]
			c.VolumeMounts = c.VolumeMounts[:min(len(c.VolumeMounts), model.MaxStatusList)]
			c.User = fitUser(c.User)
			for _, state := range []*corev1.ContainerState{&c.State, &c.LastTerminationState} {
				if t := state.Terminated; t != nil {
					t.Message = model.CutText(t.Message, words)
				}
				if w := state.Waiting; w != nil {
					w.Message = model.CutText(w.Message, waiting)
				}
			}
		}
	}
	if s.Size() <= model.MaxPodStatusBytes {
		return
	}
	for _, list := range lists {
		for i := range *list {
			(*list)[i].AllocatedResources, (*list)[i].Resources, (*list)[i].User = nil, nil, nil
		}
	}
	if s.Size() <= model.MaxPodStatusBytes {
		return
	}
	for _, list := range lists {
		*list = nil
	}
}

// fitUser is the user of a container with no more groups than the servers take.
func fitUser(u *corev1.ContainerUser) *corev1.ContainerUser {
	if u == nil || u.Linux == nil || len(u.Linux.SupplementalGroups) <= model.MaxStatusList {
		return u
	}
	linux := *u.Linux
	linux.SupplementalGroups = linux.SupplementalGroups[:model.MaxStatusList]
	return &corev1.ContainerUser{Linux: &linux}
}
