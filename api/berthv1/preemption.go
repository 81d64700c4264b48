package berthv1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// PreemptionState says how far a preemption has come.
type PreemptionState string

const (
	// PreemptionTerminating: victims are still ending; the node is held for the
	// preemptor.
	PreemptionTerminating PreemptionState = "Terminating"
	// PreemptionBound: the preemptor got its place.
	PreemptionBound PreemptionState = "Bound"
	// PreemptionReleased: the nomination ended without a binding to its node;
	// ReleasedReason says why.
	PreemptionReleased PreemptionState = "Released"
)

// Preemption is the record of one decision of the scheduler to evict pods for a
// pod of higher priority: who, for whom, where, and at which revision. It lives
// in the preemptor's namespace.
//
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object
type Preemption struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +optional
	Status PreemptionStatus `json:"status,omitempty"`
}

// PreemptionStatus is the decision and what became of it.
type PreemptionStatus struct {
	// Preemptor is the pod that the place is for.
	Preemptor PodReference `json:"preemptor"`
	// Node is the node that the preemptor is nominated to.
	Node string `json:"node"`
	// Victims are the evicted pods, and those that were ending already and are
	// waited for, in the order in which they were chosen.
	// +optional
	// +listType=atomic
	Victims []Victim `json:"victims,omitempty"`
	// Revision is the state's revision when the decision was applied.
	// +optional
	Revision int64 `json:"revision,omitempty"`
	// RaftIndex is the log index of the entry that carried the decision.
	// +optional
	RaftIndex int64 `json:"raftIndex,omitempty"`
	// DecidedAtRevision is the revision that the scheduler looked at; the
	// decision was checked again at Revision before anything was done.
	// +optional
	DecidedAtRevision int64 `json:"decidedAtRevision,omitempty"`
	// Time is when the decision was applied.
	// +optional
	Time metav1.MicroTime `json:"time,omitempty"`
	// State is Terminating, Bound or Released.
	// +optional
	State PreemptionState `json:"state,omitempty"`
	// ReleasedReason says why a nomination ended without a binding.
	// +optional
	ReleasedReason string `json:"releasedReason,omitempty"`
	// Deadline is when the nomination ends if the victims are not gone by then.
	// +optional
	Deadline *metav1.MicroTime `json:"deadline,omitempty"`
	// Minimal is true if it was proven that no other choice of victims, on any
	// node, costs less: fewer budgets violated, then a lower highest priority,
	// then fewer victims, then a later start. It is false if the search for the
	// proof reached its limit.
	// +optional
	Minimal *bool `json:"minimal,omitempty"`
	// SearchLimit is the limit of the search, where Minimal is false.
	// +optional
	SearchLimit int32 `json:"searchLimit,omitempty"`
	// Alternatives sums up what else was considered.
	// +optional
	Alternatives *PreemptionAlternatives `json:"alternatives,omitempty"`
}

// PodReference names a pod and the priority that counted.
type PodReference struct {
	// +optional
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
	// +optional
	UID types.UID `json:"uid,omitempty"`
	// +optional
	Priority int32 `json:"priority,omitempty"`
}

// Victim is a pod that gives way.
type Victim struct {
	// +optional
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
	// +optional
	UID types.UID `json:"uid,omitempty"`
	// +optional
	Priority int32 `json:"priority,omitempty"`
	// Node is where the victim runs; it can differ from the preemptor's node.
	// +optional
	Node string `json:"node,omitempty"`
	// ViolatesBudget is true if a disruption budget did not allow this eviction
	// and the priority overrode it (PR8).
	// +optional
	ViolatesBudget bool `json:"violatesBudget,omitempty"`
	// WaitedFor is true if the pod was ending already when the decision was
	// applied: somebody had deleted or evicted it before, and its end has another
	// cause.
	// +optional
	WaitedFor bool `json:"waitedFor,omitempty"`
	// EvictedAt is when the victim was told to end, by whomever.
	// +optional
	EvictedAt *metav1.MicroTime `json:"evictedAt,omitempty"`
	// GoneAt is when its place was free.
	// +optional
	GoneAt *metav1.MicroTime `json:"goneAt,omitempty"`
}

// PreemptionAlternatives sums up the search behind a decision.
type PreemptionAlternatives struct {
	// NodesConsidered is how many nodes were looked at.
	NodesConsidered int32 `json:"nodesConsidered"`
	// Candidates is how many of them preemption could have freed.
	Candidates int32 `json:"candidates"`
	// RunnerUp is the node that would have been taken next.
	// +optional
	RunnerUp string `json:"runnerUp,omitempty"`
	// DecidedBy is the criterion that set the chosen node apart from the runner-up
	// (PR10), for example "lowest highest victim priority".
	// +optional
	DecidedBy string `json:"decidedBy,omitempty"`
}

// PreemptionList is a list of preemptions.
//
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object
type PreemptionList struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []Preemption `json:"items"`
}
