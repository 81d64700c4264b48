package apiserver

import (
	"context"
	"strings"
	"testing"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	autoscalingapply "k8s.io/client-go/applyconfigurations/autoscaling/v1"

	"github.com/berth-dev/berth/fsm"
)

const replicaSet = `
apiVersion: apps/v1
kind: ReplicaSet
metadata: {name: web, labels: {app: web}}
spec:
  replicas: 3
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      containers: [{name: main, image: busybox}]
`

func TestReplicaSetsByKubectl(t *testing.T) {
	s := share(t)
	k := newKubectl(t, s, s.namespace(t))
	k.want(replicaSet, []string{"apply", "--dry-run=server"}, "replicaset.apps/web created (server dry run)")
	k.want(replicaSet, []string{"apply"}, "replicaset.apps/web created")
	k.want(replicaSet, []string{"apply"}, "unchanged")
	k.want(replicaSet, []string{"apply", "--server-side", "--force-conflicts"}, "serverside-applied")
	k.want("", []string{"get", "rs"}, "NAME", "DESIRED", "CURRENT", "READY", "AGE", "web", "3")
	k.want("", []string{"get", "rs", "-o", "wide"}, "CONTAINERS", "IMAGES", "SELECTOR", "main", "busybox", "app=web")
	k.want("", []string{"get", "all"}, "replicaset.apps/web")
	k.want("", []string{"scale", "rs/web", "--replicas=5", "--dry-run=server"}, "scaled")
	k.want("", []string{"get", "rs", "web", "-o", "jsonpath={.spec.replicas} {.metadata.generation}"}, "3 1")
	k.want("", []string{"scale", "rs/web", "--replicas=5", "--current-replicas=3"}, "scaled")
	k.refused("", []string{"scale", "rs/web", "--replicas=5", "--current-replicas=3"}, "Expected replicas to be 3, was 5")
	k.want("", []string{"get", "rs", "web", "-o", "jsonpath={.spec.replicas} {.metadata.generation}"}, "5 2")
	k.want("", []string{"get", "rs", "web", "--subresource=scale", "-o", "jsonpath={.kind} {.apiVersion} {.spec.replicas} {.status.selector}"}, "Scale autoscaling/v1 5 app=web")
	k.want("", []string{"patch", "rs", "web", "--subresource=scale", "--type=merge", "-p", `{"spec":{"replicas":2}}`}, "patched")
	k.want("", []string{"patch", "rs", "web", "--subresource=status", "--type=merge", "-p", `{"status":{"replicas":2,"readyReplicas":1},"spec":{"replicas":9}}`}, "patched")
	k.want("", []string{"get", "rs", "web", "--no-headers"}, "web", "2     2     1")
	k.want("", []string{"get", "rs", "web", "-o", "jsonpath={.spec.replicas} {.metadata.generation}"}, "2 3")
	k.want("", []string{"describe", "rs", "web"}, "Replicas:     2 current / 2 desired", "app=web")
	k.want("", []string{"api-resources", "--api-group=apps"}, "replicasets", "rs", "apps/v1")
	k.want("", []string{"explain", "rs.spec.minReadySeconds"}, "FIELD: minReadySeconds <integer>")
	k.refused("", []string{"patch", "rs", "web", "--type=merge", "-p", `{"spec":{"selector":{"matchLabels":{"app":"other"}}}}`}, "field is immutable")
	k.refused("", []string{"annotate", "rs", "web", "berth.dev/scale-in=spred"}, `metadata.annotations[berth.dev/scale-in]: Unsupported value: "spred": supported values: "kubernetes", "spread"`)
	k.want("", []string{"annotate", "rs", "web", "berth.dev/scale-in=spread"}, "annotated")
	k.want("", []string{"delete", "rs", "web"}, "deleted")
	k.refused(strings.Replace(replicaSet, "metadata: {", "metadata: {annotations: {berth.dev/scale-in: spred}, ", 1), []string{"create"}, `metadata.annotations[berth.dev/scale-in]: Unsupported value: "spred"`)
}

