package workloads

import (
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/model"
)

// rests says of an object that nothing seems to be left to do for it: its status tells of what its spec asks for. What has become
// of its pods since then is seen by them. A service rests while it leads where it says (LC8, TM3). What depends on nodes looks at all of them for each
// of its own objects.
func rests(v *fsm.View, o any) bool {
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
	case *corev1.Service:
		return leads(v, o)
	case *corev1.Endpoints, *discoveryv1.EndpointSlice, *corev1.Node:
		return true
	}
	return false
}

// leads says whether the slices of a service tell of pods as they are: somebody sends traffic there.
func leads(v *fsm.View, service *corev1.Service) (right bool) {
	right = true
	// Its controller names slices so. One of somebody else's, or of a name that is too long for that, waits for the service's turn.
	v.Objects.Scan(fsm.ObjectKey("endpointslices", service.Namespace, service.Name+"-"), func(_ string, o *fsm.Object) bool {
		slice, ok := o.Value.(*discoveryv1.EndpointSlice)
		if !ok || slice.Labels[discoveryv1.LabelServiceName] != service.Name {
			return true
		}
		right = !slices.ContainsFunc(slice.Endpoints, func(e discoveryv1.Endpoint) bool { return astray(v, slice.Namespace, &e) })
		return right
	})
	return right
}

// astray: an endpoint is of a pod that is gone, or is another thing by now than it says.
func astray(v *fsm.View, namespace string, e *discoveryv1.Endpoint) bool {
	if e.TargetRef == nil || e.TargetRef.Kind != "Pod" {
		return false
	}
	pod, there := v.Pods.Get(fsm.PodKey(namespace, e.TargetRef.Name))
	return !there || pod.UID != e.TargetRef.UID || model.Terminal(pod) ||
		ptr.Deref(e.Conditions.Serving, false) != model.Ready(pod) || ptr.Deref(e.Conditions.Terminating, false) != model.Terminating(pod)
}
