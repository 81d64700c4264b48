package apiserver

import (
	"context"
	"fmt"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
)

// everyKind are the kinds that users write, with a manifest of each.
var everyKind = []struct {
	resource   schema.GroupVersionResource
	namespaced bool
	manifest   string // in the flow style of YAML, that is JSON
}{
	{schema.GroupVersionResource{Version: "v1", Resource: "pods"}, true, `"spec": {"containers": [{"name": "c", "image": "i"}]}`},
	{schema.GroupVersionResource{Version: "v1", Resource: "nodes"}, false, `"spec": {"taints": [{"key": "k", "effect": "NoSchedule"}]}`},
	{schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}, true, `"data": {"k": "v"}`},
	{schema.GroupVersionResource{Version: "v1", Resource: "secrets"}, true, `"data": {"k": "dg=="}`},
	{schema.GroupVersionResource{Version: "v1", Resource: "serviceaccounts"}, true, `"automountServiceAccountToken": false`},
	{schema.GroupVersionResource{Version: "v1", Resource: "services"}, true, `"spec": {"clusterIP": "None", "ports": [{"port": 80}]}`},
	{schema.GroupVersionResource{Version: "v1", Resource: "podtemplates"}, true, `"template": {"spec": {"containers": [{"name": "c", "image": "i"}]}}`},
	{schema.GroupVersionResource{Version: "v1", Resource: "events"}, true, `"involvedObject": {"namespace": "NS", "name": "x"}, "reason": "R"`},
	{schema.GroupVersionResource{Group: "coordination.k8s.io", Version: "v1", Resource: "leases"}, true, `"spec": {"holderIdentity": "me"}`},
	{schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "replicasets"}, true,
		`"spec": {"replicas": 0, "selector": {"matchLabels": {"a": "b"}}, "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}}`},
	{schema.GroupVersionResource{Group: "policy", Version: "v1", Resource: "poddisruptionbudgets"}, true,
		`"spec": {"minAvailable": "50%", "selector": {"matchLabels": {"a": "b"}}}`},
	{schema.GroupVersionResource{Group: "scheduling.k8s.io", Version: "v1", Resource: "priorityclasses"}, false, `"value": 7`},
	{schema.GroupVersionResource{Group: "node.k8s.io", Version: "v1", Resource: "runtimeclasses"}, false, `"handler": "vm", "overhead": {"podFixed": {"cpu": "250m"}}`},
}

var kindOf = map[string]string{
	"pods": "Pod", "nodes": "Node", "configmaps": "ConfigMap", "secrets": "Secret", "serviceaccounts": "ServiceAccount",
	"services": "Service", "events": "Event", "leases": "Lease", "replicasets": "ReplicaSet", "poddisruptionbudgets": "PodDisruptionBudget", "priorityclasses": "PriorityClass",
	"runtimeclasses": "RuntimeClass", "podtemplates": "PodTemplate",
}

func dynamicClient(t testing.TB, s *testServer) dynamic.Interface {
	t.Helper()
	return s.dynamic(t, "root", "system:masters")
}

func object(t testing.TB, gvr schema.GroupVersionResource, name, rest string) *unstructured.Unstructured {
	t.Helper()
	apiVersion := strings.TrimPrefix(gvr.Group+"/"+gvr.Version, "/")
	u := new(unstructured.Unstructured)
	text := fmt.Sprintf(`{"apiVersion": %q, "kind": %q, "metadata": {"name": %q, "labels": {"test": "verbs"}}, %s}`, apiVersion, kindOf[gvr.Resource], name, rest)
	if err := u.UnmarshalJSON([]byte(text)); err != nil {
		t.Fatal(err)
	}
	return u
}

func TestVerbsOfEveryKind(t *testing.T) {
	s := share(t)
	client := dynamicClient(t, s)
	for _, k := range everyKind {
		t.Run(k.resource.Resource, func(t *testing.T) {
			ns, prefix := "", "verbs-"
			if k.namespaced {
				ns = s.namespace(t)
			}
			rest := strings.ReplaceAll(k.manifest, "NS", ns)
			var api dynamic.ResourceInterface = client.Resource(k.resource)
			if ns != "" {
				api = client.Resource(k.resource).Namespace(ns)
			}
			verbs(t, api, object(t, k.resource, prefix+"one", rest), object(t, k.resource, prefix+"two", rest))
		})
	}
}

// verbs puts one object through every verb and looks at what a watch tells of
// it.
func verbs(t *testing.T, api dynamic.ResourceInterface, one, two *unstructured.Unstructured) {
	ctx := context.Background()
	before, err := api.List(ctx, selected)
	if err != nil {
		t.Fatal(err)
	}
	w, err := api.Watch(ctx, metav1.ListOptions{LabelSelector: selected.LabelSelector, ResourceVersion: before.GetResourceVersion()})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	v := &verbTest{t, api, w, strings.HasPrefix(one.GetAPIVersion(), "custom.")}
	got := v.create(one)
	v.update(got)
	v.patch(one.GetName())
	v.apply(one, two)
	v.delete(one.GetName(), two.GetName())
}

var selected = metav1.ListOptions{LabelSelector: "test=verbs"}

