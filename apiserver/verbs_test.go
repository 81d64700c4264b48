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
	{schema.GroupVersionResource{Version: "v1", Resource: "events"}, true, `"involvedObject": {"namespace": "NS", "name": "x"}, "reason": "R"`},
	{schema.GroupVersionResource{Group: "coordination.k8s.io", Version: "v1", Resource: "leases"}, true, `"spec": {"holderIdentity": "me"}`},
	{schema.GroupVersionResource{Group: "scheduling.k8s.io", Version: "v1", Resource: "priorityclasses"}, false, `"value": 7`},
}

var kindOf = map[string]string{
	"pods": "Pod", "nodes": "Node", "configmaps": "ConfigMap", "secrets": "Secret", "serviceaccounts": "ServiceAccount",
	"services": "Service", "events": "Event", "leases": "Lease", "priorityclasses": "PriorityClass",
}

func dynamicClient(t testing.TB, s *testServer) dynamic.Interface {
	t.Helper()
	c, err := dynamic.NewForConfig(s.config(t, "ann"))
	if err != nil {
		t.Fatal(err)
	}
	return c
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
	selector := metav1.ListOptions{LabelSelector: "test=verbs"}
	before, err := api.List(ctx, selector)
	if err != nil {
		t.Fatal(err)
	}
	w, err := api.Watch(ctx, metav1.ListOptions{LabelSelector: "test=verbs", ResourceVersion: before.GetResourceVersion()})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	expect := func(want watch.EventType, name string) {
		t.Helper()
		for {
			e := <-w.ResultChan()
			if e.Type == watch.Modified && want == watch.Deleted {
				continue // marked as terminating first
			}
			if u, ok := e.Object.(*unstructured.Unstructured); !ok || e.Type != want || u.GetName() != name {
				t.Fatalf("got %s %v, want %s of %s", e.Type, e.Object, want, name)
			}
			return
		}
	}

	name := one.GetName()
	created, err := api.Create(ctx, one, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if created.GetUID() == "" || created.GetResourceVersion() == "" || created.GetCreationTimestamp().Time.IsZero() || len(created.GetManagedFields()) == 0 {
		t.Fatalf("unfinished: %v", created)
	}
	expect(watch.Added, name)
	_, err = api.Create(ctx, one, metav1.CreateOptions{})
	wantStatus(t, err, 409, "already exists")

	got, err := api.Get(ctx, name, metav1.GetOptions{})
	if err != nil || got.GetUID() != created.GetUID() {
		t.Fatalf("got %v, %v", got, err)
	}
	list, err := api.List(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + name})
	if err != nil || len(list.Items) != 1 {
		t.Fatalf("got %v, %v", list, err)
	}

	got.SetLabels(map[string]string{"test": "verbs", "more": "1"})
	updated, err := api.Update(ctx, got, metav1.UpdateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	expect(watch.Modified, name)
	_, err = api.Update(ctx, got, metav1.UpdateOptions{})
	wantStatus(t, err, 409, "the object has been modified")
	same, err := api.Update(ctx, updated, metav1.UpdateOptions{})
	if err != nil || same.GetResourceVersion() != updated.GetResourceVersion() {
		t.Fatalf("nothing changed, and the revision went from %s to %s: %v", updated.GetResourceVersion(), same.GetResourceVersion(), err)
	}

	for kind, patch := range map[types.PatchType]string{
		types.MergePatchType:          `{"metadata":{"annotations":{"merge":"1"}}}`,
		types.StrategicMergePatchType: `{"metadata":{"annotations":{"strategic":"1"}}}`,
		types.JSONPatchType:           `[{"op":"replace","path":"/metadata/labels/more","value":"2"}]`,
	} {
		if _, err := api.Patch(ctx, name, kind, []byte(patch), metav1.PatchOptions{}); err != nil {
			t.Fatalf("%s: %v", kind, err)
		}
		expect(watch.Modified, name)
	}

	// Server-side apply of a field that another manager owns is a conflict
	// unless forced.
	applied := one.DeepCopy()
	applied.SetLabels(map[string]string{"test": "verbs", "more": "applied"})
	_, err = api.Apply(ctx, name, applied, metav1.ApplyOptions{FieldManager: "applier"})
	wantStatus(t, err, 409, "conflict")
	after, err := api.Apply(ctx, name, applied, metav1.ApplyOptions{FieldManager: "applier", Force: true})
	if err != nil || after.GetLabels()["more"] != "applied" {
		t.Fatalf("got %v, %v", after, err)
	}
	expect(watch.Modified, name)

	// A dry run changes nothing.
	if _, err := api.Create(ctx, two, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}); err != nil {
		t.Fatal(err)
	}
	if err := api.Delete(ctx, name, metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}}); err != nil {
		t.Fatal(err)
	}
	wrong := types.UID("wrong")
	err = api.Delete(ctx, name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &wrong}})
	wantStatus(t, err, 409, "UID")

	// Server-side apply of what is not there makes it.
	if _, err := api.Apply(ctx, two.GetName(), two, metav1.ApplyOptions{FieldManager: "applier"}); err != nil {
		t.Fatal(err)
	}
	expect(watch.Added, two.GetName())
	if err := api.Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	expect(watch.Deleted, name)
	if err := api.DeleteCollection(ctx, metav1.DeleteOptions{}, selector); err != nil {
		t.Fatal(err)
	}
	expect(watch.Deleted, two.GetName())
	if _, err := api.Get(ctx, name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Fatalf("got %v", err)
	}
}
