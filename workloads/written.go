package workloads

import (
	"context"
	"sync"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	typedappsv1 "k8s.io/client-go/kubernetes/typed/apps/v1"
)

// WorkloadWriter writes what the controller of Deployments writes most, as its requests do, at less cost.
type WorkloadWriter interface {
	CreateReplicaSet(ctx context.Context, namespace string, rs *appsv1.ReplicaSet) (*appsv1.ReplicaSet, error)
	UpdateDeploymentStatus(ctx context.Context, namespace string, d *appsv1.Deployment) (*appsv1.Deployment, error)
}

// withWorkloads is a client whose ReplicaSets and statuses of Deployments are written by a WorkloadWriter where it can say what is asked.
type withWorkloads struct {
	kubernetes.Interface
	writer WorkloadWriter
	begun  *rollouts
}

func newWithWorkloads(by kubernetes.Interface, writer WorkloadWriter) withWorkloads {
	return withWorkloads{by, writer, &rollouts{of: map[types.UID]bool{}}}
}

// AppsV1 implements kubernetes.Interface.
func (c withWorkloads) AppsV1() typedappsv1.AppsV1Interface {
	return appsWithWorkloads{c.Interface.AppsV1(), c}
}

type appsWithWorkloads struct {
	typedappsv1.AppsV1Interface
	by withWorkloads
}

// Deployments implements typedappsv1.DeploymentsGetter.
func (c appsWithWorkloads) Deployments(namespace string) typedappsv1.DeploymentInterface {
	return writtenDeployments{c.AppsV1Interface.Deployments(namespace), c.by, namespace}
}

// ReplicaSets implements typedappsv1.ReplicaSetsGetter.
func (c appsWithWorkloads) ReplicaSets(namespace string) typedappsv1.ReplicaSetInterface {
	return writtenReplicaSets{c.AppsV1Interface.ReplicaSets(namespace), c.by, namespace}
}

// rollouts are the Deployments of which a ReplicaSet was made in the look that goes on. Kubernetes' controller says so in a status at once,
// and in another one at the end of the same look, with the numbers: that one it derives from the one before, but not from what was stored
// by it, so it is always refused as out of date, and the look is made again. Here the first is not written, and the second says it all.
type rollouts struct {
	mu sync.Mutex
	of map[types.UID]bool
}

// rolloutsKept is more than are looked at at a time: of the others nothing followed.
const rolloutsKept = 1024

// begin: a ReplicaSet of a Deployment was made.
func (r *rollouts) begin(of types.UID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.of) >= rolloutsKept {
		clear(r.of) // who is forgotten has one status more
	}
	r.of[of] = true
}

// saysMore: what is to be written now is written again in the same look, with more. That is so of what is written first after a ReplicaSet was
// made, as long as it does not say that what is asked for has been seen: the last of a look always does.
func (r *rollouts) saysMore(d *appsv1.Deployment) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	begun := r.of[d.UID]
	delete(r.of, d.UID)
	return begun && d.Status.ObservedGeneration < d.Generation && d.Annotations[appsv1.DeprecatedRollbackTo] == ""
}

type writtenDeployments struct {
	typedappsv1.DeploymentInterface
	by        withWorkloads
	namespace string
}

// UpdateStatus implements typedappsv1.DeploymentInterface.
func (d writtenDeployments) UpdateStatus(ctx context.Context, of *appsv1.Deployment, options metav1.UpdateOptions) (*appsv1.Deployment, error) {
	if !equality.Semantic.DeepEqual(options, metav1.UpdateOptions{}) {
		return d.DeploymentInterface.UpdateStatus(ctx, of, options)
	}
	if d.by.begun.saysMore(of) {
		return of, nil
	}
	return d.by.writer.UpdateDeploymentStatus(ctx, d.namespace, of)
}

type writtenReplicaSets struct {
	typedappsv1.ReplicaSetInterface
	by        withWorkloads
	namespace string
}

// Create implements typedappsv1.ReplicaSetInterface.
func (s writtenReplicaSets) Create(ctx context.Context, rs *appsv1.ReplicaSet, options metav1.CreateOptions) (*appsv1.ReplicaSet, error) {
	if !equality.Semantic.DeepEqual(options, metav1.CreateOptions{}) {
		return s.ReplicaSetInterface.Create(ctx, rs, options)
	}
	made, err := s.by.writer.CreateReplicaSet(ctx, s.namespace, rs)
	if of := metav1.GetControllerOfNoCopy(rs); err == nil && of != nil {
		s.by.begun.begin(of.UID)
	}
	return made, err
}
