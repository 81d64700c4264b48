package apiserver

import (
	"maps"
	"net/http"
	"sync"

	"github.com/hashicorp/go-hclog"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/endpoints/openapi"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/mux"
	"k8s.io/apiserver/pkg/server/routes"
	"k8s.io/kube-openapi/pkg/builder"
	"k8s.io/kube-openapi/pkg/builder3/util"
	"k8s.io/kube-openapi/pkg/cached"
	"k8s.io/kube-openapi/pkg/common"
	"k8s.io/kube-openapi/pkg/common/restfuladapter"
	"k8s.io/kube-openapi/pkg/handler"
	"k8s.io/kube-openapi/pkg/handler3"
	"k8s.io/kube-openapi/pkg/validation/spec"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	generatedopenapi "k8s.io/kubernetes/pkg/generated/openapi"

	"github.com/berth-dev/berth/api/berthv1"
)

// setOpenAPI describes Kubernetes' types and those of other schemes.
func setOpenAPI(c *genericapiserver.Config, others ...*runtime.Scheme) {
	definitions := func(ref common.ReferenceCallback) map[string]common.OpenAPIDefinition {
		all := generatedopenapi.GetOpenAPIDefinitions(ref)
		maps.Copy(all, berthv1.GetOpenAPIDefinitions(ref))
		return all
	}
	namer := openapi.NewDefinitionNamer(append([]*runtime.Scheme{legacyscheme.Scheme}, others...)...)
	c.OpenAPIConfig = genericapiserver.DefaultOpenAPIConfig(definitions, namer)
	c.OpenAPIConfig.Info.Title = "Berth"
	c.OpenAPIV3Config = genericapiserver.DefaultOpenAPIV3Config(ownTypesOfV3(definitions), namer)
	c.OpenAPIV3Config.Info.Title = "Berth"
}

// typesOfV3 are what version 3 refers to, made once: all servers of a process have the same types.
var typesOfV3 struct {
	sync.Once
	types map[string]common.OpenAPIDefinition
}

// ownTypesOfV3 gives each server the types with extensions of its own, into which upstream writes when it describes them. Nothing else of
// them is written.
func ownTypesOfV3(definitions common.GetOpenAPIDefinitions) common.GetOpenAPIDefinitions {
	return func(ref common.ReferenceCallback) map[string]common.OpenAPIDefinition {
		typesOfV3.Do(func() {
			typesOfV3.types = definitions(ref)
			for name, d := range typesOfV3.types {
				d.Schema = *util.WrapRefs(&d.Schema) // upstream does so again and again, and finds it done
				typesOfV3.types[name] = d
			}
		})
		own := maps.Clone(typesOfV3.types)
		for name, d := range own {
			if d.Schema.Extensions != nil {
				d.Schema.Extensions = maps.Clone(d.Schema.Extensions)
				own[name] = d
			}
		}
		return own
	}
}

// The paths of the descriptions.
const (
	openAPIV2Path = "/openapi/v2"
	openAPIV3Path = "/openapi/v3"
)

// describeLate makes each version of the description when somebody first asks for it. Upstream makes both when a
// server starts, which takes longer than all else together.
func describeLate(s *genericapiserver.GenericAPIServer, v2 *common.Config, v3 *common.OpenAPIV3Config, custom *customDescriptions, logger hclog.Logger) {
	description := cached.Once(cached.Func(func() (*spec.Swagger, string, error) {
		out, err := builder.BuildOpenAPISpecFromRoutes(restfuladapter.AdaptWebServices(s.Handler.GoRestfulContainer.RegisteredWebServices()), v2)
		if err != nil {
			return nil, "", err
		}
		out.Definitions = handler.PruneDefaults(out.Definitions)
		return out, "", nil
	}))
	handler.NewOpenAPIServiceLazy(custom.with(description)).RegisterOpenAPIVersionedService(openAPIV2Path, compressing{s.Handler.NonGoRestfulMux})

	third := sync.OnceValues(func() (http.Handler, *handler3.OpenAPIService) {
		m := mux.NewPathRecorderMux("openapi")
		return m, routes.OpenAPI{V3Config: v3}.InstallV3(s.Handler.GoRestfulContainer, m)
	})
	late := &compressOnce{next: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h, service := third()
		if err := custom.update(service); err != nil {
			logger.Error("custom kinds could not be described", "error", err)
		}
		h.ServeHTTP(w, r)
	})}
	s.Handler.NonGoRestfulMux.Handle(openAPIV3Path, late)
	s.Handler.NonGoRestfulMux.HandlePrefix(openAPIV3Path+"/", late)
}
