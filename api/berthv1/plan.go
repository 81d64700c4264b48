package berthv1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// Plan asks where pods would go and whom they would evict. It is answered in the
// response to its creation, on a copy of the state; nothing is stored or changed.
//
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object
type Plan struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec PlanSpec `json:"spec"`
	// +optional
	Status PlanStatus `json:"status,omitempty"`
}

// PlanSpec is the question.
type PlanSpec struct {
	// Pods are admitted and placed in this order of submission; the queue's
	// order among them is by priority, as in the cluster.
	// +optional
	// +listType=atomic
	Pods []corev1.Pod `json:"pods,omitempty"`
	// Objects are created on the copy before the pods: PriorityClasses,
	// PodDisruptionBudgets and ReplicaSets, whose pods are planned after those in
	// Pods.
	// +optional
	// +listType=atomic
	Objects []runtime.RawExtension `json:"objects,omitempty"`
	// Scale asks what it would mean if a workload wanted another number of pods.
	// +optional
	Scale *PlanScale `json:"scale,omitempty"`
}

// PlanScale names a workload and the number of pods that it is to have.
type PlanScale struct {
	// Resource is the workload's kind: replicasets.
	Resource  string `json:"resource"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	Replicas  int32  `json:"replicas"`
}

// PlanStatus is the answer.
type PlanStatus struct {
	// Revision is the state's revision that the answer holds for.
	// +optional
	Revision int64 `json:"revision,omitempty"`
	// Placements answers for each pod, in the order of the question.
	// +optional
	// +listType=atomic
	Placements []PlanPlacement `json:"placements,omitempty"`
	// Removals are the pods that workloads would delete because they are to have
	// fewer, in the order in which they would go. Of pods that the asker may not
	// read they tell the rule alone.
	// +optional
	// +listType=atomic
	Removals []PlanRemoval `json:"removals,omitempty"`
	// Budgets are the disruption budgets that the evictions would touch. Of one
	// that the asker may not read there is an entry without a name or numbers.
	// +optional
	// +listType=atomic
	Budgets []PlanBudget `json:"budgets,omitempty"`
	// Replacements say what would become of the pods that the victims'
	// controllers would make in their place.
	// +optional
	// +listType=atomic
	Replacements []PlanReplacement `json:"replacements,omitempty"`
	// CascadeDepth is how many rounds of evictions it would come to: 0 if nobody
	// is evicted, 1 if every replacement finds a free place or none, 2 if
	// replacements would evict others in their turn, and so on.
	// +optional
	CascadeDepth int32 `json:"cascadeDepth,omitempty"`
	// CascadeCut is true if it was not followed to its end.
	// +optional
	CascadeCut bool `json:"cascadeCut,omitempty"`
}

// PlanRemoval is a pod that a workload would delete.
type PlanRemoval struct {
	Pod PodReference `json:"pod"`
	// +optional
	Node string `json:"node,omitempty"`
	// Rule puts the pod before the first that stays; if none stays, before the
	// next that goes.
	// +optional
	Rule string `json:"rule,omitempty"`
	// Reason says the rule in words, Detail what it saw.
	// +optional
	Reason string `json:"reason,omitempty"`
	// +optional
	Detail string `json:"detail,omitempty"`
}

// PlanBudget is what would become of one disruption budget.
type PlanBudget struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// AllowedBefore and AllowedAfter are the disruptions that it allows.
	AllowedBefore int32 `json:"allowedBefore"`
	AllowedAfter  int32 `json:"allowedAfter"`
	// DesiredHealthy is what it asks for, HealthyAfter what would be left.
	DesiredHealthy int32 `json:"desiredHealthy"`
	HealthyAfter   int32 `json:"healthyAfter"`
}

// PlanReplacement is what would become of a victim's successor.
type PlanReplacement struct {
	// Of is the victim.
	Of PodReference `json:"of"`
	// Round counts the evictions: 1 for the victims of the planned pods.
	Round int32 `json:"round"`
	// Node, NominatedNode, Victims and Message are as in PlanPlacement.
	// +optional
	Node string `json:"node,omitempty"`
	// +optional
	NominatedNode string `json:"nominatedNode,omitempty"`
	// +optional
	// +listType=atomic
	Victims []Victim `json:"victims,omitempty"`
	// +optional
	Message string `json:"message,omitempty"`
}

// PlanPlacement says what would become of one pod.
type PlanPlacement struct {
	Pod PodReference `json:"pod"`
	// Node is where the pod would be bound at once; empty if nowhere.
	// +optional
	Node string `json:"node,omitempty"`
	// NominatedNode is where the pod would be bound after its victims ended.
	// +optional
	NominatedNode string `json:"nominatedNode,omitempty"`
	// Victims would be evicted for it, or are ending already and would be waited for.
	// +optional
	// +listType=atomic
	Victims []Victim `json:"victims,omitempty"`
	// Message says why the pod has no place, or why it would not be admitted.
	// +optional
	Message string `json:"message,omitempty"`
	// Reasons counts the refusing nodes by reason.
	// +optional
	// +listType=atomic
	Reasons []ReasonCount `json:"reasons,omitempty"`
}
