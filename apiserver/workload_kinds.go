package apiserver

import (
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/kubernetes/pkg/apis/apps"
	"k8s.io/kubernetes/pkg/apis/batch"
	core "k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/apis/discovery"
	"k8s.io/kubernetes/pkg/registry/apps/controllerrevision"
	"k8s.io/kubernetes/pkg/registry/apps/daemonset"
	"k8s.io/kubernetes/pkg/registry/apps/deployment"
	"k8s.io/kubernetes/pkg/registry/apps/statefulset"
	"k8s.io/kubernetes/pkg/registry/batch/cronjob"
	"k8s.io/kubernetes/pkg/registry/batch/job"
	"k8s.io/kubernetes/pkg/registry/core/endpoint"
	"k8s.io/kubernetes/pkg/registry/core/replicationcontroller"
	"k8s.io/kubernetes/pkg/registry/discovery/endpointslice"

	// The groups' types, conversions and defaults register themselves in
	// Kubernetes' scheme.
	_ "k8s.io/kubernetes/pkg/apis/batch/install"
	_ "k8s.io/kubernetes/pkg/apis/discovery/install"

	"github.com/berth-dev/berth/fsm"
)

// statusStrategy is what upstream's strategies of statuses are at once.
type statusStrategy interface {
	rest.RESTUpdateStrategy
	rest.ResetFieldsStrategy
}

func deploymentDescription() description {
	return description{
		kind:     plainKind[apps.Deployment, appsv1.Deployment](apps.Resource("deployments")),
		singular: "deployment", shortNames: []string{"deploy"}, categories: []string{"all"},
		version: appsv1.SchemeGroupVersion,
		list:    func() runtime.Object { return new(apps.DeploymentList) },
		create:  scaleInCreation{deployment.Strategy}, update: scaleInChange{deployment.Strategy},
		remove: deployment.Strategy, reset: deployment.Strategy,
	}
}

func statefulSetDescription() description {
	return description{
		kind:     plainKind[apps.StatefulSet, appsv1.StatefulSet](apps.Resource("statefulsets")),
		singular: "statefulset", shortNames: []string{"sts"}, categories: []string{"all"},
		version: appsv1.SchemeGroupVersion,
		list:    func() runtime.Object { return new(apps.StatefulSetList) },
	}.by(statefulset.Strategy)
}

func daemonSetDescription() description {
	return description{
		kind:     plainKind[apps.DaemonSet, appsv1.DaemonSet](apps.Resource("daemonsets")),
		singular: "daemonset", shortNames: []string{"ds"}, categories: []string{"all"},
		version: appsv1.SchemeGroupVersion,
		list:    func() runtime.Object { return new(apps.DaemonSetList) },
	}.by(daemonset.Strategy)
}

func controllerRevisionDescription() description {
	return description{
		kind:     plainKind[apps.ControllerRevision, appsv1.ControllerRevision](apps.Resource("controllerrevisions")),
		singular: "controllerrevision", version: appsv1.SchemeGroupVersion,
		list: func() runtime.Object { return new(apps.ControllerRevisionList) },
	}.by(controllerrevision.Strategy)
}

func jobDescription() description {
	return description{
		kind:     plainKind[batch.Job, batchv1.Job](batch.Resource("jobs")),
		singular: "job", categories: []string{"all"}, version: batchv1.SchemeGroupVersion,
		list:  func() runtime.Object { return new(batch.JobList) },
		attrs: job.GetAttrs, predicate: job.MatchJob, orphans: true,
	}.by(job.Strategy)
}

func cronJobDescription() description {
	return description{
		kind:     plainKind[batch.CronJob, batchv1.CronJob](batch.Resource("cronjobs")),
		singular: "cronjob", shortNames: []string{"cj"}, categories: []string{"all"}, version: batchv1.SchemeGroupVersion,
		list: func() runtime.Object { return new(batch.CronJobList) },
	}.by(cronjob.Strategy)
}

func replicationControllerDescription() description {
	return description{
		kind:     plainKind[core.ReplicationController, corev1.ReplicationController](core.Resource("replicationcontrollers")),
		singular: "replicationcontroller", shortNames: []string{"rc"}, categories: []string{"all"},
		version: corev1.SchemeGroupVersion,
		list:    func() runtime.Object { return new(core.ReplicationControllerList) },
		attrs:   replicationcontroller.GetAttrs, predicate: replicationcontroller.MatchController, orphans: true,
	}.by(replicationcontroller.Strategy)
}

