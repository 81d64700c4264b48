package apiserver

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestExternalGuard: who may not say where load balancers are takes no address that is somebody else's.
func TestExternalGuard(t *testing.T) {
	s := start(t, newDouble(t), nil)
	ctx := t.Context()
	ann := s.clientOf(t, "ann", "people").CoreV1().Services("default")
	root := s.clientOf(t, "root", "system:masters").CoreV1().Services("default")
	web := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: corev1.ServiceSpec{
		Selector: map[string]string{"app": "web"}, Ports: []corev1.ServicePort{{Port: 80}}, ExternalIPs: []string{"192.0.2.1"},
	}}
	const refused = "spec.externalIPs: what is sent to an external address"
	_, err := ann.Create(ctx, web, metav1.CreateOptions{})
	wantStatus(t, err, 403, refused)
	made, err := root.Create(ctx, web, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	made.Labels = map[string]string{"a": "b"} // what it has already is not added
	if made, err = ann.Update(ctx, made, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	made.Spec.ExternalIPs = []string{"192.0.2.1", "192.0.2.2"}
	_, err = ann.Update(ctx, made, metav1.UpdateOptions{})
	wantStatus(t, err, 403, refused)
	made.Spec.ExternalIPs = nil
	if _, err = ann.Update(ctx, made, metav1.UpdateOptions{}); err != nil {
		t.Error(err)
	}
}
