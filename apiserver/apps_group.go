package apiserver

import (
	"context"
	"errors"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/kubernetes/pkg/apis/apps"
	"k8s.io/kubernetes/pkg/registry/apps/daemonset"
	"k8s.io/kubernetes/pkg/registry/apps/deployment"
	deploymentstorage "k8s.io/kubernetes/pkg/registry/apps/deployment/storage"
	"k8s.io/kubernetes/pkg/registry/apps/replicaset"
	replicasetstorage "k8s.io/kubernetes/pkg/registry/apps/replicaset/storage"
	"k8s.io/kubernetes/pkg/registry/apps/statefulset"
	statefulsetstorage "k8s.io/kubernetes/pkg/registry/apps/statefulset/storage"

	// The groups' types, conversions and defaults register themselves in
	// Kubernetes' scheme. Scale is of the group autoscaling, of which nothing
	// else is served.
	_ "k8s.io/kubernetes/pkg/apis/apps/install"
	_ "k8s.io/kubernetes/pkg/apis/autoscaling/install"

	"github.com/berth-dev/berth/controller"
	"github.com/berth-dev/berth/fsm"
)

func replicaSetKind() *kind {
	return plainKind[apps.ReplicaSet, appsv1.ReplicaSet](apps.Resource(fsm.ReplicaSets))
}

// appsGroup serves the kinds that keep pods.
func (g *registry) appsGroup() (genericapiserver.APIGroupInfo, error) {
	resources := map[string]rest.Storage{}
	info := groupOf(appsv1.SchemeGroupVersion, resources)
	d := plain(description{
		kind: replicaSetKind(), singular: "replicaset", shortNames: []string{"rs"}, categories: []string{"all"},
		version: appsv1.SchemeGroupVersion, table: kubernetesTable(),
		list:  func() runtime.Object { return new(apps.ReplicaSetList) },
		attrs: replicaset.GetAttrs, predicate: replicaset.MatchReplicaSet,
		create: scaleInCreation{replicaset.Strategy}, update: scaleInChange{replicaset.Strategy},
		remove: replicaset.Strategy, reset: replicaset.Strategy,
	})
	sets, err := g.resource(d)
	if err != nil {
		return info, err
	}
	upstream, err := replicasetstorage.NewStorage(g.options(d))
	if err != nil {
		return info, err
	}
	resources["replicasets"], g.replicaSets = sets, sets
	resources["replicasets/status"] = partOf(sets, replicaset.StatusStrategy)
	resources["replicasets/scale"] = &scale{upstream.Scale, g.backend}
	if err := g.workload(resources, deploymentDescription(), deployment.StatusStrategy); err != nil {
		return info, err
	}
	g.deploymentStatus = resources["deployments/status"].(*part)
	return info, errors.Join(
		g.workload(resources, statefulSetDescription(), statefulset.StatusStrategy),
		g.workload(resources, daemonSetDescription(), daemonset.StatusStrategy),
		g.workload(resources, controllerRevisionDescription(), nil),
		g.appsScales(resources),
	)
}

// appsScales serves the scales of Deployments and StatefulSets by upstream's
// registries.
func (g *registry) appsScales(resources map[string]rest.Storage) error {
	deployments, err := deploymentstorage.NewStorage(g.options(deploymentDescription()))
	if err != nil {
		return err
	}
	resources["deployments/scale"] = &scale{deployments.Scale, g.backend}
	sets, err := statefulsetstorage.NewStorage(g.options(statefulSetDescription()))
	resources["statefulsets/scale"] = &scale{sets.Scale, g.backend}
	return err
}

// scaleInCreation is upstream's strategy of ReplicaSets, or of Deployments, whose
// annotations their ReplicaSets get; it knows nothing of ours.
type scaleInCreation struct{ rest.RESTCreateStrategy }

// Validate implements rest.RESTCreateStrategy.
func (s scaleInCreation) Validate(ctx context.Context, obj runtime.Object) field.ErrorList {
	return append(s.RESTCreateStrategy.Validate(ctx, obj), controller.ValidateScaleIn(metaOf(obj).GetAnnotations())...)
}

// scaleInChange is the same for what is changed.
type scaleInChange struct{ rest.RESTUpdateStrategy }

// ValidateUpdate implements rest.RESTUpdateStrategy.
func (s scaleInChange) ValidateUpdate(ctx context.Context, obj, old runtime.Object) field.ErrorList {
	errs := s.RESTUpdateStrategy.ValidateUpdate(ctx, obj, old)
	now, before := metaOf(obj).GetAnnotations(), metaOf(old).GetAnnotations()
	if now[controller.ScaleInAnnotation] == before[controller.ScaleInAnnotation] {
		return errs // one that is stored already must not be in the way of everything else
	}
	return append(errs, controller.ValidateScaleIn(now)...)
}

// plain completes the description of a kind of the table of plain objects: one
// command ends its objects, and what their finalizers hold ends in Apply.
func plain(d description) description {
	remove := d.kind.remove
	d.erase = func(key string, p fsm.Precondition, options *metav1.DeleteOptions) fsm.Command {
		c := remove(key, p).(*fsm.DeleteObject)
		if c.Propagation = propagation(options); d.orphans {
			c.Propagation = orphaning(c.Propagation)
		}
		return c
	}
	d.endsInApply = true
	return d
}

// propagation is what the options say of the dependents of what is deleted.
// They stay in either form that they have had; without a word the object's
// finalizers decide.
func propagation(options *metav1.DeleteOptions) fsm.Propagation {
	switch {
	case options.PropagationPolicy != nil:
		return fsm.Propagation(*options.PropagationPolicy)
	case options.OrphanDependents == nil:
		return ""
	case *options.OrphanDependents:
		return fsm.Propagation(metav1.DeletePropagationOrphan)
	}
	return fsm.Propagation(metav1.DeletePropagationBackground)
}

// upstreamScale is what upstream's registries of scales are.
type upstreamScale interface {
	rest.Patcher
	rest.GroupVersionKindProvider
	rest.TableConvertor
	Destroy()
}

// scale serves the scale of a kind by upstream's registry, with dry runs that
// run.
type scale struct {
	upstreamScale
	backend Backend
}

var (
	_ rest.Patcher                  = (*scale)(nil)
	_ rest.GroupVersionKindProvider = (*scale)(nil)
)

// Update implements rest.Updater.
func (s *scale) Update(ctx context.Context, name string, info rest.UpdatedObjectInfo, create rest.ValidateObjectFunc,
	update rest.ValidateObjectUpdateFunc, forceAllowCreate bool, options *metav1.UpdateOptions,
) (runtime.Object, bool, error) {
	return updateIn(ctx, s.upstreamScale, s.backend, name, info, create, update, forceAllowCreate, options)
}
