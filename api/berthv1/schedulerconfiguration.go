package berthv1

import (
	corev1 "k8s.io/api/core/v1"
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
	// Profiles are the scheduler names whose pods are placed, each with its own
	// scoring. A pod that names another scheduler is stored and left to it.
	// Default: one, default-scheduler, with kube-scheduler's weights.
	// +optional
	// +listType=map
	// +listMapKey=schedulerName
	Profiles []SchedulerProfile `json:"profiles,omitempty"`
	// PodTopologySpread says how pods are spread that do not say it
	// themselves.
	// +optional
	PodTopologySpread PodTopologySpreadConfiguration `json:"podTopologySpread,omitempty"`
	// HardPodAffinityWeight is the weight, 0 to 100, that the required affinity
	// of the pods on a node has for the score of one that it matches. Default 1.
	// +optional
	HardPodAffinityWeight *int32 `json:"hardPodAffinityWeight,omitempty"`
	// Aging raises pods in the order of the queue with the time they wait.
	// +optional
	Aging AgingConfiguration `json:"aging,omitempty"`
	// Reservation keeps room for a pod that has been waiting for long.
	// +optional
	Reservation ReservationConfiguration `json:"reservation,omitempty"`
}

// PreemptionConfiguration switches preemption, and bounds it.
type PreemptionConfiguration struct {
	// Enabled false: no pod is evicted for another, and pods may not name a
	// priority class (PC11). Default true.
	// +optional
	Enabled *bool `json:"enabled,omitempty"`
	// Budgets is "BestEffort" (default): disruption budgets are violated only
	// where nothing else helps (PD13); or "Strict": never.
	// +optional
	Budgets BudgetPolicy `json:"budgets,omitempty"`
	// SystemClassBudgets is what Budgets: Strict is worth to a pod of a system
	// class: "BestEffort" (default): no budget that somebody writes keeps the
	// system's own pods out; or "Strict": it holds for them too.
	// +optional
	SystemClassBudgets BudgetPolicy `json:"systemClassBudgets,omitempty"`
	// MaxOtherNodes is on how many other nodes than the pod's own victims may
	// be, when a rule between pods keeps it out; 0: none. Default 3.
	// +optional
	MaxOtherNodes *int32 `json:"maxOtherNodes,omitempty"`
	// SearchLimit is how many steps the search for the least set of victims on
	// one node may take; then the best one found is used. 0: no search, victims
	// are chosen as kube-scheduler does. Default 1000.
	// +optional
	SearchLimit *int32 `json:"searchLimit,omitempty"`
}

// BudgetPolicy is what a disruption budget is worth to a preemption.
type BudgetPolicy string

const (
	// BudgetsBestEffort: a node is taken where no budget is violated if there
	// is one (PD13).
	BudgetsBestEffort BudgetPolicy = "BestEffort"
	// BudgetsStrict: a preemption that violates a budget does not happen.
	BudgetsStrict BudgetPolicy = "Strict"
)

// SchedulerProfile is a way of scoring, for the pods that name it.
type SchedulerProfile struct {
	// SchedulerName is what pods name in spec.schedulerName.
	SchedulerName string `json:"schedulerName"`
	// +optional
	Plugins ProfilePlugins `json:"plugins,omitempty"`
	// PluginConfig are arguments of plugins.
	// +optional
	// +listType=map
	// +listMapKey=name
	PluginConfig []PluginConfig `json:"pluginConfig,omitempty"`
}

// ProfilePlugins says what counts when nodes are compared. What a pod requires
// holds in every profile: room, selectors, taints, required affinity, hard
// spread.
type ProfilePlugins struct {
	// Disabled plugins do not score.
	// +optional
	// +listType=set
	Disabled []string `json:"disabled,omitempty"`
	// Weights are of the plugins that shall not have their default weight, 0
	// to 1000.
	// +optional
	Weights map[string]int32 `json:"weights,omitempty"`
}

// SpreadDefaulting says where the spread constraints come from of pods that have
// none and belong to a service or a controller (TS12).
type SpreadDefaulting string

const (
	// SpreadSystem: hosts by 3, zones by 5, both only preferred (TS13).
	SpreadSystem SpreadDefaulting = "System"
	// SpreadList: the constraints of the configuration (TS14).
	SpreadList SpreadDefaulting = "List"
)

// PodTopologySpreadConfiguration holds the cluster's default constraints.
type PodTopologySpreadConfiguration struct {
	// DefaultingType is "System" (default) or "List". A list that is empty
	// means no default constraints.
	// +optional
	DefaultingType SpreadDefaulting `json:"defaultingType,omitempty"`
	// DefaultConstraints have no label selector: it is the one of the services
	// and of the controller that a pod belongs to (TS12).
	// +optional
	// +listType=atomic
	DefaultConstraints []corev1.TopologySpreadConstraint `json:"defaultConstraints,omitempty"`
}

// AgingConfiguration: a waiting pod is tried as if its priority were higher by
// one for every so many seconds. It changes the order of the queue and nothing
// else: neither whom the pod may evict nor who may evict it.
type AgingConfiguration struct {
	// SecondsPerPoint 0 switches aging off. Default 0.
	// +optional
	SecondsPerPoint *int32 `json:"secondsPerPoint,omitempty"`
}

// ReservationConfiguration: the room that becomes free on one node is kept for
// the first waiting pod, if it has been waiting for long for want of room, so
// that smaller ones do not take it away for ever.
type ReservationConfiguration struct {
	// Enabled is true by default.
	// +optional
	Enabled *bool `json:"enabled,omitempty"`
	// AfterSeconds is how long a pod waits before room is kept for it.
	// Default 300.
	// +optional
	AfterSeconds *int32 `json:"afterSeconds,omitempty"`
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
