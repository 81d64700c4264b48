package apiserver

import (
	"context"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
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
