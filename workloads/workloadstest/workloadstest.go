// Package workloadstest is for tests of what happens when another program keeps workloads, through the API as it has to. It
// must never be part of Berth's binary.
package workloadstest

import (
	"context"

	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/kubernetes/pkg/controller/deployment"
	"k8s.io/kubernetes/pkg/controller/job"
	"k8s.io/kubernetes/pkg/controller/replicaset"
)

// objectsAtATime is how many objects each of the controllers works on at a time.
const objectsAtATime = 2

// Run keeps Deployments, ReplicaSets and Jobs as kube-controller-manager does, with Kubernetes' own controllers and informers
// of their own, until the context ends.
func Run(ctx context.Context, config *rest.Config) error {
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	shared := informers.NewSharedInformerFactory(client, 0)
	apps, pods := shared.Apps().V1(), shared.Core().V1().Pods()
	deployments, err := deployment.NewDeploymentController(ctx, apps.Deployments(), apps.ReplicaSets(), pods, client)
	if err != nil {
		return err
	}
	replicaSets := replicaset.NewReplicaSetController(ctx, apps.ReplicaSets(), pods, client, replicaset.BurstReplicas)
	jobs, err := job.NewController(ctx, client, pods, shared.Batch().V1().Jobs(), nil, nil)
	if err != nil {
		return err
	}
	shared.Start(ctx.Done())
	defer shared.Shutdown()
	go deployments.Run(ctx, objectsAtATime)
	go replicaSets.Run(ctx, objectsAtATime)
	jobs.Run(ctx, objectsAtATime)
	return nil
}
