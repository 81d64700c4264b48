package apiserver

import (
	"fmt"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/openapi"
)

// lateSchemas is a client of the API of this process, which asks for a schema when a policy that
// changes objects needs it: upstream looks for schemas every few seconds, whether there are policies or
// not, and a server makes them when somebody first asks.
type lateSchemas struct {
	kubernetes.Interface
	names *kindNames
}

func withLateSchemas(client kubernetes.Interface, names *kindNames) kubernetes.Interface {
	return lateSchemas{client, names}
}

// Discovery implements kubernetes.Interface.
func (l lateSchemas) Discovery() discovery.DiscoveryInterface {
	return lateDiscovery{l.Interface.Discovery(), l.names}
}

type lateDiscovery struct {
	discovery.DiscoveryInterface
	names *kindNames
}

// OpenAPIV3 implements discovery.OpenAPIV3SchemaInterface.
func (l lateDiscovery) OpenAPIV3() openapi.Client {
	return latePaths{l.DiscoveryInterface, l.names}
}

type latePaths struct {
	from  discovery.DiscoveryInterface
	names *kindNames
}

// Paths implements openapi.Client: a group has another path whenever a definition in it changes.
func (l latePaths) Paths() (map[string]openapi.GroupVersion, error) {
	versions := map[schema.GroupVersion]string{}
	for _, gv := range l.names.served() {
		versions[gv] = ""
	}
	l.names.view().Definitions(func(d *apiextensionsv1.CustomResourceDefinition) bool {
		for _, v := range d.Spec.Versions {
			versions[schema.GroupVersion{Group: d.Spec.Group, Version: v.Name}] += "/" + string(d.UID) + "/" + d.ResourceVersion
		}
		return true
	})
	out := map[string]openapi.GroupVersion{}
	for gv, state := range versions {
		path := "apis/" + gv.String()
		if gv.Group == "" {
			path = "api/" + gv.Version
		}
		out[path] = lateSchema{l.from, path, state}
	}
	return out, nil
}

type lateSchema struct {
	from        discovery.DiscoveryInterface
	path, state string
}

// Schema implements openapi.GroupVersion.
func (s lateSchema) Schema(contentType string) ([]byte, error) {
	paths, err := s.from.OpenAPIV3().Paths()
	if err != nil {
		return nil, err
	}
	found, ok := paths[s.path]
	if !ok {
		return nil, fmt.Errorf("%s has no schema", s.path)
	}
	return found.Schema(contentType)
}

// ServerRelativeURL implements openapi.GroupVersion.
func (s lateSchema) ServerRelativeURL() string { return s.path + s.state }