type verbTest struct {
	*testing.T
	api   dynamic.ResourceInterface
	watch watch.Interface
	// custom objects have no strategic patches.
	custom bool
}

// expect takes the next event; an object may be marked as terminating before it
// is deleted.
func (v *verbTest) expect(want watch.EventType, name string) {
	v.Helper()
	e := next(v, v.watch)
	for e.Type == watch.Modified && want == watch.Deleted {
		e = next(v, v.watch)
	}
	if u, ok := e.Object.(*unstructured.Unstructured); !ok || e.Type != want || u.GetName() != name {
		v.Fatalf("got %s %v, want %s of %s", e.Type, e.Object, want, name)
	}
}

func (v *verbTest) create(one *unstructured.Unstructured) *unstructured.Unstructured {
	ctx, name := context.Background(), one.GetName()
	created, err := v.api.Create(ctx, one, metav1.CreateOptions{})
	if err != nil {
		v.Fatal(err)
	}
	if created.GetUID() == "" || created.GetResourceVersion() == "" || created.GetCreationTimestamp().Time.IsZero() || len(created.GetManagedFields()) == 0 {
		v.Fatalf("unfinished: %v", created)
	}
	v.expect(watch.Added, name)
	_, err = v.api.Create(ctx, one, metav1.CreateOptions{})
	wantStatus(v, err, 409, "already exists")
	got, err := v.api.Get(ctx, name, metav1.GetOptions{})
	if err != nil || got.GetUID() != created.GetUID() {
		v.Fatalf("got %v, %v", got, err)
	}
	list, err := v.api.List(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + name})
	if err != nil || len(list.Items) != 1 {
		v.Fatalf("got %v, %v", list, err)
	}
	return got
}

func (v *verbTest) update(got *unstructured.Unstructured) {
	ctx := context.Background()
	got.SetLabels(map[string]string{"test": "verbs", "more": "1"})
	updated, err := v.api.Update(ctx, got, metav1.UpdateOptions{})
	if err != nil {
		v.Fatal(err)
	}
	v.expect(watch.Modified, got.GetName())
	_, err = v.api.Update(ctx, got, metav1.UpdateOptions{})
	wantStatus(v, err, 409, "the object has been modified")
	same, err := v.api.Update(ctx, updated, metav1.UpdateOptions{})
	if err != nil || same.GetResourceVersion() != updated.GetResourceVersion() {
		v.Fatalf("nothing changed, and the revision went from %s to %s: %v", updated.GetResourceVersion(), same.GetResourceVersion(), err)
	}
}

func (v *verbTest) patch(name string) {
	for _, p := range []struct {
		kind types.PatchType
		body string
	}{
		{types.MergePatchType, `{"metadata":{"annotations":{"merge":"1"}}}`},
		{types.StrategicMergePatchType, `{"metadata":{"annotations":{"strategic":"1"}}}`},
		{types.JSONPatchType, `[{"op":"replace","path":"/metadata/labels/more","value":"2"}]`},
	} {
		if v.custom && p.kind == types.StrategicMergePatchType {
			continue
		}
		if _, err := v.api.Patch(context.Background(), name, p.kind, []byte(p.body), metav1.PatchOptions{}); err != nil {
			v.Fatalf("%s: %v", p.kind, err)
		}
		v.expect(watch.Modified, name)
	}
}

// apply: a field that another manager owns is a conflict unless forced, and what
// is not there is made.
func (v *verbTest) apply(one, two *unstructured.Unstructured) {
	ctx, name := context.Background(), one.GetName()
	applied := one.DeepCopy()
	applied.SetLabels(map[string]string{"test": "verbs", "more": "applied"})
	_, err := v.api.Apply(ctx, name, applied, metav1.ApplyOptions{FieldManager: "applier"})
	wantStatus(v, err, 409, "conflict")
	after, err := v.api.Apply(ctx, name, applied, metav1.ApplyOptions{FieldManager: "applier", Force: true})
	if err != nil || after.GetLabels()["more"] != "applied" {
		v.Fatalf("got %v, %v", after, err)
	}
	v.expect(watch.Modified, name)
	if _, err := v.api.Create(ctx, two, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}); err != nil {
		v.Fatal(err)
	}
	if _, err := v.api.Apply(ctx, two.GetName(), two, metav1.ApplyOptions{FieldManager: "applier"}); err != nil {
		v.Fatal(err)
	}
	v.expect(watch.Added, two.GetName())
}

func (v *verbTest) delete(one, two string) {
	ctx := context.Background()
	if err := v.api.Delete(ctx, one, metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}}); err != nil {
		v.Fatal(err)
	}
	wrong := types.UID("wrong")
	err := v.api.Delete(ctx, one, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &wrong}})
	wantStatus(v, err, 409, "UID")
	if err := v.api.Delete(ctx, one, metav1.DeleteOptions{}); err != nil {
		v.Fatal(err)
	}
	v.expect(watch.Deleted, one)
	if err := v.api.DeleteCollection(ctx, metav1.DeleteOptions{}, selected); err != nil {
		v.Fatal(err)
	}
	v.expect(watch.Deleted, two)
	if _, err := v.api.Get(ctx, one, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		v.Fatalf("got %v", err)
	}
}
