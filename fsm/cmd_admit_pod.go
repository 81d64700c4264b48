package fsm

// AdmitPod stores a new pod, finished but for what its classes say: its
// priority (AD1), and the overhead and the nodes of its runtime. It is put into
// the queue; a pod that names its node comes bound.
//
// Refuses: 404 or 403 for a namespace that is missing or on its way out; 409
// if the name is taken; 403 for an unknown service account, class (AD2) or RuntimeClass, an
// overhead or a node selector that is not the RuntimeClass's, a priority or policy
// of its own (AD3), a system class without permission (AD5), any class when priority
// is switched off (PC11), a quota that does not allow
// it (PC15), or a node that counts as many pods as it can.
type AdmitPod struct {
	Pod PodWire `msgpack:"pod"`
}

// Apply implements Command.
func (c *AdmitPod) Apply(tx *Tx) Result {
	pod := c.Pod.Object
	if pod == nil || pod.Name == "" {
		return refuseBadRequest("AdmitPod without a pod that has a name")
	}
	if r, ok := tx.view.checkNamespace(pod.Namespace, podResource, pod.Name); !ok {
		return r
	}
	key := PodKey(pod.Namespace, pod.Name)
	if _, taken := tx.view.Pods.Get(key); taken {
		return refuseExists(podResource.groupResource(), pod.Name)
	}
	if r, ok := tx.view.checkNamedNode(pod, 1); !ok {
		return r
	}
	if r, ok := tx.resolveClasses(&c.Pod, nil); !ok {
		return r
	}
	if r, ok := tx.view.checkPodQuotas(pod, nil); !ok {
		return r
	}
	tx.storeNewPod(key, pod, tx.finishNewPod(&c.Pod))
	return Result{Table: tx.view.Pods.Name(), Object: pod}
}
