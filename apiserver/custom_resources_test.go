package apiserver

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	serverdiscovery "k8s.io/apiserver/pkg/endpoints/discovery"
	"k8s.io/apiserver/pkg/endpoints/discovery/aggregated"
	"k8s.io/client-go/discovery"
	"k8s.io/kubernetes/pkg/api/legacyscheme"

	"github.com/berth-dev/berth/codec"
	"github.com/berth-dev/berth/docs"
	"github.com/berth-dev/berth/fsm"
)

func definitionsClient(t testing.TB, s *testServer) clientset.Interface {
	t.Helper()
	c, err := clientset.NewForConfig(s.config(t, "root", "system:masters"))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// definition is of a kind in the versions v1, which is stored, and v1beta1.
func definition(plural, kind string, scope apiextensionsv1.ResourceScope) *apiextensionsv1.CustomResourceDefinition {
	const group = "custom.example.com"
	three, yes := apiextensionsv1.JSON{Raw: []byte("3")}, true
	return &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: plural + "." + group},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: group, Scope: scope,
			Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: plural, Singular: strings.ToLower(kind), Kind: kind, ListKind: kind + "List"},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{
				{Name: "v1", Served: true, Storage: true, Subresources: &apiextensionsv1.CustomResourceSubresources{Status: &apiextensionsv1.CustomResourceSubresourceStatus{}},
					Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{
						Type: "object", Properties: map[string]apiextensionsv1.JSONSchemaProps{
							"spec":   {Type: "object", Properties: map[string]apiextensionsv1.JSONSchemaProps{"size": {Type: "integer", Default: &three}, "ratio": {Type: "number"}}},
							"status": {Type: "object", XPreserveUnknownFields: &yes},
						},
					}}},
				{Name: "v1beta1", Served: true, Schema: &apiextensionsv1.CustomResourceValidation{
					OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{Type: "object", XPreserveUnknownFields: &yes}}},
			},
		},
	}
}

// define makes a custom kind, and establishes it as the leader's controllers do.
func define(t *testing.T, s *testServer, d *apiextensionsv1.CustomResourceDefinition) *apiextensionsv1.CustomResourceDefinition {
	t.Helper()
	api := definitionsClient(t, s).ApiextensionsV1().CustomResourceDefinitions()
	made, err := api.Create(t.Context(), d, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	made.Status.AcceptedNames = made.Spec.Names
	for _, c := range []apiextensionsv1.CustomResourceDefinitionConditionType{apiextensionsv1.NamesAccepted, apiextensionsv1.Established} {
		made.Status.Conditions = append(made.Status.Conditions, apiextensionsv1.CustomResourceDefinitionCondition{
			Type: c, Status: apiextensionsv1.ConditionTrue, LastTransitionTime: metav1.Now(), Reason: "Test",
		})
	}
	if made, err = api.UpdateStatus(t.Context(), made, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	return made
}

func customResource(plural, version string) schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: "custom.example.com", Version: version, Resource: plural}
}

func customObject(kind, version, name string, spec map[string]any) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "custom.example.com/" + version, "kind": kind,
		"metadata": map[string]any{"name": name, "labels": map[string]any{"test": "verbs"}}, "spec": spec,
	}}
}

func TestVerbsOfCustomKinds(t *testing.T) {
	s := start(t, newDouble(t), nil)
	client := dynamicClient(t, s)
	spec := map[string]any{"size": int64(1), "ratio": 0.25}
	define(t, s, definition("gadgets", "Gadget", apiextensionsv1.NamespaceScoped))
	gadgets := customResource("gadgets", "v1")
	verbs(t, client.Resource(gadgets).Namespace(s.namespace(t)), customObject("Gadget", "v1", "one", spec), customObject("Gadget", "v1", "two", spec))
	define(t, s, definition("globes", "Globe", apiextensionsv1.ClusterScoped))
	globes := client.Resource(customResource("globes", "v1beta1"))
	verbs(t, globes, customObject("Globe", "v1beta1", "one", spec), customObject("Globe", "v1beta1", "two", spec))
}

