package fsm

import corev1 "k8s.io/api/core/v1"

// DeletePod ends a pod. One that nobody runs, or that has ended, goes at once
// (TM1); another gets its deletion time and goes when its worker confirms
// (TM4), or at once with a grace period of 0 (TM6).
//
// Refuses: 404 if there is none; 409 if a precondition fails.
type DeletePod struct {
	Key          string       `msgpack:"key"`
	Precondition Precondition `msgpack:"precondition"`
	// GraceSeconds overrides the pod's own grace period.
	GraceSeconds *int64 `msgpack:"grace_seconds"`
	// DisruptionReason and DisruptionMessage, when given, become the pod's
	// DisruptionTarget condition: it ends through no doing of its own.
	DisruptionReason  string `msgpack:"disruption_reason,omitempty"`
	DisruptionMessage string `msgpack:"disruption_message,omitempty"`
	// Fail makes a pod that has not ended Failed before it goes (GC2): its node
	// is no more, and nobody will say how its containers ended.
	Fail bool `msgpack:"fail,omitempty"`
	// Propagation says what becomes of the objects that the pod owns.
	Propagation Propagation `msgpack:"propagation,omitempty"`
}

// Apply implements Command.
func (c *DeletePod) Apply(tx *Tx) Result {
	old, ok := tx.view.Pods.Get(c.Key)
	if !ok {
		return refuseNotFound(podResource.groupResource(), nameOfKey(c.Key))
	}
	if r, ok := c.Precondition.check(old, podResource); !ok {
		return r
	}
	old = propagate(old, c.Propagation)
	var pod *corev1.Pod
	var gone bool
	if c.DisruptionReason != "" {
		pod, gone = tx.disrupt(c.Key, old, disruptor{
			reason: c.DisruptionReason, message: c.DisruptionMessage, graceSeconds: c.GraceSeconds, fail: c.Fail})
	} else { // PD5: nobody is asked
		if c.Fail {
			old = tx.failPod(c.Key, old, nil)
		}
		pod, gone = tx.deletePod(c.Key, old, c.GraceSeconds, nil)
	}
	return Result{Table: tx.view.Pods.Name(), Object: pod, Deleted: gone}
}
