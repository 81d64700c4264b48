package berthv1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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
	// +listType=atomic
	Pods []corev1.Pod `json:"pods"`
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
	// Victims would be evicted for it.
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
