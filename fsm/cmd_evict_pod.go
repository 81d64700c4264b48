package fsm

import "github.com/berth-dev/berth/model"

// EvictPod is the eviction API's way to end a pod (PD6, PD7): if all of its
// disruption budgets allow it, it marks the pod as disrupted and deletes it
// with grace. A pod that has not started, has ended or is ending already is
// deleted without further ado (PD8).
//
// Refuses: 404 if there is none; 409 if a precondition fails; 429 with a cause
// for each budget that does not allow it.
type EvictPod struct {
	Key          string       `msgpack:"key"`
	Precondition Precondition `msgpack:"precondition"`
	GraceSeconds *int64       `msgpack:"grace_seconds"`
}

// Apply implements Command.
func (c *EvictPod) Apply(tx *Tx) Result {
	old, ok := tx.view.Pods.Get(c.Key)
	if !ok {
		return refuseNotFound(podResource.groupResource(), nameOfKey(c.Key))
	}
	if r, ok := c.Precondition.check(old, podResource); !ok {
		return r
	}
	if model.Terminating(old) { // why it ends is known already
		pod, gone := tx.deletePod(c.Key, old, c.GraceSeconds, nil)
		return Result{Table: tx.view.Pods.Name(), Object: pod, Deleted: gone}
	}
	account := tx.newAccount()
	if forbidding := account.Take(old).Forbidding; len(forbidding) > 0 {
		return tx.view.refuseEviction(forbidding)
	}
	pod, gone := tx.disrupt(c.Key, old, disruptor{
		reason: "EvictionByEvictionAPI", message: "Eviction API: evicting", graceSeconds: c.GraceSeconds})
	return Result{Table: tx.view.Pods.Name(), Object: pod, Deleted: gone}
}
