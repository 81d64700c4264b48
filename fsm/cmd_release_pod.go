package fsm

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// SinceRelease is the LogVersion from which on ReleasePod is known.
const SinceRelease = 22

// ReleasePod takes finalizers off a pod, and nothing else: one that is at its end goes with the last of them. Those that it does not have
// are none the less gone. It is what a controller says that has counted a pod; a Job's pods all end with it, so it carries no pod.
//
// Refuses: 404 if there is none; 409 if a precondition fails.
type ReleasePod struct {
	Key          string       `msgpack:"key"`
	Precondition Precondition `msgpack:"precondition"`
	Finalizers   []string     `msgpack:"finalizers"`
}

// Apply implements Command.
func (c *ReleasePod) Apply(tx *Tx) Result {
	old, ok := tx.view.Pods.Get(c.Key)
	if !ok {
		return refuseNotFound(podResource.groupResource(), nameOfKey(c.Key))
	}
	if r, ok := c.Precondition.check(old, podResource); !ok {
		return r
	}
	taken := func(finalizer string) bool { return slices.Contains(c.Finalizers, finalizer) }
	if !slices.ContainsFunc(old.Finalizers, taken) {
		return Result{Table: tx.view.Pods.Name(), Object: old}
	}
	pod := new(corev1.Pod)
	*pod = *old
	pod.Finalizers = nil
	for _, f := range old.Finalizers {
		if !taken(f) {
			pod.Finalizers = append(pod.Finalizers, f)
		}
	}
	if podLetGo(pod) {
		tx.removePod(c.Key, old)
		return Result{Table: tx.view.Pods.Name(), Object: old, Deleted: true}
	}
	put(tx, tx.view.Pods, c.Key, pod)
	return Result{Table: tx.view.Pods.Name(), Object: pod}
}
