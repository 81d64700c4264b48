package apiserver

import (
	"net/http"
	"slices"
	"strings"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/apiserver/pkg/endpoints/discovery"
	"k8s.io/apiserver/pkg/endpoints/discovery/aggregated"
	genericapiserver "k8s.io/apiserver/pkg/server"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/kubernetes/pkg/api/legacyscheme"

	"github.com/berth-dev/berth/fsm"
)

// discoveryManagers hold what /apis says, in its two forms.
type discoveryManagers struct {
	groups     discovery.GroupManager
	aggregated aggregated.ResourceManager // nil: not served
}

func newDiscoveryManagers(s *genericapiserver.GenericAPIServer) discoveryManagers {
	m := discoveryManagers{groups: s.DiscoveryGroupManager}
	if s.AggregatedDiscoveryGroupManager != nil {
		m.aggregated = s.AggregatedDiscoveryGroupManager.WithSource(aggregated.CRDSource)
	}
	return m
}

// Where custom groups stand among the others, as in Kubernetes.
const customGroupPriority, customVersionPriority = 1000, 100

// eachServed calls f for every version that is served of an established custom kind of a
// group; "" stands for all groups.
func eachServed(v *fsm.View, group string, f func(crd *apiextensionsv1.CustomResourceDefinition, version *apiextensionsv1.CustomResourceDefinitionVersion)) {
	v.Definitions(func(crd *apiextensionsv1.CustomResourceDefinition) bool {
		if group != "" && crd.Spec.Group != group || !apihelpers.IsCRDConditionTrue(crd, apiextensionsv1.Established) {
			return true
		}
		for i := range crd.Spec.Versions {
			if crd.Spec.Versions[i].Served {
				f(crd, &crd.Spec.Versions[i])
			}
		}
		return true
	})
}

// customGroup describes a group, with the resources of each of its versions, the preferred
// one first; what the resources are of a version that others serve, they say. It has no versions if nothing of it is served.
func customGroup(v *fsm.View, group string) (metav1.APIGroup, map[string][]metav1.APIResource) {
	resources := map[string][]metav1.APIResource{}
	eachServed(v, group, func(crd *apiextensionsv1.CustomResourceDefinition, version *apiextensionsv1.CustomResourceDefinitionVersion) {
		resources[version.Name] = append(resources[version.Name], customAPIResources(crd, version)...)
	})
	versions := map[string]bool{}
	for name := range resources {
		versions[name] = true
	}
	v.EachAggregated(func(s *apiregistrationv1.APIService) bool {
		if s.Spec.Group == group {
			versions[s.Spec.Version] = true
		}
		return true
	})
	out := metav1.APIGroup{Name: group}
	for name := range versions {
		out.Versions = append(out.Versions, metav1.GroupVersionForDiscovery{GroupVersion: group + "/" + name, Version: name})
	}
	slices.SortFunc(out.Versions, func(a, b metav1.GroupVersionForDiscovery) int {
		return version.CompareKubeAwareVersionStrings(b.Version, a.Version)
	})
	if len(out.Versions) > 0 {
		out.PreferredVersion = out.Versions[0]
	}
	return out, resources
}

var partVerbs = metav1.Verbs{"get", "patch", "update"}

// customAPIResources is what one version of a kind is served as: itself, and its
// subresources.
func customAPIResources(crd *apiextensionsv1.CustomResourceDefinition, version *apiextensionsv1.CustomResourceDefinitionVersion) []metav1.APIResource {
	names, namespaced := &crd.Status.AcceptedNames, crd.Spec.Scope == apiextensionsv1.NamespaceScoped
	verbs := metav1.Verbs{"delete", "deletecollection", "get", "list", "patch", "create", "update", "watch"}
	if crd.DeletionTimestamp != nil {
		verbs = metav1.Verbs{"delete", "deletecollection", "get", "list", "watch"}
	}
	whole := metav1.APIResource{
		Name: names.Plural, SingularName: names.Singular, Namespaced: namespaced, Kind: names.Kind, Verbs: verbs,
		ShortNames: names.ShortNames, Categories: names.Categories,
	}
	for i := range crd.Spec.Versions {
		if crd.Spec.Versions[i].Storage {
			whole.StorageVersionHash = discovery.StorageVersionHash(crd.Spec.Group, crd.Spec.Versions[i].Name, names.Kind)
		}
	}
	out := []metav1.APIResource{whole}
	if s := version.Subresources; s != nil && s.Status != nil {
		out = append(out, metav1.APIResource{Name: names.Plural + "/status", Namespaced: namespaced, Kind: names.Kind, Verbs: partVerbs})
	}
	if s := version.Subresources; s != nil && s.Scale != nil {
		out = append(out, metav1.APIResource{
			Name: names.Plural + "/scale", Namespaced: namespaced, Verbs: partVerbs,
			Group: autoscalingv1.GroupName, Version: autoscalingv1.SchemeGroupVersion.Version, Kind: "Scale",
		})
	}
	return out
}

