package apiserver

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	openapibuilder "k8s.io/apiextensions-apiserver/pkg/controller/openapi/builder"
	genericapiserver "k8s.io/apiserver/pkg/server"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/kube-openapi/pkg/cached"
	"k8s.io/kube-openapi/pkg/handler"
	"k8s.io/kube-openapi/pkg/handler3"
	"k8s.io/kube-openapi/pkg/spec3"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"github.com/berth-dev/berth/fsm"
)

// customDescriptions adds custom kinds to the descriptions of all others. They follow the
// definitions when somebody asks.
type customDescriptions struct {
	view    func() *fsm.View
	builtIn map[string]bool

	second struct {
		sync.Mutex
		of      string // which definitions the whole describes
		whole   *spec.Swagger
		already map[string]*spec.Swagger // by definition and version as they are
	}
	third struct {
		sync.Mutex
		of map[string]string // path of a group's version: which definitions it describes
	}
}

// described is one version of a custom kind. key tells it from what it was before.
type described struct {
	crd          *apiextensionsv1.CustomResourceDefinition
	version, key string
}

// served are the versions of custom kinds, in the order of their names.
func (c *customDescriptions) served() []described {
	var out []described
	eachServed(c.view(), "", func(crd *apiextensionsv1.CustomResourceDefinition, version *apiextensionsv1.CustomResourceDefinitionVersion) {
		if !c.builtIn[crd.Spec.Group] {
			key := fmt.Sprintf("%s %d %v %s;", crd.UID, crd.Generation, crd.Status.AcceptedNames, version.Name)
			out = append(out, described{crd, version.Name, key})
		}
	})
	return out
}

func keysOf(list []described) string {
	var b strings.Builder
	for _, d := range list {
		b.WriteString(d.key)
	}
	return b.String()
}

// with is the second version of the description: that of all other kinds, and the custom
// ones.
func (c *customDescriptions) with(others cached.Value[*spec.Swagger]) cached.Value[*spec.Swagger] {
	return cached.Func(func() (*spec.Swagger, string, error) {
		static, _, err := others.Get()
		if err != nil {
			return nil, "", err
		}
		c.second.Lock()
		defer c.second.Unlock()
		now := c.served()
		of := keysOf(now)
		if c.second.whole != nil && c.second.of == of {
			return c.second.whole, of, nil
		}
		next := map[string]*spec.Swagger{}
		var specs []*spec.Swagger
		for _, d := range now {
			s := c.second.already[d.key]
			if s == nil {
				if s, err = openapibuilder.BuildOpenAPIV2(d.crd, d.version, openapibuilder.Options{V2: true, IncludeSelectableFields: true}); err != nil {
					return nil, "", fmt.Errorf("describe %s in version %s: %w", d.crd.Name, d.version, err)
				}
				s.Definitions = handler.PruneDefaults(s.Definitions)
			}
			next[d.key] = s
			specs = append(specs, s)
		}
		whole, err := openapibuilder.MergeSpecs(static, specs...)
		if err != nil {
			return nil, "", err
		}
		c.second.of, c.second.whole, c.second.already = of, whole, next
		return whole, of, nil
	})
}

// elsewhere are the paths of what others describe, with what tells each from what it was before.
func (c *customDescriptions) elsewhere() map[string]string {
	out := map[string]string{}
	c.view().EachAggregated(func(s *apiregistrationv1.APIService) bool {
		if !c.builtIn[s.Spec.Group] {
			out[strings.TrimPrefix(genericapiserver.APIGroupPrefix, "/")+"/"+s.Spec.Group+"/"+s.Spec.Version] = string(s.UID) + " " + s.ResourceVersion
		}
		return true
	})
	return out
}

// update brings the third version of the description up to date, which is one by group and
// version.
func (c *customDescriptions) update(service *handler3.OpenAPIService) error {
	c.third.Lock()
	defer c.third.Unlock()
	now := map[string][]described{}
	for _, d := range c.served() {
		path := strings.TrimPrefix(genericapiserver.APIGroupPrefix, "/") + "/" + d.crd.Spec.Group + "/" + d.version
		now[path] = append(now[path], d)
	}
	elsewhere := c.elsewhere()
	for path := range c.third.of {
		if now[path] == nil && elsewhere[path] == "" {
			service.DeleteGroupVersion(path)
			delete(c.third.of, path)
		}
	}
	if c.third.of == nil {
		c.third.of = map[string]string{}
	}
	for _, path := range slices.Sorted(maps.Keys(elsewhere)) {
		of := elsewhere[path]
		delete(now, path)
		if c.third.of[path] != of {
			// It is named here, and those who serve it are asked for it.
			service.UpdateGroupVersion(path, &spec3.OpenAPI{Version: "3.0.0", Info: &spec.Info{InfoProps: spec.InfoProps{Title: path, Version: of}}})
			c.third.of[path] = of
		}
	}
	for _, path := range slices.Sorted(maps.Keys(now)) {
		of := keysOf(now[path])
		if c.third.of[path] == of {
			continue
		}
		var specs []*spec3.OpenAPI
		for _, d := range now[path] {
			s, err := openapibuilder.BuildOpenAPIV3(d.crd, d.version, openapibuilder.Options{IncludeSelectableFields: true})
			if err != nil {
				return fmt.Errorf("describe %s in version %s: %w", d.crd.Name, d.version, err)
			}
			specs = append(specs, s)
		}
		merged, err := openapibuilder.MergeSpecsV3(specs...)
		if err != nil {
			return err
		}
		service.UpdateGroupVersion(path, merged)
		c.third.of[path] = of
	}
	return nil
}
