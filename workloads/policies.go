package workloads

import (
	"context"
	"sync"

	apiextensionsscheme "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset/scheme"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	validatingpolicy "k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	"k8s.io/apiserver/pkg/cel/openapi/resolver"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/restmapper"
	"k8s.io/kube-openapi/pkg/validation/spec"
	"k8s.io/kubernetes/pkg/controller/validatingadmissionpolicystatus"
	"k8s.io/kubernetes/pkg/generated/openapi"
)

// policyController says in the statuses of admission policies which of their expressions do not
// fit the types that they are about.
const policyController = validatingadmissionpolicystatus.ControllerName

func newPolicyStatus(_ context.Context, c kubernetes.Interface, f factory) (controller, error) {
	types := typesNow{custom: &resolver.ClientDiscoveryResolver{Discovery: c.Discovery()}}
	return validatingadmissionpolicystatus.NewController(
		f.Admissionregistration().V1().ValidatingAdmissionPolicies(), c.AdmissionregistrationV1().ValidatingAdmissionPolicies(),
		&validatingpolicy.TypeChecker{SchemaResolver: types, RestMapper: kindsNow{from: c.Discovery()}},
	)
}

// ownTypes describes Kubernetes' own types. There are a thousand: who begins to lead does not wait for them where no policy asks.
var ownTypes = sync.OnceValue(func() *resolver.DefinitionsSchemaResolver {
	return resolver.NewDefinitionsSchemaResolver(openapi.GetOpenAPIDefinitions, scheme.Scheme, apiextensionsscheme.Scheme)
})

// typesNow describes types when it is asked: Kubernetes' own ones, and else what is served (resolver.SchemaResolver).
type typesNow struct{ custom resolver.SchemaResolver }

// ResolveSchema implements resolver.SchemaResolver.
func (t typesNow) ResolveSchema(kind schema.GroupVersionKind) (*spec.Schema, error) {
	return ownTypes().Combine(t.custom).ResolveSchema(kind)
}

// kindsNow says which kinds a resource has by what is served when it is asked: policies are few,
// and kinds come and go.
type kindsNow struct {
	meta.RESTMapper
	from discovery.DiscoveryInterface
}

// KindsFor implements meta.RESTMapper.
func (k kindsNow) KindsFor(resource schema.GroupVersionResource) ([]schema.GroupVersionKind, error) {
	groups, err := restmapper.GetAPIGroupResources(k.from)
	if err != nil {
		return nil, err
	}
	return restmapper.NewDiscoveryRESTMapper(groups).KindsFor(resource)
}
