package apiserver

import (
	"maps"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/endpoints/openapi"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/kube-openapi/pkg/builder"
	"k8s.io/kube-openapi/pkg/cached"
	"k8s.io/kube-openapi/pkg/common"
	"k8s.io/kube-openapi/pkg/common/restfuladapter"
	"k8s.io/kube-openapi/pkg/handler"
	"k8s.io/kube-openapi/pkg/validation/spec"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	generatedopenapi "k8s.io/kubernetes/pkg/generated/openapi"

	"github.com/berth-dev/berth/api/berthv1"
)

// setOpenAPI describes Kubernetes' types and ours.
func setOpenAPI(c *genericapiserver.Config, berth *runtime.Scheme) {
	definitions := func(ref common.ReferenceCallback) map[string]common.OpenAPIDefinition {
		all := generatedopenapi.GetOpenAPIDefinitions(ref)
		maps.Copy(all, berthv1.GetOpenAPIDefinitions(ref))
		return all
	}
	namer := openapi.NewDefinitionNamer(legacyscheme.Scheme, berth)
	c.OpenAPIConfig = genericapiserver.DefaultOpenAPIConfig(definitions, namer)
	c.OpenAPIConfig.Info.Title = "Berth"
	c.OpenAPIV3Config = genericapiserver.DefaultOpenAPIV3Config(definitions, namer)
	c.OpenAPIV3Config.Info.Title = "Berth"
}

// openAPIV2Path is where the second version of the description is.
const openAPIV2Path = "/openapi/v2"

// describeLate makes the second version of the description when somebody first asks for it. Upstream makes it when a
// server starts, which takes as long as all else together, and clients of today ask for the third.
func describeLate(s *genericapiserver.GenericAPIServer, c *common.Config) {
	description := cached.Once(cached.Func(func() (*spec.Swagger, string, error) {
		out, err := builder.BuildOpenAPISpecFromRoutes(restfuladapter.AdaptWebServices(s.Handler.GoRestfulContainer.RegisteredWebServices()), c)
		if err != nil {
			return nil, "", err
		}
		out.Definitions = handler.PruneDefaults(out.Definitions)
		return out, "", nil
	}))
	handler.NewOpenAPIServiceLazy(description).RegisterOpenAPIVersionedService(openAPIV2Path, s.Handler.NonGoRestfulMux)
}
