// Package ledger holds the JSON messages of what is asked about decisions: why
// a pod is where it is, or has no place, now or at an earlier revision. Server
// and command line share it. A refusal has a metav1.Status as its body, as the
// Kubernetes API has.
//
// It must never hold behaviour.
package ledger

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/api/berthv1"
)

// PathWhy answers GET with an Answer about one pod.
const PathWhy = "/berth/v1/why"

// The parameters of PathWhy.
const (
	// ParamNamespace and ParamPod name the pod; ParamPod may be its UID.
	ParamNamespace = "namespace"
	ParamPod       = "pod"
	// ParamUID chooses one of those that had the name; absent: the one that is
	// there, or else the last.
	ParamUID = "uid"
	// ParamAt is the revision whose decision is asked for; absent: now.
	ParamAt = "at"
	// ParamNodes, if "true", asks for every node's own verdict.
	ParamNodes = "nodes"
)

// Answer is what is known of the decisions about a pod.
//
// A pod of a namespace that the asker may not read is shown by its UID alone
// (PR20), without its priority.
type Answer struct {
	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`
	UID       types.UID `json:"uid,omitempty"`
	// Others are other pods that had the name, as far as something is known of
	// them, the last first.
	Others []Namesake `json:"others,omitempty"`
	// Revision is the state's revision that the answer is read from.
	Revision int64 `json:"revision"`
	// At is the revision that was asked about, if one was.
	At int64 `json:"at,omitempty"`
	// ReachesBackTo is the revision from which on the ledger tells of every
	// decision; 0 if nothing was ever forgotten.
	ReachesBackTo int64 `json:"reachesBackTo,omitempty"`
	// Decisions about the pod, newest first. With At only the one that counted
	// then: the newest up to it.
	Decisions []Decision `json:"decisions,omitempty"`
	// For are the preemptions that made room for the pod, Against those that
	// evicted it, and AwaitedBy those that waited for it: it was ending already, of
	// another cause. Oldest first.
	For       []berthv1.Preemption `json:"for,omitempty"`
	Against   []berthv1.Preemption `json:"against,omitempty"`
	AwaitedBy []berthv1.Preemption `json:"awaitedBy,omitempty"`
	// Now is what the nodes say to the pod as things are.
	Now *Nodes `json:"now,omitempty"`
}

// Namesake is another pod of the same name.
type Namesake struct {
	UID types.UID `json:"uid"`
	// Revision is that of the last decision which is known about it.
	Revision int64 `json:"revision"`
}

// Decision is one decision about a pod, and what became of it.
type Decision struct {
	// Kind is Bound, Nominated, Unschedulable or Reserved: what comes free on a
	// node is kept for the pod.
	Kind string    `json:"kind"`
	UID  types.UID `json:"uid"`
	// Refused says why the decision was not carried out: the state had moved
	// on since it was made.
	Refused string `json:"refused,omitempty"`
	// Revision is the state's when the decision had been applied, RaftIndex and
	// Term are those of its log entry, DecidedAtRevision is what the scheduler
	// looked at.
	Revision          int64            `json:"revision"`
	RaftIndex         uint64           `json:"raftIndex"`
	Term              uint64           `json:"term"`
	DecidedAtRevision int64            `json:"decidedAtRevision"`
	Time              metav1.MicroTime `json:"time"`
	Node              string           `json:"node,omitempty"`
	// Feasible is how many nodes could have taken the pod, Score what the
	// chosen one got, RunnerUp the node that came next in the same order; absent
	// where no other fit, and for a pod that took the node that was kept for it,
	// which is compared with no other.
	Feasible int32  `json:"feasible,omitempty"`
	Score    int64  `json:"score,omitempty"`
	RunnerUp string `json:"runnerUp,omitempty"`
	// Preemption names the record, in the pod's namespace, of the preemption.
	Preemption string `json:"preemption,omitempty"`
	// Nodes were looked at in vain, for Reasons; Message is Kubernetes' wording.
	// Of a reservation it is what the pod had been waiting for.
	Nodes   int32                 `json:"nodes,omitempty"`
	Reasons []berthv1.ReasonCount `json:"reasons,omitempty"`
	Message string                `json:"message,omitempty"`
}

// Nodes is what the nodes say to a pod.
type Nodes struct {
	// Total is the number of nodes, Fit how many of them would take the pod.
	Total int `json:"total"`
	Fit   int `json:"fit"`
	// Refusals are the others, by everything that each has against the pod; the
	// commonest first.
	Refusals []Refusal `json:"refusals,omitempty"`
	// Each is every node by itself, if that was asked for.
	Each []NodeVerdict `json:"each,omitempty"`
}

// Refusal is what a number of nodes have against a pod, all of them the same.
type Refusal struct {
	Nodes int `json:"nodes"`
	// Reasons are all of them, each with its amounts and with who is in the way,
	// for example "Insufficient cpu (short 500m to 2)".
	Reasons []string `json:"reasons"`
	// InTheWay and Skews are what Reasons say of other pods.
	InTheWay []InTheWay `json:"inTheWay,omitempty"`
	Skews    []Skew     `json:"skews,omitempty"`
	// Examples are the first of the nodes.
	Examples []string `json:"examples,omitempty"`
}

// InTheWay is who keeps a pod off nodes by anti-affinity, its own or theirs; or,
// without a TopologyKey, for whom what it lacks is kept on the nodes.
type InTheWay struct {
	// Reason is Kubernetes' wording of the reason that they are of.
	Reason string `json:"reason"`
	// TopologyKey is the label that they have in common with the nodes.
	TopologyKey string `json:"topologyKey,omitempty"`
	// Pods are the first of Total: the most important ones, and by name.
	Pods  []PodInTheWay `json:"pods"`
	Total int           `json:"total"`
}

// PodInTheWay is a pod that another is kept away from.
type PodInTheWay struct {
	// Namespace and Name are absent for a pod of a namespace that the asker may
	// not read (PR20).
	Namespace string    `json:"namespace,omitempty"`
	Name      string    `json:"name,omitempty"`
	UID       types.UID `json:"uid"`
	// Node is where it is, or is to come if it is Nominated; Domain is that node's
	// value of the topology key.
	Node      string `json:"node"`
	Domain    string `json:"domain,omitempty"`
	Nominated bool   `json:"nominated,omitempty"`
	// Ending: its deletion has begun; it is in the way until it has gone.
	Ending bool `json:"ending,omitempty"`
}

// Skew is a topology spread constraint by which one more pod would be too many:
// its domain would have more than MaxSkew above Least.
type Skew struct {
	TopologyKey string `json:"topologyKey"`
	MaxSkew     int64  `json:"maxSkew"`
	// Least is how many of the pods that the constraint counts are in the domain
	// that has the fewest.
	Least int64 `json:"least"`
	// FewDomains: there are fewer domains than minDomains, so that Least is 0.
	FewDomains bool `json:"fewDomains,omitempty"`
	// WithNominated: nominated pods are counted.
	WithNominated bool `json:"withNominated,omitempty"`
	// Domains are the first of Total that have too many.
	Domains []SkewedDomain `json:"domains"`
	Total   int            `json:"total"`
}

// SkewedDomain is how many of the pods that a constraint counts are in a domain.
type SkewedDomain struct {
	Domain string `json:"domain"`
	Pods   int64  `json:"pods"`
}

// NodeVerdict is what one node says to a pod.
type NodeVerdict struct {
	Node string `json:"node"`
	// Reasons are all that keep the pod off; none: it fits. InTheWay and Skews are
	// what they say of other pods.
	Reasons  []string   `json:"reasons,omitempty"`
	InTheWay []InTheWay `json:"inTheWay,omitempty"`
	Skews    []Skew     `json:"skews,omitempty"`
	// Preemption says what evicting pods of lower priority would do.
	Preemption string `json:"preemption,omitempty"`
	// Victims would have to be evicted, Ending only to be waited for.
	Victims []string `json:"victims,omitempty"`
	Ending  []string `json:"ending,omitempty"`
}
