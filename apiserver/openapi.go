package apiserver

import (
	"maps"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/endpoints/openapi"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/kube-openapi/pkg/common"
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