// discover has /apis say what is served of a group now. It is called by one goroutine.
func (c *customResources) discover(v *fsm.View, group string) {
	if c.builtIn[group] {
		return
	}
	info, resources := customGroup(v, group)
	if len(info.Versions) == 0 {
		c.discovery.groups.RemoveGroup(group)
	} else {
		c.discovery.groups.AddGroup(info)
	}
	if c.discovery.aggregated == nil {
		return
	}
	// What is served on is there at every moment: who looks in between would take it for gone.
	for version := range c.shown[group] {
		if resources[version] == nil {
			c.discovery.aggregated.RemoveGroupVersion(metav1.GroupVersion{Group: group, Version: version})
		}
	}
	if c.shown[group] = resources; len(resources) == 0 {
		delete(c.shown, group)
	}
	for _, version := range info.Versions {
		if resources[version.Version] == nil {
			continue // others serve it
		}
		c.discovery.aggregated.AddGroupVersion(group, apidiscoveryv2.APIVersionDiscovery{
			Version: version.Version, Freshness: apidiscoveryv2.DiscoveryFreshnessCurrent,
			Resources: aggregatedResources(schema.GroupVersion{Group: group, Version: version.Version}, resources[version.Version]),
		})
		c.discovery.aggregated.SetGroupVersionPriority(metav1.GroupVersion{Group: group, Version: version.Version}, customGroupPriority, customVersionPriority)
	}
}

// aggregatedResources are the same in the other form: subresources in what they are parts of.
func aggregatedResources(gv schema.GroupVersion, list []metav1.APIResource) []apidiscoveryv2.APIResourceDiscovery {
	var out []apidiscoveryv2.APIResourceDiscovery
	for _, r := range list {
		kind := &metav1.GroupVersionKind{Group: gv.Group, Version: gv.Version, Kind: r.Kind}
		if r.Group != "" {
			kind.Group, kind.Version = r.Group, r.Version
		}
		if _, part, ok := strings.Cut(r.Name, "/"); ok {
			whole := &out[len(out)-1]
			whole.Subresources = append(whole.Subresources, apidiscoveryv2.APISubresourceDiscovery{Subresource: part, ResponseKind: kind, Verbs: r.Verbs})
			continue
		}
		scope := apidiscoveryv2.ScopeCluster
		if r.Namespaced {
			scope = apidiscoveryv2.ScopeNamespace
		}
		out = append(out, apidiscoveryv2.APIResourceDiscovery{
			Resource: r.Name, SingularResource: r.SingularName, Scope: scope, ResponseKind: kind, Verbs: r.Verbs,
			ShortNames: r.ShortNames, Categories: r.Categories,
		})
	}
	return out
}

// serveDiscovery answers /apis/GROUP and /apis/GROUP/VERSION of custom groups.
func (c *customResources) serveDiscovery(w http.ResponseWriter, r *http.Request) {
	path := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	if len(path) != 2 && len(path) != 3 || c.builtIn[path[1]] {
		c.next.ServeHTTP(w, r)
		return
	}
	group, resources := customGroup(c.definitions.view(), path[1])
	switch {
	case len(group.Versions) == 0, len(path) == 3 && resources[path[2]] == nil:
		c.next.ServeHTTP(w, r)
	case len(path) == 2:
		discovery.NewAPIGroupHandler(legacyscheme.Codecs, group).ServeHTTP(w, r)
	default:
		list := resources[path[2]]
		gv := schema.GroupVersion{Group: group.Name, Version: path[2]}
		discovery.NewAPIVersionHandler(legacyscheme.Codecs, gv, discovery.APIResourceListerFunc(func() []metav1.APIResource { return list })).ServeHTTP(w, r)
	}
}
