// Package berthv1 holds the types of the API group berth.dev/v1: what Berth
// serves beyond Kubernetes' own resources.
//
//   - queueentries and preemptions show what the replicated state holds about a
//     waiting pod and about an eviction decided by the scheduler; they are made
//     by the state machine and read-only for users;
//   - plans are questions, answered on a copy of the state and never stored;
//   - schedulerconfigurations has one object, "cluster", the replicated settings.
//
// The package must never hold behaviour beyond defaults and validation of its
// own fields, and must never import anything of Berth.
//
// +k8s:deepcopy-gen=package
// +k8s:openapi-gen=true
// +k8s:openapi-model-package=dev.berth.v1
// +groupName=berth.dev
package berthv1

//go:generate ./generate.sh
