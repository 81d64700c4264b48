package apiserver

import (
	"context"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/kubernetes/pkg/apis/apps"

	"github.com/berth-dev/berth/fsm"
)

// LocalWorkloads writes what a controller of Deployments writes most, as localWriter says: their statuses, and their ReplicaSets.
type LocalWorkloads struct{ localWriter }

// LocalWorkloads is that for whom Local would make requests; nil if each has to be one, because an account is kept of them.
func (s *Server) LocalWorkloads(name string, groups ...string) *LocalWorkloads {
	if s.trail != nil {
		return nil
	}
	return &LocalWorkloads{localWriter{s, &user.DefaultInfo{Name: name, Groups: groups}}}
}

var (
	localReplicaSet       = localKind{appsv1.SchemeGroupVersion.WithKind("ReplicaSet"), appsv1.SchemeGroupVersion.WithResource(fsm.ReplicaSets), ""}
	localDeploymentStatus = localKind{appsv1.SchemeGroupVersion.WithKind("Deployment"), appsv1.SchemeGroupVersion.WithResource("deployments"), "status"}
)

// CreateReplicaSet makes a ReplicaSet, and gives it as it is stored.
func (w *LocalWorkloads) CreateReplicaSet(ctx context.Context, namespace string, in *appsv1.ReplicaSet) (out *appsv1.ReplicaSet, err error) {
	err = w.do(ctx, localReplicaSet.write(namespace, "", "create"), func(ctx context.Context) (err error) {
		out, err = createLocally[apps.ReplicaSet](ctx, &w.localWriter, w.server.replicaSets, localReplicaSet, namespace, in.DeepCopy())
		return err
	})
	return out, err
}

// UpdateDeploymentStatus writes the status of a Deployment, and gives that as it is stored.
func (w *LocalWorkloads) UpdateDeploymentStatus(ctx context.Context, namespace string, in *appsv1.Deployment) (out *appsv1.Deployment, err error) {
	err = w.do(ctx, localDeploymentStatus.write(namespace, in.Name, "update"), func(ctx context.Context) (err error) {
		out, err = updateLocally[apps.Deployment](ctx, &w.localWriter, w.server.deploymentStatus, localDeploymentStatus, namespace, in.DeepCopy())
		return err
	})
	return out, err
}
