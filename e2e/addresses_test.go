package e2e

import (
	"context"
	"errors"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestServiceRanges: the configured range is there and ready, another one extends it, and stays as long as services have
// addresses of it.
func TestServiceRanges(t *testing.T) {
	c := newCluster(t, server("server-1", "bootstrap_expect = 1"))
	c.waitLeader(t)
	kube := c.Reader().Kube
	ranges, services := kube.NetworkingV1().ServiceCIDRs(), kube.CoreV1().Services("default")
	ready := func(name string, want metav1.ConditionStatus) {
		t.Helper()
		c.eventually(t, fmt.Sprintf("range %s says Ready=%s", name, want), func(ctx context.Context) error {
			r, err := ranges.Get(ctx, name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			if !meta.IsStatusConditionPresentAndEqual(r.Status.Conditions, networkingv1.ServiceCIDRConditionReady, want) || len(r.Finalizers) != 1 {
				return fmt.Errorf("%v, finalizers %v", r.Status.Conditions, r.Finalizers)
			}
			return nil
		})
	}
	ready("kubernetes", metav1.ConditionTrue)
	has(t, "the address of the API", c.berth(t, "get", "ipaddresses"), "10.96.0.1 ", "services/default/kubernetes", "10.96.0.10", "services/kube-system/kube-dns")
	more := &networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: "more"}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{"203.0.113.0/24"}}}
	if _, err := ranges.Create(t.Context(), more, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	ready("more", metav1.ConditionTrue)
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: corev1.ServiceSpec{ClusterIP: "203.0.113.10", Ports: []corev1.ServicePort{{Port: 80}}}}
	if _, err := services.Create(t.Context(), s, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := ranges.Delete(t.Context(), "more", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	ready("more", metav1.ConditionFalse)
	s.Name, s.Spec.ClusterIP = "other", "203.0.113.11"
	if _, err := services.Create(t.Context(), s, metav1.CreateOptions{}); !apierrors.IsInvalid(err) {
		t.Fatalf("an address of a range that goes: %v", err)
	}
	if err := services.Delete(t.Context(), "web", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	c.eventually(t, "the range to go", func(ctx context.Context) error {
		_, err := ranges.Get(ctx, "more", metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return errors.Join(err, errors.New("it is there"))
	})
}
