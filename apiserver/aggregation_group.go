package apiserver

import (
	"context"
	"fmt"
	"sync"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/kube-aggregator/pkg/apis/apiregistration"
	"k8s.io/kube-aggregator/pkg/apis/apiregistration/install"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/kube-aggregator/pkg/registry/apiservice"
	apiservicestorage "k8s.io/kube-aggregator/pkg/registry/apiservice/etcd"
	"k8s.io/kubernetes/pkg/api/legacyscheme"

	"github.com/berth-dev/berth/fsm"
)

// installAPIServices adds their types to Kubernetes' scheme.
var installAPIServices = sync.OnceFunc(func() { install.Install(legacyscheme.Scheme) })

// replaceable is the one group of Berth's own that another server may serve instead.
const replaceable = "metrics.k8s.io"

// maxCABundle bounds what one of them takes in memory and log.
const maxCABundle = 256 << 10

// aggregationGroup serves what says which servers of others' serve parts of the API. builtIn are the groups
// that this one serves.
func (g *registry) aggregationGroup(builtIn map[string]bool) (genericapiserver.APIGroupInfo, error) {
	resources := map[string]rest.Storage{}
	strategy := apiServiceStrategy{apiservice.NewStrategy(legacyscheme.Scheme), builtIn}
	err := g.workload(resources, description{
		kind:     inNoNamespace(plainKind[apiregistration.APIService, apiregistrationv1.APIService](apiregistration.Resource(fsm.APIServices))),
		singular: "apiservice", categories: []string{"api-extensions"}, version: apiregistrationv1.SchemeGroupVersion,
		table:  &apiservicestorage.REST{}, // it has the columns, and looks at nothing else
		list:   func() runtime.Object { return new(apiregistration.APIServiceList) },
		create: strategy, update: strategy, remove: strategy, reset: strategy,
		attrs: apiservice.GetAttrs, predicate: apiservice.MatchAPIService,
	}, apiservice.NewStatusStrategy(legacyscheme.Scheme))
	return groupOf(apiregistrationv1.SchemeGroupVersion, resources), err
}

// apiServiceStrategy is upstream's, and lets nobody else serve what Berth goes by.
type apiServiceStrategy struct {
	rest.CreateUpdateResetFieldsStrategy
	builtIn map[string]bool
}

// Validate implements rest.RESTCreateStrategy.
func (s apiServiceStrategy) Validate(ctx context.Context, obj runtime.Object) field.ErrorList {
	return append(s.CreateUpdateResetFieldsStrategy.Validate(ctx, obj), s.check(obj)...)
}

// ValidateUpdate implements rest.RESTUpdateStrategy.
func (s apiServiceStrategy) ValidateUpdate(ctx context.Context, obj, old runtime.Object) field.ErrorList {
	return append(s.CreateUpdateResetFieldsStrategy.ValidateUpdate(ctx, obj, old), s.check(obj)...)
}

func (s apiServiceStrategy) check(obj runtime.Object) (errs field.ErrorList) {
	spec, at := &obj.(*apiregistration.APIService).Spec, field.NewPath("spec")
	if group := spec.Group; spec.Service != nil && (group == "" || s.builtIn[group]) && group != replaceable {
		errs = append(errs, field.Forbidden(at.Child("service"), fmt.Sprintf("Berth serves the group %q itself, and goes by it", group)))
	}
	if size := len(spec.CABundle); size > maxCABundle {
		errs = append(errs, field.TooLong(at.Child("caBundle"), "", maxCABundle))
	}
	return errs
}
