package apiserver

import (
	"context"
	"fmt"
	"sync"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/install"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/registry/customresourcedefinition"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/kubernetes/pkg/api/legacyscheme"

	"github.com/berth-dev/berth/fsm"
)

// installDefinitions adds the types of definitions to Kubernetes' scheme: those of other
// groups do so by themselves.
var installDefinitions = sync.OnceFunc(func() { install.Install(legacyscheme.Scheme) })

// maxDefinitionBytes bounds a definition, schemas and all; Kubernetes' store has the same
// bound.
const maxDefinitionBytes = 3 << 19

// definitionsGroup serves the definitions of custom kinds. What they define is served by
// customResources; builtIn are the groups that are served without them.
func (g *registry) definitionsGroup(builtIn map[string]bool) (genericapiserver.APIGroupInfo, error) {
	resources := map[string]rest.Storage{}
	resource := apiextensions.Resource(fsm.CustomResourceDefinitions)
	strategy := customresourcedefinition.NewStrategy(legacyscheme.Scheme)
	err := g.workload(resources, description{
		kind:     bounded(inNoNamespace(plainKind[apiextensions.CustomResourceDefinition, apiextensionsv1.CustomResourceDefinition](resource)), maxDefinitionBytes),
		singular: "customresourcedefinition", shortNames: []string{"crd", "crds"}, categories: []string{"api-extensions"},
		version: apiextensionsv1.SchemeGroupVersion, table: rest.NewDefaultTableConvertor(resource),
		list:   func() runtime.Object { return new(apiextensions.CustomResourceDefinitionList) },
		create: definitionCreation{strategy, builtIn}, update: strategy, remove: strategy, reset: strategy,
		attrs: customresourcedefinition.GetAttrs, predicate: customresourcedefinition.MatchCustomResourceDefinition,
	}, customresourcedefinition.NewStatusStrategy(legacyscheme.Scheme))
	return groupOf(apiextensionsv1.SchemeGroupVersion, resources), err
}

// definitionCreation is upstream's strategy. The group of a definition never changes.
type definitionCreation struct {
	rest.RESTCreateStrategy
	builtIn map[string]bool
}

// Validate implements rest.RESTCreateStrategy.
func (s definitionCreation) Validate(ctx context.Context, obj runtime.Object) field.ErrorList {
	errs := s.RESTCreateStrategy.Validate(ctx, obj)
	if group := obj.(*apiextensions.CustomResourceDefinition).Spec.Group; s.builtIn[group] {
		errs = append(errs, field.Forbidden(field.NewPath("spec", "group"), fmt.Sprintf("Berth serves the group %s itself, and nothing else in it", group)))
	}
	return errs
}
