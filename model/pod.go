package model

import (
	"math"
	"math/bits"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Terminal says whether the pod has ended for good. A terminal pod holds no resources.
func Terminal(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

// Terminating says whether the pod's deletion has begun.
func Terminating(pod *corev1.Pod) bool { return pod.DeletionTimestamp != nil }

// PreemptionVictim says whether the pod is on its way out because the scheduler preempted it (T5).
func PreemptionVictim(pod *corev1.Pod) bool {
	if !Terminating(pod) {
		return false
	}
	for i := range pod.Status.Conditions {
		if c := &pod.Status.Conditions[i]; c.Type == corev1.DisruptionTarget {
			return c.Status == corev1.ConditionTrue && c.Reason == corev1.PodReasonPreemptionByScheduler
		}
	}
	return false
}

// Gated says whether scheduling gates keep the pod out of the queue's active part (QU4).
func Gated(pod *corev1.Pod) bool { return len(pod.Spec.SchedulingGates) > 0 }

// RunsAtMostSeconds is the pod's activeDeadlineSeconds (PO7), rounded up to a power of two; 0 when it may run for ever.
func RunsAtMostSeconds(pod *corev1.Pod) int64 {
	d := pod.Spec.ActiveDeadlineSeconds
	if d == nil || *d <= 0 {
		return 0
	}
	return 1 << bits.Len64(uint64(*d-1))
}

// EndsWithin says whether a pod that runs for so many seconds at most (0: there is no bound) surely ends in so many seconds.
func EndsWithin(runsAtMostSeconds, seconds int64) bool {
	return runsAtMostSeconds > 0 && runsAtMostSeconds <= seconds
}

// NeverStarted is the start time of a pod that has not started: later than any other, so that such a pod is the least
// important of its priority (PR7).
const NeverStarted int64 = math.MaxInt64

// StartUnixNano returns the pod's start time, or NeverStarted.
func StartUnixNano(pod *corev1.Pod) int64 {
	if t := pod.Status.StartTime; t != nil {
		return t.UnixNano()
	}
	return NeverStarted
}

// PlacedAt is the state's time at which a pod got its node, or else was made: nothing that a worker says of it is older.
func PlacedAt(pod *corev1.Pod) metav1.Time {
	for i := range pod.Status.Conditions {
		if c := &pod.Status.Conditions[i]; c.Type == corev1.PodScheduled && c.Status == corev1.ConditionTrue {
			return c.LastTransitionTime
		}
	}
	return pod.CreationTimestamp
}