// TestCascades: what a deletion says of the dependents becomes a finalizer, and
// the object goes with the last one.
func TestCascades(t *testing.T) {
	s := share(t)
	ns := s.namespace(t)
	k := newKubectl(t, s, ns)
	ctx := context.Background()
	sets := s.client(t).AppsV1().ReplicaSets(ns)
	for cascade, finalizer := range map[string]string{"foreground": "foregroundDeletion", "orphan": "orphan"} {
		k.want(replicaSet, []string{"apply"}, "created")
		k.want("", []string{"delete", "rs", "web", "--cascade=" + cascade, "--wait=false"}, "deleted")
		rs, err := sets.Get(ctx, "web", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if rs.DeletionTimestamp == nil || len(rs.Finalizers) != 1 || rs.Finalizers[0] != finalizer {
			t.Errorf("%s: %v %v", cascade, rs.DeletionTimestamp, rs.Finalizers)
		}
		s.double.must(t, &fsm.CollectGarbage{Objects: []fsm.ObjectRef{{Resource: fsm.ReplicaSets, Namespace: ns, Name: "web", UID: string(rs.UID)}}})
		k.refused("", []string{"get", "rs", "web"}, `replicasets.apps "web" not found`)
	}
	k.want(replicaSet, []string{"apply"}, "created")
	k.want("", []string{"delete", "rs", "--all", "--cascade=background"}, "deleted")
	k.refused("", []string{"get", "rs", "web"}, "not found")
	// The older way to say it, and a UID that is another's.
	k.want(replicaSet, []string{"apply"}, "created")
	other := types.UID("other")
	err := sets.Delete(ctx, "web", metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &other}})
	wantStatus(t, err, 409, "UID in precondition")
	yes := true
	if err := sets.Delete(ctx, "web", metav1.DeleteOptions{OrphanDependents: &yes}); err != nil {
		t.Fatal(err)
	}
	if rs, err := sets.Get(ctx, "web", metav1.GetOptions{}); err != nil || rs.Finalizers[0] != "orphan" {
		t.Errorf("%v %v", rs, err)
	}
	if err := sets.DeleteCollection(ctx, metav1.DeleteOptions{PropagationPolicy: ptr(metav1.DeletePropagationBackground)}, metav1.ListOptions{}); err != nil {
		t.Fatal(err)
	}
	k.want("", []string{"get", "rs"}, "No resources found")
}

func ptr[T any](v T) *T { return &v }

// TestScaleApply: the fields of a scale are the ReplicaSet's, and have one
// manager in both.
func TestScaleApply(t *testing.T) {
	s := share(t)
	ns := s.namespace(t)
	ctx := context.Background()
	sets := s.client(t).AppsV1().ReplicaSets(ns)
	newKubectl(t, s, ns).want(replicaSet, []string{"apply", "--server-side", "--field-manager=boss"}, "applied")
	apply := autoscalingapply.Scale().WithSpec(autoscalingapply.ScaleSpec().WithReplicas(7))
	_, err := sets.ApplyScale(ctx, "web", apply, metav1.ApplyOptions{FieldManager: "scaler"})
	wantStatus(t, err, 409, "conflict with \"boss\"")
	got, err := sets.ApplyScale(ctx, "web", apply, metav1.ApplyOptions{FieldManager: "scaler", Force: true})
	if err != nil || got.Spec.Replicas != 7 {
		t.Fatalf("%+v %v", got, err)
	}
	got, err = sets.UpdateScale(ctx, "web", &autoscalingv1.Scale{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: ns}, Spec: autoscalingv1.ScaleSpec{Replicas: 1}}, metav1.UpdateOptions{})
	if err != nil || got.Spec.Replicas != 1 {
		t.Fatalf("%+v %v", got, err)
	}
	_, err = sets.UpdateScale(ctx, "web", &autoscalingv1.Scale{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: ns, ResourceVersion: "1"}}, metav1.UpdateOptions{})
	wantStatus(t, err, 409, "the object has been modified")
}

// TestFinishTemplate: the pods of a template are as complete as those that are
// created one by one.
func TestFinishTemplate(t *testing.T) {
	template := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", GenerateName: "web-", Labels: map[string]string{"app": "web"}}, Spec: testPod("x").Spec}
	view := newDouble(t).View
	finish := func(pod *corev1.Pod) (*corev1.Pod, error) { return finishTemplate(view, pod, admitAll) }
	pod, err := finish(template)
	if err != nil {
		t.Fatal(err)
	}
	if pod.Name != "" || pod.UID != "" || pod.GenerateName != "web-" || len(pod.Spec.Tolerations) != 2 || pod.Spec.ServiceAccountName != "default" || len(pod.Spec.Volumes) != 1 || pod.Generation != 1 {
		t.Errorf("%+v", pod)
	}
	template.Spec.Containers = nil
	_, err = finish(template)
	wantStatus(t, err, 422, "spec.containers: Required value")
}
