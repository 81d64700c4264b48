package workloads

import (
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// rests says of an object that nothing seems to be left to do for it: its status tells of what its spec asks for. What has become
// of its pods since then is seen by them, and of the others of these kinds, what services lead to, the same holds. What depends on nodes
// looks at all of them for each of its own objects.
func rests(o any) bool {
	if m, ok := o.(metav1.Object); !ok || m.GetDeletionTimestamp() != nil {
		return false
	}
	switch o := o.(type) {
	case *appsv1.Deployment:
		s, n := &o.Status, ptr.Deref(o.Spec.Replicas, 1)
		return s.ObservedGeneration >= o.Generation && s.Replicas == n && s.UpdatedReplicas == n && s.AvailableReplicas == n
	case *appsv1.ReplicaSet:
		s, n := &o.Status, ptr.Deref(o.Spec.Replicas, 1)
		return s.ObservedGeneration >= o.Generation && s.Replicas == n && s.AvailableReplicas == n && metav1.GetControllerOfNoCopy(o) != nil
	case *appsv1.StatefulSet:
		s, n := &o.Status, ptr.Deref(o.Spec.Replicas, 1)
		return s.ObservedGeneration >= o.Generation && s.Replicas == n && s.AvailableReplicas == n && s.CurrentRevision == s.UpdateRevision
	case *batchv1.Job:
		s := &o.Status
		if ptr.Deref(o.Spec.Suspend, false) || o.Spec.ActiveDeadlineSeconds != nil || o.Spec.TTLSecondsAfterFinished != nil {
			return false // its pods are to go, or a clock runs
		}
		counted := s.UncountedTerminatedPods == nil || len(s.UncountedTerminatedPods.Succeeded)+len(s.UncountedTerminatedPods.Failed) == 0
		return counted && ptr.Deref(s.Terminating, 0) == 0 && (s.CompletionTime != nil || s.Active > 0 && s.Active == ptr.Deref(s.Ready, 0) && s.Active == ptr.Deref(o.Spec.Parallelism, 1))
	case *corev1.Service, *corev1.Endpoints, *discoveryv1.EndpointSlice, *corev1.Node:
		return true
	}
	return false
}