// TestCustomVersionsApart: who watches one version is told of objects in it, whoever
// else watches; and a definition that changes holds from the next request on.
func TestCustomVersionsApart(t *testing.T) {
	s := start(t, newDouble(t), nil)
	client, ns := dynamicClient(t, s), s.namespace(t)
	d := define(t, s, definition("gears", "Gear", apiextensionsv1.NamespaceScoped))
	old, now := client.Resource(customResource("gears", "v1beta1")).Namespace(ns), client.Resource(customResource("gears", "v1")).Namespace(ns)
	var watches []watch.Interface
	for _, api := range []interface {
		Watch(context.Context, metav1.ListOptions) (watch.Interface, error)
	}{old, now, old, now} {
		w, err := api.Watch(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		defer w.Stop()
		watches = append(watches, w)
	}
	for i := range 5 {
		name := fmt.Sprint("gear-", i)
		if _, err := now.Create(t.Context(), customObject("Gear", "v1", name, map[string]any{}), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		for at, w := range watches {
			want := []string{"custom.example.com/v1beta1", "custom.example.com/v1"}[at%2]
			if got := next(t, w).Object.(*unstructured.Unstructured); got.GetName() != name || got.GetAPIVersion() != want {
				t.Errorf("watch %d was told of %s in %s", at, got.GetName(), got.GetAPIVersion())
			}
		}
	}
	stored := func() string {
		row, _ := s.double.View().Objects.Get(fsm.ObjectKey(d.Name, ns, "gear-0"))
		return string(row.Value.(*codec.CustomObject).Content)
	}
	if got := stored(); got != `{"apiVersion":"custom.example.com/v1","kind":"Gear","spec":{"size":3}}` {
		t.Errorf("stored is %s", got)
	}

	// The other version is stored from now on, and knows a maximum.
	d.Spec.Versions[0].Storage, d.Spec.Versions[1].Storage = false, true
	five := 5.0
	size := d.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"].Properties["size"]
	size.Maximum = &five
	d.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"].Properties["size"] = size
	if _, err := definitionsClient(t, s).ApiextensionsV1().CustomResourceDefinitions().Update(t.Context(), d, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	_, err := now.Create(t.Context(), customObject("Gear", "v1", "large", map[string]any{"size": int64(9)}), metav1.CreateOptions{})
	wantStatus(t, err, 422, "should be less than or equal to 5")
	for _, w := range watches {
		for range w.ResultChan() { // until it ends
			t.Error("there was another event")
		}
	}
	got, err := old.Get(t.Context(), "gear-0", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err = old.Update(t.Context(), got, metav1.UpdateOptions{}); err != nil { // without a change
		t.Fatal(err)
	}
	if got := stored(); !strings.Contains(got, "v1beta1") {
		t.Errorf("stored is %s", got)
	}
}

// TestCustomKindsAreDiscovered: in both forms, and described in both versions, from the
// moment that they are established until they are gone.
func TestCustomKindsAreDiscovered(t *testing.T) {
	s := start(t, newDouble(t), nil)
	d := definition("globs", "Glob", apiextensionsv1.NamespaceScoped)
	d.Name, d.Spec.Group = "globs.found.example.com", "found.example.com"
	define(t, s, d)
	client := discovery.NewDiscoveryClientForConfigOrDie(s.config(t, "ann", "people"))
	list, err := client.ServerResourcesForGroupVersion("found.example.com/v1")
	if err != nil {
		t.Fatal(err)
	}
	if len(list.APIResources) != 2 || list.APIResources[0].Name != "globs" || list.APIResources[1].Name != "globs/status" {
		t.Errorf("the resources are %v", list.APIResources)
	}
	eventually(t, "the group", func() bool {
		groups, err := client.ServerGroups()
		if err != nil {
			t.Fatal(err)
		}
		for _, g := range groups.Groups {
			if g.Name == "found.example.com" {
				return g.PreferredVersion.Version == "v1" && len(g.Versions) == 2
			}
		}
		return false
	})
	root := httpClient(t, s.config(t, "root", "system:masters"))
	said := func(path string) string {
		_, body := get(t, root, "https://"+s.Addr().String()+path)
		return body
	}
	if !strings.Contains(said("/openapi/v2"), "com.example.found.v1.Glob") || !strings.Contains(said("/openapi/v3/apis/found.example.com/v1"), "com.example.found.v1.Glob") {
		t.Error("the kind is not described")
	}
	if err := definitionsClient(t, s).ApiextensionsV1().CustomResourceDefinitions().Delete(t.Context(), d.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(said("/openapi/v2"), "com.example.found") || strings.Contains(said("/openapi/v3"), "found.example.com") {
		t.Error("the kind is described and not there")
	}
	if status, _ := get(t, root, "https://"+s.Addr().String()+"/apis/found.example.com/v1"); status != 404 {
		t.Errorf("the group is answered with %d", status)
	}
}

// removals tells what a manager of discovery is asked to take away.
type removals struct {
	aggregated.ResourceManager
	of []string
}

// RemoveGroup implements aggregated.ResourceManager.
func (r *removals) RemoveGroup(name string) { r.of = append(r.of, name) }

// RemoveGroupVersion implements aggregated.ResourceManager.
func (r *removals) RemoveGroupVersion(gv metav1.GroupVersion) {
	r.of = append(r.of, gv.String())
	r.ResourceManager.RemoveGroupVersion(gv)
}

// TestDiscoveryOfACustomGroupStays: what is served on is found at every moment while the
// definitions change.
func TestDiscoveryOfACustomGroupStays(t *testing.T) {
	d := newDouble(t)
	gone := &removals{ResourceManager: aggregated.NewResourceManager("apis").WithSource(aggregated.CRDSource)}
	c := &customResources{
		discovery: discoveryManagers{groups: serverdiscovery.NewRootAPIsHandler(nil, legacyscheme.Codecs), aggregated: gone},
		shown:     map[string]map[string][]metav1.APIResource{},
	}
	crd := definition("globs", "Glob", apiextensionsv1.NamespaceScoped)
	crd.UID, crd.Status.AcceptedNames = "u", crd.Spec.Names
	crd.Status.Conditions = []apiextensionsv1.CustomResourceDefinitionCondition{{Type: apiextensionsv1.Established, Status: apiextensionsv1.ConditionTrue}}
	put := func(create bool, want ...string) {
		t.Helper()
		raw, err := crd.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		d.must(t, &fsm.PutObject{Resource: fsm.CustomResourceDefinitions, Raw: raw, Create: create})
		gone.of = nil
		if c.discover(d.View(), crd.Spec.Group); !slices.Equal(gone.of, want) {
			t.Errorf("%q were taken away, want %q", gone.of, want)
		}
	}
	put(true)
	crd.Spec.Names.Categories, crd.Status.AcceptedNames.Categories = []string{"all"}, []string{"all"}
	put(false)
	crd.Spec.Versions[1].Served = false
	put(false, "custom.example.com/v1beta1")
	crd.Status.Conditions = nil
	put(false, "custom.example.com/v1")
	if len(c.shown) != 0 {
		t.Errorf("of what is not served %v is kept", c.shown)
	}
}

// TestCustomKindsThatAreRefused: those of groups that are served already, and all as long
// as a server does not know them.
func TestCustomKindsThatAreRefused(t *testing.T) {
	d := definition("things", "Thing", apiextensionsv1.NamespaceScoped)
	d.Name, d.Spec.Group = "things.berth.dev", "berth.dev"
	_, err := definitionsClient(t, start(t, newDouble(t), nil)).ApiextensionsV1().CustomResourceDefinitions().Create(t.Context(), d, metav1.CreateOptions{})
	wantStatus(t, err, 422, "Berth serves the group berth.dev itself")
	older := start(t, newDoubleAt(t, fsm.SinceDefinitions-1), nil)
	_, err = definitionsClient(t, older).ApiextensionsV1().CustomResourceDefinitions().Create(t.Context(), definition("things", "Thing", "Cluster"), metav1.CreateOptions{})
	wantStatus(t, err, 400, "does not know the resource")
}

// TestCustomOwners: who is deleted with a propagation says so to its dependents by its
// finalizers, as every owner does.
func TestCustomOwners(t *testing.T) {
	s := start(t, newDouble(t), nil)
	client, ns := dynamicClient(t, s), s.namespace(t)
	define(t, s, definition("owners", "Owner", apiextensionsv1.NamespaceScoped))
	api := client.Resource(customResource("owners", "v1")).Namespace(ns)
	for policy, want := range map[metav1.DeletionPropagation]string{
		metav1.DeletePropagationForeground: metav1.FinalizerDeleteDependents, metav1.DeletePropagationOrphan: metav1.FinalizerOrphanDependents,
	} {
		name := strings.ToLower(string(policy))
		if _, err := api.Create(t.Context(), customObject("Owner", "v1", name, nil), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		if err := api.Delete(t.Context(), name, metav1.DeleteOptions{PropagationPolicy: &policy}); err != nil {
			t.Fatal(err)
		}
		got, err := api.Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if m, err := meta.Accessor(got); err != nil || m.GetDeletionTimestamp() == nil || len(m.GetFinalizers()) != 1 || m.GetFinalizers()[0] != want {
			t.Errorf("%s: %v", policy, got.Object["metadata"])
		}
		if _, err := api.Patch(t.Context(), name, types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
		_, err = api.Get(t.Context(), name, metav1.GetOptions{})
		wantStatus(t, err, 404, "not found")
	}
}

func definitionBound(t *testing.T, r docs.Row) {
	most := int(r.Numbers(t, 1)[0])
	api := definitionsClient(t, start(t, newDouble(t), nil)).ApiextensionsV1().CustomResourceDefinitions()
	d := definition("large", "Large", apiextensionsv1.ClusterScoped)
	schema := d.Spec.Versions[0].Schema.OpenAPIV3Schema
	schema.Description = strings.Repeat("x", most)
	_, err := api.Create(t.Context(), d, metav1.CreateOptions{})
	wantStatus(t, err, 413, fmt.Sprintf("may have %d", most))
	schema.Description = strings.Repeat("x", most-8<<10)
	if _, err := api.Create(t.Context(), d, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := api.Delete(t.Context(), d.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
}
