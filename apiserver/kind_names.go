package apiserver

import (
	"slices"
	"sync"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/kubernetes/pkg/registry/admissionregistration/resolver"

	"github.com/berth-dev/berth/fsm"
)

// kindNames say which resource a kind is: of those that Berth serves itself, and of
// custom ones as this server's view has them.
type kindNames struct {
	meta.RESTMapper // of those that Berth serves
	view            func() *fsm.View

	mu       sync.RWMutex
	built    *meta.DefaultRESTMapper
	versions []schema.GroupVersion
}

var (
	_ meta.RESTMapper           = (*kindNames)(nil)
	_ resolver.ResourceResolver = (*kindNames)(nil)
)

func newKindNames(view func() *fsm.View) *kindNames {
	built := meta.NewDefaultRESTMapper(nil)
	return &kindNames{RESTMapper: built, view: view, built: built}
}

// learn adds what a group serves.
func (k *kindNames) learn(info *genericapiserver.APIGroupInfo) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, version := range info.PrioritizedVersions {
		k.versions = append(k.versions, version)
		for name, storage := range info.VersionedResourcesStorageMap[version.Version] {
			scoper, ok := storage.(rest.Scoper)
			if !ok {
				continue // a part of another resource
			}
			kinds, _, err := info.Scheme.ObjectKinds(storage.New())
			if err != nil || len(kinds) == 0 {
				continue
			}
			scope := meta.RESTScopeRoot
			if scoper.NamespaceScoped() {
				scope = meta.RESTScopeNamespace
			}
			k.built.AddSpecific(version.WithKind(kinds[0].Kind), version.WithResource(name), version.WithResource(name), scope)
		}
	}
}

// served are the groups and versions that Berth serves itself.
func (k *kindNames) served() []schema.GroupVersion {
	k.mu.RLock()
	defer k.mu.RUnlock()
	return slices.Clone(k.versions)
}

// RESTMapping implements meta.RESTMapper.
func (k *kindNames) RESTMapping(kind schema.GroupKind, versions ...string) (found *meta.RESTMapping, err error) {
	k.view().Definitions(func(d *apiextensionsv1.CustomResourceDefinition) bool {
		if d.Spec.Group != kind.Group || d.Status.AcceptedNames.Kind != kind.Kind {
			return true
		}
		for _, v := range d.Spec.Versions {
			if v.Served && (len(versions) == 0 || slices.Contains(versions, v.Name)) {
				found = &meta.RESTMapping{
					Resource:         schema.GroupVersionResource{Group: kind.Group, Version: v.Name, Resource: d.Spec.Names.Plural},
					GroupVersionKind: kind.WithVersion(v.Name), Scope: meta.RESTScopeNamespace,
				}
				if d.Spec.Scope == apiextensionsv1.ClusterScoped {
					found.Scope = meta.RESTScopeRoot
				}
			}
		}
		return found == nil
	})
	if found != nil {
		return found, nil
	}
	k.mu.RLock()
	defer k.mu.RUnlock()
	return k.built.RESTMapping(kind, versions...)
}

// Resolve implements resolver.ResourceResolver.
func (k *kindNames) Resolve(kind schema.GroupVersionKind) (schema.GroupVersionResource, error) {
	m, err := k.RESTMapping(kind.GroupKind(), kind.Version)
	if err != nil {
		return schema.GroupVersionResource{}, err
	}
	return m.Resource, nil
}
