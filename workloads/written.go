package workloads

import (
	"context"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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
}

// AppsV1 implements kubernetes.Interface.
func (c withWorkloads) AppsV1() typedappsv1.AppsV1Interface {
	return appsWithWorkloads{c.Interface.AppsV1(), c.writer}
}

type appsWithWorkloads struct {
	typedappsv1.AppsV1Interface
	writer WorkloadWriter
}

// Deployments implements typedappsv1.DeploymentsGetter.
func (c appsWithWorkloads) Deployments(namespace string) typedappsv1.DeploymentInterface {
	return writtenDeployments{c.AppsV1Interface.Deployments(namespace), c.writer, namespace}
}

// ReplicaSets implements typedappsv1.ReplicaSetsGetter.
func (c appsWithWorkloads) ReplicaSets(namespace string) typedappsv1.ReplicaSetInterface {
	return writtenReplicaSets{c.AppsV1Interface.ReplicaSets(namespace), c.writer, namespace}
}

type writtenDeployments struct {
	typedappsv1.DeploymentInterface
	writer    WorkloadWriter
	namespace string
}

// UpdateStatus implements typedappsv1.DeploymentInterface.
func (d writtenDeployments) UpdateStatus(ctx context.Context, of *appsv1.Deployment, options metav1.UpdateOptions) (*appsv1.Deployment, error) {
	if !equality.Semantic.DeepEqual(options, metav1.UpdateOptions{}) {
		return d.DeploymentInterface.UpdateStatus(ctx, of, options)
	}
	return d.writer.UpdateDeploymentStatus(ctx, d.namespace, of)
}

type writtenReplicaSets struct {
	typedappsv1.ReplicaSetInterface
	writer    WorkloadWriter
	namespace string
}

// Create implements typedappsv1.ReplicaSetInterface.
func (s writtenReplicaSets) Create(ctx context.Context, rs *appsv1.ReplicaSet, options metav1.CreateOptions) (*appsv1.ReplicaSet, error) {
	if !equality.Semantic.DeepEqual(options, metav1.CreateOptions{}) {
		return s.ReplicaSetInterface.Create(ctx, rs, options)
	}
	return s.writer.CreateReplicaSet(ctx, s.namespace, rs)
}
