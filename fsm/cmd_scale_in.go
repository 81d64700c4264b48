package fsm

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/owners"
)

// ScaleIn deletes pods of a workload that has too many, in the order in which
// they are named, with their grace period. It stops when the workload has as
// few as it wants by then, whatever was known when the victims were chosen; one
// that is not the workload's any more, or is on its way out, is passed over.
//
// Refuses: 400 for a kind that keeps no pods; 404 if the workload is gone; 409
// if it is another one by now.
type ScaleIn struct {
	Owner   ObjectRef `msgpack:"owner"`
	Victims []PodRef  `msgpack:"victims"`
}

// Apply implements Command.
func (c *ScaleIn) Apply(tx *Tx) Result {
	owner, r := tx.workload(c.Owner)
	if owner == nil {
		return r
	}
	surplus := -owner.missing(&tx.view.View)
	var gone names
	for _, ref := range c.Victims {
		if surplus <= 0 || tx.enough() {
			break
		}
		pod, ok := tx.findPod(ref)
		if !ok || !owners.Active(pod) || !controlledBy(pod, owner) {
			continue
		}
		tx.deletePod(ref.Key, pod, nil, nil)
		gone.add(pod.Name)
		surplus--
	}
	if gone.count > 0 {
		tx.event(eventSource, owner.ref.Namespace, eventName(owner.ref.Name, uint64(tx.view.Revision()+1)), owner.about(),
			corev1.EventTypeNormal, "SuccessfulDelete", "Deleted "+gone.String())
	}
	return Result{}
}

func controlledBy(pod *corev1.Pod, w *workload) bool {
	c := owners.ControllerOf(pod)
	return c != nil && owners.ID{Namespace: pod.Namespace, UID: c.UID} == owners.IDOf(w.object.Value)
}
