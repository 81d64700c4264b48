package model

import (
	"hash/fnv"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// WorkerConditions are the pod conditions that are the worker's alone to say, in the order in which it says them. A pod has
// those of a resize for as long as there is one, and AllContainersRestarting if a rule of its containers may start all of them anew.
func WorkerConditions() []corev1.PodConditionType {
	return []corev1.PodConditionType{corev1.PodReadyToStartContainers, corev1.PodInitialized, corev1.PodReady,
		corev1.ContainersReady, corev1.AllContainersRestarting, corev1.PodResizePending, corev1.PodResizeInProgress}
}

// IsResizeCondition says whether a condition is one of a resize.
func IsResizeCondition(t corev1.PodConditionType) bool {
	return t == corev1.PodResizePending || t == corev1.PodResizeInProgress
}

// WorkerStatus reduces a pod's status to what its worker alone says, in one form: two statuses whose reductions are equal
// say the same of what is true on the node. The start time, once stored, is the servers' (PR7), as are the QoS class,
// the nomination, and since when conditions are what they are (SI6). The result shares its parts with s.
func WorkerStatus(s *corev1.PodStatus) corev1.PodStatus {
	own := *s
	own.StartTime, own.QOSClass, own.NominatedNodeName = nil, "", ""
	own.Conditions = make([]corev1.PodCondition, 0, len(s.Conditions))
	for _, t := range WorkerConditions() {
		if i := slices.IndexFunc(s.Conditions, func(c corev1.PodCondition) bool { return c.Type == t }); i >= 0 {
			c := s.Conditions[i]
			c.LastTransitionTime = metav1.Time{}
			own.Conditions = append(own.Conditions, c)
		}
	}
	return own
}

// WorkerStatusDigest is of WorkerStatus: equal ones have equal digests.
func WorkerStatusDigest(s *corev1.PodStatus) uint64 {
	own := WorkerStatus(s)
	h := fnv.New64a()
	if b, err := own.Marshal(); err == nil { // it fails for no status
		h.Write(b)
	}
	return h.Sum64()
}
