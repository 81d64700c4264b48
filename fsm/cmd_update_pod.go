package fsm

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/berth-dev/berth/api/berthv1"
	"github.com/berth-dev/berth/model"
	"github.com/berth-dev/berth/usage"
)

// UpdatePod replaces a pod by a changed one that the API has validated: spec,
// metadata or status. The queue follows what the change means for it. The
// node and the nomination are not the API's to change here: they stay as they
// are.
//
// Refuses: 404 if there is none; 409 for a stale revision or another UID, and
// for a pod that its node has no room for any more; 403 for one that quotas do not
// allow as it is to be.
type UpdatePod struct {
	Pod      PodWire `msgpack:"pod"`
	Revision int64   `msgpack:"revision,omitempty"`
	// Resize: the pod's containers are to have other resources. Whether its node has room for that is for the node to
	// say; until then the pod is charged for the most of what it has and what it asks for.
	Resize bool `msgpack:"resize,omitempty"`
}

// since implements laterCommand.
func (c *UpdatePod) since() int {
	if c.Resize {
		return SinceResize
	}
	return 0
}

// Apply implements Command.
func (c *UpdatePod) Apply(tx *Tx) Result {
	pod := c.Pod.Object
	if pod == nil {
		return refuseBadRequest("UpdatePod without a pod")
	}
	key := PodKey(pod.Namespace, pod.Name)
	old, ok := tx.view.Pods.Get(key)
	if !ok {
		return refuseNotFound(podResource.groupResource(), pod.Name)
	}
	if r, ok := (Precondition{UID: string(pod.UID), Revision: c.Revision}).check(old, podResource); !ok {
		return r
	}
	keepDecided(pod, old)
	if equality.Semantic.DeepEqual(&pod.Spec, &old.Spec) {
		pod.Spec = old.Spec // a pod whose spec did not change goes on sharing it, and what is shared is equal at once
		if equality.Semantic.DeepEqual(pod, old) {
			return Result{Table: tx.view.Pods.Name(), Object: old}
		}
	} else {
		tx.view.cache.intern(pod)
	}
	if why := tx.view.outgrows(old, pod); why != "" && !c.Resize {
		return refuseConflict(podResource.groupResource(), pod.Name, why)
	}
	if r, ok := tx.view.checkPodQuotas(pod, old); !ok {
		return r
	}
	if podLetGo(pod) {
		tx.removePod(key, old)
		return Result{Table: tx.view.Pods.Name(), Object: old, Deleted: true}
	}
	put(tx, tx.view.Pods, key, pod)
	tx.followPod(key, old, pod)
	return Result{Table: tx.view.Pods.Name(), Object: pod}
}

// keepDecided undoes what no update may change: the node, the nomination, the
// priority that was resolved at admission (AD4), an end that has begun, and an
// end that has come.
func keepDecided(pod, old *corev1.Pod) {
	pod.Spec.NodeName = old.Spec.NodeName
	pod.Spec.Priority, pod.Spec.PreemptionPolicy = old.Spec.Priority, old.Spec.PreemptionPolicy
	pod.Status.QOSClass = old.Status.QOSClass
	if old.DeletionTimestamp != nil && pod.DeletionTimestamp == nil {
		pod.DeletionTimestamp, pod.DeletionGracePeriodSeconds = old.DeletionTimestamp, old.DeletionGracePeriodSeconds
	}
	if model.Terminal(old) && !model.Terminal(pod) {
		pod.Status.Phase = old.Status.Phase
	}
	pod.Status.NominatedNodeName = old.Status.NominatedNodeName
	if model.Terminating(pod) || model.Terminal(pod) {
		pod.Status.NominatedNodeName = ""
	}
	pod.ResourceVersion = old.ResourceVersion
}

// outgrows says why a pod on a node cannot ask for what it asks for now: the
// node has no room for it; "" if it can.
func (v *live) outgrows(old, pod *corev1.Pod) string {
	if usage.NodeOf(pod) == "" || sameSpec(&old.Spec, &pod.Spec) {
		return ""
	}
	node, ok := v.Nodes.Get(pod.Spec.NodeName)
	was, is := v.usage.ClassOf(old), v.compile(pod)
	switch {
	case is.Request.Equal(was.Request) && slices.Equal(is.Ports, was.Ports):
		return ""
	case !ok:
		return "node " + pod.Spec.NodeName + " is gone, so nobody can say whether it has room for what the pod asks for now"
	}
	u := v.Usage(node.Name).Without(was)
	return explain(node.Name, model.CheckUsage(is, *v.usage.Offer(node.Name), &u))
}

// followPod does to queue and nominations what a change of the pod means.
func (tx *Tx) followPod(key string, old, pod *corev1.Pod) {
	if model.Terminal(pod) && !model.Terminal(old) {
		tx.leftNode(pod)
	}
	if pod.DeletionTimestamp != nil || model.Terminal(pod) {
		tx.stopScheduling(key, pod)
	} else {
		tx.requeue(key, old, pod)
	}
}

// requeue follows a change of what a waiting pod asks for: it is tried at once,
// unless that cannot help it.
func (tx *Tx) requeue(key string, old, pod *corev1.Pod) {
	e, ok := tx.view.Queue.Get(key)
	if !ok {
		return
	}
	class := tx.view.compile(pod)
	if class.Signature == e.Class().Signature {
		return
	}
	next := *e
	next.SetClass(class)
	next.Priority = model.Priority(pod)
	switch {
	case model.Gated(pod):
		next.State = berthv1.QueueGated
	case model.Gated(old): // its turn counts from here (QU4)
		next.State = berthv1.QueueActive
		next.EnqueuedRevision, next.EnqueuedUnixNano = tx.view.Revision()+1, tx.view.TimeUnixNano()
	case !tx.view.mayHelp(e, class):
	case e.Waits():
		next.State, next.BackoffUntilUnixNano = berthv1.QueueActive, 0
	}
	put(tx, tx.view.Queue, key, &next)
	if n, ok := tx.view.Nominations.Get(key); ok {
		held := *n
		held.SetClass(class)
		put(tx, tx.view.Nominations, key, &held)
	}
}

// mayHelp says whether a waiting pod can find a place because it is of another
// class now. Labels alone help only who is judged by rules between pods.
func (v *View) mayHelp(e *QueueEntry, class *model.Class) bool {
	return class.Shape != e.Class().Shape || e.KeptAway || e.ByDefaults || class.HasHardTopology() || v.hardDefaults()
}