func endpointsDescription() description {
	return description{
		kind:     plainKind[core.Endpoints, corev1.Endpoints](core.Resource("endpoints")),
		singular: "endpoints", shortNames: []string{"ep"}, version: corev1.SchemeGroupVersion,
		list:   func() runtime.Object { return new(core.EndpointsList) },
		create: endpointCreation{endpoint.Strategy}, update: endpointChange{endpoint.Strategy}, remove: endpoint.Strategy,
	}
}

func endpointSliceDescription() description {
	return description{
		kind:     plainKind[discovery.EndpointSlice, discoveryv1.EndpointSlice](discovery.Resource("endpointslices")),
		singular: "endpointslice", version: discoveryv1.SchemeGroupVersion,
		list:   func() runtime.Object { return new(discovery.EndpointSliceList) },
		create: endpointCreation{endpointslice.Strategy}, update: endpointChange{endpointslice.Strategy}, remove: endpointslice.Strategy,
	}
}

// workload adds a kind to the resources of a group, with its status.
func (g *registry) workload(resources map[string]rest.Storage, d description, status statusStrategy) error {
	if d.table == nil {
		d.table = kubernetesTable()
	}
	s, err := g.resource(plain(d))
	if err != nil {
		return err
	}
	name := d.kind.resource.Resource
	resources[name] = s
	if status != nil {
		resources[name+"/status"] = partOf(s, status)
	}
	return nil
}

// batchGroup serves what runs to its end.
func (g *registry) batchGroup() (genericapiserver.APIGroupInfo, error) {
	resources := map[string]rest.Storage{}
	if err := g.workload(resources, jobDescription(), job.StatusStrategy); err != nil {
		return genericapiserver.APIGroupInfo{}, err
	}
	err := g.workload(resources, cronJobDescription(), cronjob.StatusStrategy)
	return groupOf(batchv1.SchemeGroupVersion, resources), err
}

// discoveryGroup serves which pods are behind a service.
func (g *registry) discoveryGroup() (genericapiserver.APIGroupInfo, error) {
	resources := map[string]rest.Storage{}
	err := g.workload(resources, endpointSliceDescription(), nil)
	return groupOf(discoveryv1.SchemeGroupVersion, resources), err
}

// podTemplateOf is what the pods of a workload are made from; nil for other objects.
func podTemplateOf(obj runtime.Object) (*core.PodTemplateSpec, *field.Path) {
	template := field.NewPath("spec", "template")
	switch o := obj.(type) {
	case *apps.ReplicaSet:
		return &o.Spec.Template, template
	case *apps.Deployment:
		return &o.Spec.Template, template
	case *apps.StatefulSet:
		return &o.Spec.Template, template
	case *apps.DaemonSet:
		return &o.Spec.Template, template
	case *batch.Job:
		return &o.Spec.Template, template
	case *batch.CronJob:
		return &o.Spec.JobTemplate.Spec.Template, field.NewPath("spec", "jobTemplate", "spec", "template")
	case *core.ReplicationController:
		return o.Spec.Template, template
	}
	return nil, nil
}

// podSelectorOf is a workload's selector; nil if it has none.
func podSelectorOf(obj runtime.Object) *metav1.LabelSelector {
	switch o := obj.(type) {
	case *apps.ReplicaSet:
		return o.Spec.Selector
	case *apps.Deployment:
		return o.Spec.Selector
	case *apps.StatefulSet:
		return o.Spec.Selector
	case *apps.DaemonSet:
		return o.Spec.Selector
	case *batch.Job:
		return o.Spec.Selector
	case *batch.CronJob:
		return o.Spec.JobTemplate.Spec.Selector
	case *core.ReplicationController:
		return &metav1.LabelSelector{MatchLabels: o.Spec.Selector}
	}
	return nil
}

// orphaning is a propagation, where a kind's dependents stay without a word about
// them, as they did in the kind's first version.
func orphaning(p fsm.Propagation) fsm.Propagation {
	if p == "" {
		return fsm.Propagation(metav1.DeletePropagationOrphan)
	}
	return p
}
