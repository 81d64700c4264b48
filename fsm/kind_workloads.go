package fsm

import (
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/codec"
)

// SinceWorkloads is the version of the rules that brought the kinds below. By
// those before there is no such kind: an object of it is not stored, and an owner
// of it is taken to be there.
const SinceWorkloads = 3

// workloadKinds are the kinds whose pods are made through the API, by controllers
// that no command is for, and what these keep beside.
func workloadKinds() []ObjectKind {
	kinds := []ObjectKind{
		{
			Group: appsv1.GroupName, Resource: "deployments", Kind: "Deployment", New: func() codec.Object { return new(appsv1.Deployment) },
			Workload: templateOf(func(o *appsv1.Deployment) *corev1.PodTemplateSpec { return &o.Spec.Template }),
		},
		statefulSetKind(),
		{
			Group: appsv1.GroupName, Resource: "daemonsets", Kind: "DaemonSet", New: func() codec.Object { return new(appsv1.DaemonSet) },
			Workload: templateOf(func(o *appsv1.DaemonSet) *corev1.PodTemplateSpec { return &o.Spec.Template }),
		},
		{
			Group: appsv1.GroupName, Resource: "controllerrevisions", Kind: "ControllerRevision",
			New: func() codec.Object { return new(appsv1.ControllerRevision) },
		},
		{
			Group: batchv1.GroupName, Resource: "jobs", Kind: "Job", New: func() codec.Object { return new(batchv1.Job) },
			Workload: templateOf(func(o *batchv1.Job) *corev1.PodTemplateSpec { return &o.Spec.Template }),
		},
		{
			Group: batchv1.GroupName, Resource: "cronjobs", Kind: "CronJob", New: func() codec.Object { return new(batchv1.CronJob) },
			Workload: templateOf(func(o *batchv1.CronJob) *corev1.PodTemplateSpec { return &o.Spec.JobTemplate.Spec.Template }),
		},
		replicationControllerKind(),
		{Resource: "endpoints", Kind: "Endpoints", New: func() codec.Object { return new(corev1.Endpoints) }},
		{
			Group: discoveryv1.GroupName, Resource: "endpointslices", Kind: "EndpointSlice",
			New: func() codec.Object { return new(discoveryv1.EndpointSlice) },
		},
	}
	for i := range kinds {
		kinds[i].Since = SinceWorkloads
	}
	return kinds
}

// templateOf is a workload of which no more than the template counts here.
func templateOf[T codec.Object](template func(o T) *corev1.PodTemplateSpec) *Workload {
	return &Workload{Template: func(o codec.Object) *corev1.PodTemplateSpec { return template(o.(T)) }}
}

func statefulSetKind() ObjectKind {
	return ObjectKind{
		Group: appsv1.GroupName, Resource: "statefulsets", Kind: "StatefulSet",
		New: func() codec.Object { return new(appsv1.StatefulSet) },
		Workload: &Workload{
			Replicas: func(o codec.Object) int32 { return replicasOr1(o.(*appsv1.StatefulSet).Spec.Replicas) },
			Selector: func(o codec.Object) *metav1.LabelSelector { return o.(*appsv1.StatefulSet).Spec.Selector },
			Template: func(o codec.Object) *corev1.PodTemplateSpec { return &o.(*appsv1.StatefulSet).Spec.Template },
		},
	}
}

func replicationControllerKind() ObjectKind {
	return ObjectKind{
		Resource: "replicationcontrollers", Kind: "ReplicationController",
		New: func() codec.Object { return new(corev1.ReplicationController) },
		Workload: &Workload{
			Replicas: func(o codec.Object) int32 { return replicasOr1(o.(*corev1.ReplicationController).Spec.Replicas) },
			Template: func(o codec.Object) *corev1.PodTemplateSpec { return o.(*corev1.ReplicationController).Spec.Template },
		},
	}
}

// replicasOr1 is how many pods an object wants that may not say so.
func replicasOr1(replicas *int32) int32 {
	if replicas == nil {
		return 1
	}
	return *replicas
}
