package apiserver

import (
	"context"
	"fmt"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// A pod that names a RuntimeClass gets its overhead; one that names none that
// is there is refused with the words of Kubernetes.
func TestRuntimeClassOfAPod(t *testing.T) {
	ctx := context.Background()
	s := share(t)
	ns, client := s.namespace(t), s.client(t)
	name := "vm-" + ns
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec:       corev1.PodSpec{RuntimeClassName: &name, Containers: []corev1.Container{{Name: "c", Image: "i"}}},
	}
	_, err := client.CoreV1().Pods(ns).Create(ctx, pod, metav1.CreateOptions{})
	if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), `pod rejected: RuntimeClass "`+name+`" not found`) {
		t.Fatalf("without a class: %v", err)
	}
	class := &nodev1.RuntimeClass{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Handler: "vm",
		Overhead: &nodev1.Overhead{PodFixed: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("250m")}},
	}
	if _, err := client.NodeV1().RuntimeClasses().Create(ctx, class, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	got, err := client.CoreV1().Pods(ns).Create(ctx, pod, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if q := got.Spec.Overhead[corev1.ResourceCPU]; q.String() != "250m" {
		t.Errorf("overhead: %v", got.Spec.Overhead)
	}
	if _, err := client.NodeV1().RuntimeClasses().Patch(ctx, name, types.MergePatchType, []byte(`{"handler": "other"}`), metav1.PatchOptions{}); !apierrors.IsInvalid(err) {
		t.Errorf("another handler: %v", err)
	}
}

func TestReviewsOfOneself(t *testing.T) {
	ctx := context.Background()
	client := share(t).clientOf(t, "ann", "people")
	who, err := client.AuthenticationV1().SelfSubjectReviews().Create(ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if err != nil || who.Status.UserInfo.Username != "ann" {
		t.Errorf("who: %v, %v", who, err)
	}
	for verb, want := range map[string]bool{"list": true, "impersonate": false} {
		may, err := client.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx, &authorizationv1.SelfSubjectAccessReview{
			Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: verb, Resource: "pods"}},
		}, metav1.CreateOptions{})
		if err != nil || may.Status.Allowed != want {
			t.Errorf("may %s: %v, %v", verb, may, err)
		}
	}
}

// TestNewNodesAreNotReady (PD12): a node that somebody makes has no pods before its status
// says that it is ready, as by Kubernetes' admission TaintNodesByCondition.
func TestNewNodesAreNotReady(t *testing.T) {
	s := share(t)
	client := s.client(t).CoreV1().Nodes()
	taint := corev1.Taint{Key: corev1.TaintNodeNotReady, Effect: corev1.TaintEffectNoSchedule}
	own := corev1.Taint{Key: "mine", Effect: corev1.TaintEffectNoSchedule}
	ready := func(status corev1.ConditionStatus) []corev1.NodeCondition {
		return []corev1.NodeCondition{{Type: corev1.NodeReady, Status: status}}
	}
	for i, tt := range []struct {
		name       string
		conditions []corev1.NodeCondition
		taints     []corev1.Taint
		want       []corev1.Taint
	}{
		{"ready", ready(corev1.ConditionTrue), nil, nil},
		{"ready, with a taint", ready(corev1.ConditionTrue), []corev1.Taint{own}, []corev1.Taint{own}},
		{"says nothing", nil, nil, []corev1.Taint{taint}},
		{"says something else", []corev1.NodeCondition{{Type: corev1.NodeDiskPressure, Status: corev1.ConditionTrue}}, []corev1.Taint{own}, []corev1.Taint{own, taint}},
		{"not ready", ready(corev1.ConditionFalse), nil, []corev1.Taint{taint}},
		{"unknown", ready(corev1.ConditionUnknown), nil, []corev1.Taint{taint}},
		{"tainted already", nil, []corev1.Taint{taint}, []corev1.Taint{taint}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			node := &corev1.Node{
				ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("new-%d", i)},
				Spec:       corev1.NodeSpec{Taints: tt.taints}, Status: corev1.NodeStatus{Conditions: tt.conditions},
			}
			got, err := client.Create(t.Context(), node, metav1.CreateOptions{})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = client.Delete(context.Background(), node.Name, metav1.DeleteOptions{}) })
			if !equality.Semantic.DeepEqual(got.Spec.Taints, tt.want) {
				t.Errorf("its taints are %v", got.Spec.Taints)
			}
		})
	}
}
