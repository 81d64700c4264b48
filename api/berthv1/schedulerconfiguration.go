package berthv1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// SchedulerConfigurationName is the name of the only SchedulerConfiguration.
const SchedulerConfigurationName = "cluster"

// QueueOrder is the order in which waiting pods are tried.
type QueueOrder string

const (
	// QueueByPriority: highest priority first, then first come (QU2).
	QueueByPriority QueueOrder = "priority"
	// QueueFIFO: first come, whatever the priority (QU1).
	QueueFIFO QueueOrder = "fifo"
)

// SchedulerConfiguration is the replicated configuration of scheduling. Every
// server obeys the same one from the same log index on.
//
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object
type SchedulerConfiguration struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +optional
	Spec SchedulerConfigurationSpec `json:"spec,omitempty"`
}

// SchedulerConfigurationSpec: every field that is absent has its default, which
// SetDefaults fills in.
type SchedulerConfigurationSpec struct {
	// +optional
	Preemption PreemptionConfiguration `json:"preemption,omitempty"`
	// Queue is "priority" (default) or "fifo".
	// +optional
	Queue QueueOrder `json:"queue,omitempty"`
	// PodInitialBackoffSeconds is the wait after a pod's first failed attempt;
	// it doubles with each further one (QU5). Default 1.
	// +optional
	PodInitialBackoffSeconds *int32 `json:"podInitialBackoffSeconds,omitempty"`
	// PodMaxBackoffSeconds is the longest such wait; 0 switches waiting off.
	// Default 10.
	// +optional
	PodMaxBackoffSeconds *int32 `json:"podMaxBackoffSeconds,omitempty"`
	// NominationSlackSeconds is how much longer than the victims' longest grace
	// period a nomination lasts. Default 10.
	// +optional
	NominationSlackSeconds *int32 `json:"nominationSlackSeconds,omitempty"`
	// SystemClasses names who may use the classes system-cluster-critical and
	// system-node-critical (AD5). Default: the group system:masters.
	// +optional
	SystemClasses *SystemClasses `json:"systemClasses,omitempty"`
	// NodeGraceSeconds is how long a silent node counts as ready. Default 50.
	// +optional
	NodeGraceSeconds *int32 `json:"nodeGraceSeconds,omitempty"`
	// EventLimit is how many events are kept, the oldest going first; 0 keeps
	// none. Default 20000.
	// +optional
	EventLimit *int32 `json:"eventLimit,omitempty"`
}

// PreemptionConfiguration switches preemption.
type PreemptionConfiguration struct {
	// Enabled false: no pod is evicted for another, and pods may not name a
	// priority class (PC11). Default true.
	// +optional
	Enabled *bool `json:"enabled,omitempty"`
}

// SystemClasses is an allow-list; a request passes if its user or one of its
// groups is named.
type SystemClasses struct {
	// +optional
	// +listType=set
	Users []string `json:"users,omitempty"`
	// +optional
	// +listType=set
	Groups []string `json:"groups,omitempty"`
}

// SchedulerConfigurationList is a list of at most one object.
//
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object
type SchedulerConfigurationList struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []SchedulerConfiguration `json:"items"`
}
