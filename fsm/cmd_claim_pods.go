package fsm

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/berth-dev/berth/owners"
)

// ClaimPods makes a workload the controller of pods that match its selector and
// have none (Adopt), and ends that for pods of its own that match it no longer
// (Release). What a pod is by then decides; one for which it does not hold is
// passed over, and so is one that has ended or is ending.
//
// Refuses: 400 for a kind that keeps no pods; 404 if the workload is gone; 409
// if it is another one by now, or is being deleted.
type ClaimPods struct {
	Owner   ObjectRef `msgpack:"owner"`
	Adopt   []PodRef  `msgpack:"adopt,omitempty"`
	Release []PodRef  `msgpack:"release,omitempty"`
}

// Apply implements Command.
func (c *ClaimPods) Apply(tx *Tx) Result {
	owner, r := tx.workload(c.Owner)
	if owner == nil {
		return r
	}
	if owner.object.Value.GetDeletionTimestamp() != nil {
		return refuseConflict(owner.resource().groupResource(), c.Owner.Name, "it is being deleted")
	}
	selector := owner.selector()
	claimed := func(ref PodRef) (pod *corev1.Pod, matches, ok bool) {
		pod, ok = tx.findPod(ref)
		ok = ok && owners.Active(pod) && pod.Namespace == c.Owner.Namespace
		return pod, ok && selector.Matches(labels.Set(pod.Labels)), ok
	}
	for _, ref := range c.Release {
		if pod, matches, ok := claimed(ref); ok && !matches && controlledBy(pod, owner) {
			tx.modifyPod(ref.Key, pod, func(pod *corev1.Pod) {
				pod.OwnerReferences = withoutOwners(pod.OwnerReferences, func(r *metav1.OwnerReference) bool {
					return r.UID == owner.object.Value.GetUID()
				})
			})
		}
	}
	for _, ref := range c.Adopt {
		if pod, matches, ok := claimed(ref); ok && matches && owners.ControllerOf(pod) == nil {
			tx.modifyPod(ref.Key, pod, func(pod *corev1.Pod) {
				// A reference that names it without being its controller gives way.
				pod.OwnerReferences = append(withoutOwners(pod.OwnerReferences, func(r *metav1.OwnerReference) bool {
					return r.UID == owner.object.Value.GetUID()
				}), owner.reference())
			})
		}
	}
	return Result{}
}
