package berthv1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// QueueState says why a pod in the scheduling queue is not being tried just now.
type QueueState string

const (
	// QueueActive: the pod is tried as soon as those before it were.
	QueueActive QueueState = "Active"
	// QueueBackoff: the pod is tried again after BackoffUntil (QU5).
	QueueBackoff QueueState = "Backoff"
	// QueueUnschedulable: the pod is tried again when something changes that
	// could help it (QU8).
	QueueUnschedulable QueueState = "Unschedulable"
	// QueueNominated: the pod waits for its victims to end on the node that it is
	// nominated to (NM1).
	QueueNominated QueueState = "Nominated"
	// QueueGated: the pod has scheduling gates and is not tried at all (QU4).
	QueueGated QueueState = "Gated"
	// QueueSetAside: deciding about the pod went wrong in the scheduler itself. It
	// is tried again after BackoffUntil, and nothing wakes it before.
	QueueSetAside QueueState = "SetAside"
)

// QueueEntry shows one pod of the scheduling queue. It is part of the replicated
// state, so every server shows the same, and so does the next leader.
// Its name and namespace are the pod's.
//
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object
type QueueEntry struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +optional
	Status QueueEntryStatus `json:"status,omitempty"`
}

// QueueEntryStatus is what the state machine knows of a waiting pod.
type QueueEntryStatus struct {
	// PodUID tells this pod from an earlier one of the same name.
	PodUID types.UID `json:"podUID"`
	// Priority orders the queue, highest first (QU2).
	Priority int32 `json:"priority"`
	// State is Active, Backoff, Unschedulable, Nominated, Gated or SetAside.
	State QueueState `json:"state"`
	// Position is the pod's place among the active pods, counted from 1 and
	// computed when the entry is read. It is absent for a pod that is not active.
	// +optional
	Position int32 `json:"position,omitempty"`
	// SortKey sorts entries, as text, in the order in which the queue tries pods,
	// whatever that order goes by (priority, first come, or age). It is computed
	// when the entry is read.
	// +optional
	SortKey string `json:"sortKey,omitempty"`
	// Attempts counts the scheduling attempts that found no place.
	// +optional
	Attempts int32 `json:"attempts,omitempty"`
	// Errors counts the consecutive attempts that ended in an error.
	// +optional
	Errors int32 `json:"errors,omitempty"`
	// Refusals counts the decisions about the pod, one after another, that the
	// state machine refused to carry out; from the second on each costs a backoff.
	// +optional
	Refusals int32 `json:"refusals,omitempty"`
	// Refusal is why the last of them was refused.
	// +optional
	Refusal string `json:"refusal,omitempty"`
	// SetAside is how often in a row the pod was set aside.
	// +optional
	SetAside int32 `json:"setAside,omitempty"`
	// SetAsideReason says in a word what went wrong the last time, and
	// SetAsideMessage in a sentence.
	// +optional
	SetAsideReason string `json:"setAsideReason,omitempty"`
	// +optional
	SetAsideMessage string `json:"setAsideMessage,omitempty"`
	// FirstEnqueuedRevision breaks ties between equal priorities: the pod that
	// came first stays first, whatever happens to it in between.
	// +optional
	FirstEnqueuedRevision int64 `json:"firstEnqueuedRevision,omitempty"`
	// LastAttemptRevision is the revision at which the last attempt was recorded.
	// +optional
	LastAttemptRevision int64 `json:"lastAttemptRevision,omitempty"`
	// BackoffUntil is when a pod in state Backoff or SetAside is tried again.
	// +optional
	BackoffUntil *metav1.MicroTime `json:"backoffUntil,omitempty"`
	// BlockedSince is when the pod was first found unschedulable, with no
	// success since.
	// +optional
	BlockedSince *metav1.MicroTime `json:"blockedSince,omitempty"`
	// Reasons counts the nodes that refused the pod, by reason. A node that
	// refuses for several reasons counts under each.
	// +optional
	// +listType=atomic
	Reasons []ReasonCount `json:"reasons,omitempty"`
	// Message says the same in Kubernetes' words, as in the pod's PodScheduled
	// condition.
	// +optional
	Message string `json:"message,omitempty"`
	// NominatedNode is the node that is being cleared for this pod, or on which
	// room is kept for it.
	// +optional
	NominatedNode string `json:"nominatedNode,omitempty"`
	// Reserved: nobody is evicted for the pod. What comes free on NominatedNode
	// is kept for it, because it has been waiting for long.
	// +optional
	Reserved bool `json:"reserved,omitempty"`
}

// ReasonCount says how many nodes refused a pod for one reason.
type ReasonCount struct {
	// Reason is kube-scheduler's text, for example "Insufficient cpu".
	Reason string `json:"reason"`
	// Nodes is how many nodes gave it.
	Nodes int32 `json:"nodes"`
	// Detail says more where there is more to say, for example "short 500m".
	// +optional
	Detail string `json:"detail,omitempty"`
	// NodeNames names the nodes, where the answer is made for one reader and not
	// stored.
	// +optional
	// +listType=atomic
	NodeNames []string `json:"nodeNames,omitempty"`
}

// QueueEntryList is a list of queue entries.
//
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object
type QueueEntryList struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []QueueEntry `json:"items"`
}
