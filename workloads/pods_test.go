package workloads

import (
	"context"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
)

func TestRemovedFinalizers(t *testing.T) {
	const strategic = types.StrategicMergePatchType
	for _, tt := range []struct {
		kind  types.PatchType
		patch string
		want  []string
	}{
		{strategic, `{"metadata":{"$deleteFromPrimitiveList/finalizers":["batch.kubernetes.io/job-tracking"]}}`, []string{"batch.kubernetes.io/job-tracking"}},
		{strategic, `{"metadata":{"$deleteFromPrimitiveList/finalizers":["a","b"]}}`, []string{"a", "b"}},
		{types.MergePatchType, `{"metadata":{"$deleteFromPrimitiveList/finalizers":["a"]}}`, nil},
		{strategic, `{"metadata":{"uid":"u","$deleteFromPrimitiveList/finalizers":["a"]}}`, nil},
		{strategic, `{"metadata":{"$deleteFromPrimitiveList/finalizers":["a"]},"status":{}}`, nil},
		{strategic, `{"metadata":{"$deleteFromPrimitiveList/finalizers":[]}}`, nil},
		{strategic, `{"metadata":{"$deleteFromPrimitiveList/finalizers":"a"}}`, nil},
		{strategic, `{"metadata":{"finalizers":["a"]}}`, nil},
		{strategic, `{}`, nil},
		{strategic, `{`, nil},
	} {
		got, only := removedFinalizers(tt.kind, []byte(tt.patch))
		if only != (tt.want != nil) || only && !slices.Equal(got, tt.want) {
			t.Errorf("%s: %v, %t", tt.patch, got, only)
		}
	}
}

// writer notes what it is asked for.
type writer struct {
	created, released []string
	leaves            bool // removals to requests
}

func (w *writer) Create(_ context.Context, namespace string, pod *corev1.Pod) (*corev1.Pod, error) {
	w.created = append(w.created, namespace+"/"+pod.Name)
	return pod, nil
}

func (w *writer) RemoveFinalizers(_ context.Context, namespace, name string, finalizers []string) (*corev1.Pod, bool, error) {
	if w.leaves {
		return nil, false, nil
	}
	w.released = append(w.released, namespace+"/"+name)
	return nil, true, nil
}

// TestWhatGoesToAPodWriter: what it can say goes there, and all else is a request.
func TestWhatGoesToAPodWriter(t *testing.T) {
	ctx, w, requests := t.Context(), &writer{}, fake.NewClientset(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "default"}})
	pods := withPods{requests, w}.CoreV1().Pods("default")
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "new"}}
	release := []byte(`{"metadata":{"$deleteFromPrimitiveList/finalizers":["a"]}}`)
	do := func(_ *corev1.Pod, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	do(pods.Create(ctx, pod, metav1.CreateOptions{}))
	do(pods.Patch(ctx, "web", types.StrategicMergePatchType, release, metav1.PatchOptions{}))
	if len(requests.Actions()) > 0 || !slices.Equal(w.created, []string{"default/new"}) || !slices.Equal(w.released, []string{"default/web"}) {
		t.Fatalf("%+v, and requests %v", w, requests.Actions())
	}
	do(pods.Create(ctx, pod, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}))
	do(pods.Patch(ctx, "web", types.StrategicMergePatchType, release, metav1.PatchOptions{FieldManager: "me"}))
	do(pods.Patch(ctx, "web", types.StrategicMergePatchType, []byte(`{"metadata":{"labels":{"a":"b"}}}`), metav1.PatchOptions{}))
	do(pods.Get(ctx, "web", metav1.GetOptions{}))
	w.leaves = true
	do(pods.Patch(ctx, "web", types.StrategicMergePatchType, release, metav1.PatchOptions{}))
	if n := len(requests.Actions()); n != 5 || len(w.created) != 1 || len(w.released) != 1 {
		t.Errorf("%+v, and requests %v", w, requests.Actions())
	}
}
