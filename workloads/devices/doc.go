// Package devices gives devices to the claims of pods that wait for a node: on the leader, one pod after the other, in the
// order of the queue. Which devices a node could give is Kubernetes' allocator's to say (k8s.io/dynamic-resource-allocation); on
// which node the pod has room otherwise, or would have it by preemption, is the scheduler's (sched.ExplainOn). The claims are
// written as by any client of the API. From then on the state machine goes by them (fsm/devices.go): it binds the pod where its
// devices are, and lets no two claims have one device.
//
// What was given to a pod that does not get there after all is taken from it again, so that no pod keeps devices that it cannot
// use: when it could not be placed even by preemption, when its devices do not get ready, and when it has waited for long.
package devices
