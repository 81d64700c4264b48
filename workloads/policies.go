package workloads

import (
	"context"

	apiextensionsscheme "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset/scheme"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	validatingpolicy "k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	"k8s.io/apiserver/pkg/cel/openapi/resolver"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/restmapper"
	"k8s.io/kubernetes/pkg/controller/validatingadmissionpolicystatus"
	"k8s.io/kubernetes/pkg/generated/openapi"
)

// policyController says in the statuses of admission policies which of their expressions do not
// fit the types that they are about.
const policyController = validatingadmissionpolicystatus.ControllerName

func newPolicyStatus(_ context.Context, c kubernetes.Interface, f factory) (controller, error) {
	types := resolver.NewDefinitionsSchemaResolver(openapi.GetOpenAPIDefinitions, scheme.Scheme, apiextensionsscheme.Scheme).
		Combine(&resolver.ClientDiscoveryResolver{Discovery: c.Discovery()})
	return validatingadmissionpolicystatus.NewController(
		f.Admissionregistration().V1().ValidatingAdmissionPolicies(), c.AdmissionregistrationV1().ValidatingAdmissionPolicies(),
		&validatingpolicy.TypeChecker{SchemaResolver: types, RestMapper: kindsNow{from: c.Discovery()}},
	)
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
