// Package workloads runs Kubernetes' own controllers of workloads beside the state:
// Deployments, StatefulSets, DaemonSets, Jobs, CronJobs, ReplicationControllers and
// what tells of services' pods.
//
// They see the state and no copy of it: their informers are views, and their events the
// change feed. They write through the API, like any client, and only as long as their
// context lasts. The objects that they are given are the state's own rows. They must
// never be changed; a controller that did would make this server differ from the others.
//
// ReplicaSets, garbage, namespaces, nodes, taints and disruption budgets are kept by
// package controller.
package workloads
