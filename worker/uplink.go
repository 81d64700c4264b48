package worker

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Uplink is how the agent talks to the control plane. Its implementation owns the connection: it reconnects by itself,
// and after every reconnect the next Assignment is Full.
type Uplink interface {
	// Register creates the node or, where it is there already, brings its labels and status up to date. The agent calls
	// it at its start and again after every Full assignment but the first.
	Register(ctx context.Context, node *corev1.Node) error
	// Assignments delivers what this node is to run. The channel is never closed while the agent runs.
	Assignments() <-chan Assignment
	// Report hands over the newest state of some pods. An error means that nothing can be assumed: all of it is sent
	// again, newer where it became newer. Of what it has taken over the implementation tells Agent.Taken once the servers
	// have it, unless a newer report of the pod came before that.
	Report(ctx context.Context, reports []PodReport) error
	// ReportNode hands over the node's newest status when something in it changed.
	ReportNode(ctx context.Context, status *corev1.NodeStatus) error
}

// Assignment says which pods the node is to run. Objects are shared and immutable.
type Assignment struct {
	// Full: Pods is all there is; every other pod is gone.
	Full bool
	// Revision is the state's revision that the assignment was cut at. The agent only remembers the newest.
	Revision int64
	// Pods are new or changed, or the servers hold another status of them than this node has reported last.
	Pods []*corev1.Pod
	// Gone are pods whose objects are no more (TM6): they end with the least grace.
	Gone []types.UID
	// Node, when not nil, has the labels that the servers have for the node now; they decide on admission.
	Node *corev1.Node
}

// PodReport is the state of one pod as this node sees it.
type PodReport struct {
	Namespace string
	Name      string
	UID       types.UID
	// Status is what this node knows. Status.Conditions has only the types that are a worker's (model.WorkerConditions),
	// PodScheduled of a pod that came with its node, and DisruptionTarget of one that the node has ended for another;
	// whoever stores it keeps the conditions of other types.
	Status corev1.PodStatus
	// Removed: the pod was asked to go, nothing of it runs any more and its volumes are gone: the object may go (TM4).
	Removed bool
	// Seen is the newest Assignment.Revision of those by which this node has acted.
	Seen int64
	// Number is another one for each report of this agent.
	Number uint64
}

// Taken is a report that the servers have committed, or will not have whatever is done: nothing is left to be told by it.
type Taken struct {
	UID    types.UID
	Number uint64 // PodReport.Number
	Late   bool   // they have passed it over, as what this node had seen is gone (PodReport.Seen)
}

// Recorder takes events about pods for `kubectl get events`. It must not block.
type Recorder interface {
	Event(pod *corev1.Pod, eventType, reason, message string)
}

// Getter reads the objects that containers refer to. Errors that satisfy apierrors.IsNotFound are told apart, because
// references may be optional.
type Getter interface {
	ConfigMap(ctx context.Context, namespace, name string) (*corev1.ConfigMap, error)
	Secret(ctx context.Context, namespace, name string) (*corev1.Secret, error)
	// Services are those of a namespace that have an address.
	Services(ctx context.Context, namespace string) ([]corev1.Service, error)
	// Token gives a token of the pod's service account that is bound to the pod.
	Token(ctx context.Context, pod *corev1.Pod, audience string, seconds int64) (token string, expires time.Time, err error)
	ServiceAccount(ctx context.Context, namespace, name string) (*corev1.ServiceAccount, error)
	// VolumeOf gives a claim and the volume that it has; nil: none yet.
	VolumeOf(ctx context.Context, namespace, claim string) (*corev1.PersistentVolumeClaim, *corev1.PersistentVolume, error)
}
