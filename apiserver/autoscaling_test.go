package apiserver

import (
	"strings"
	"testing"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/fsm"
)

const autoscaler = `
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: web}
spec:
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: web}
  maxReplicas: 5
  metrics:
  - {type: Resource, resource: {name: cpu, target: {type: Utilization, averageUtilization: 50}}}
  - {type: ContainerResource, containerResource: {name: memory, container: main, target: {type: AverageValue, averageValue: 64Mi}}}
  behavior: {scaleDown: {stabilizationWindowSeconds: 30}}
`

// An autoscaler is one object in both versions; what the first has no fields for
// outlives that somebody writes it by that one.
func TestAutoscalers(t *testing.T) {
	s := share(t)
	ns := s.namespace(t)
	k := newKubectl(t, s, ns)
	k.want(autoscaler, []string{"create"}, "horizontalpodautoscaler.autoscaling/web created")
	first := s.client(t).AutoscalingV1().HorizontalPodAutoscalers(ns)
	old, err := first.Get(t.Context(), "web", metav1.GetOptions{})
	if err != nil || old.Spec.TargetCPUUtilizationPercentage == nil || *old.Spec.TargetCPUUtilizationPercentage != 50 || *old.Spec.MinReplicas != 1 {
		t.Fatalf("by the first version it is %+v, %v", old, err)
	}
	old.Spec.MaxReplicas = 7
	if _, err := first.Update(t.Context(), old, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	now, err := s.client(t).AutoscalingV2().HorizontalPodAutoscalers(ns).Get(t.Context(), "web", metav1.GetOptions{})
	if err != nil || now.Spec.MaxReplicas != 7 || len(now.Spec.Metrics) != 2 || now.Spec.Behavior == nil || *now.Spec.Behavior.ScaleDown.StabilizationWindowSeconds != 30 {
		t.Fatalf("it has become %+v, %v", now, err)
	}
	k.want("", []string{"get", "hpa"}, "REFERENCE", "Deployment/web", "<unknown>/50%", "7")
	k.want("", []string{"create", "deployment", "api", "--image=none"}, "created")
	k.want("", []string{"autoscale", "deployment", "api", "--cpu=80%", "--max=3", "--dry-run=server"}, "autoscaled")
	list, err := first.List(t.Context(), metav1.ListOptions{})
	if err != nil || len(list.Items) != 1 {
		t.Errorf("the first version lists %+v, %v", list, err)
	}
	_, err = first.Create(t.Context(), &autoscalingv1.HorizontalPodAutoscaler{
		ObjectMeta: metav1.ObjectMeta{Name: "none"}, Spec: autoscalingv1.HorizontalPodAutoscalerSpec{MaxReplicas: 0},
	}, metav1.CreateOptions{})
	if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "spec.maxReplicas") {
		t.Errorf("one that makes no pods: %v", err)
	}
	now.Status.CurrentReplicas = 4
	if now, err = s.client(t).AutoscalingV2().HorizontalPodAutoscalers(ns).UpdateStatus(t.Context(), now, metav1.UpdateOptions{}); err != nil || now.Status.CurrentReplicas != 4 {
		t.Errorf("its status: %+v, %v", now, err)
	}
}

// Servers of before do not know the kind: nothing of it is in the log while there are any.
func TestAutoscalersAmongOldServers(t *testing.T) {
	s := start(t, newDoubleAt(t, fsm.SinceAutoscalers-1), nil)
	ns := s.namespace(t)
	_, err := s.client(t).AutoscalingV1().HorizontalPodAutoscalers(ns).Create(t.Context(), &autoscalingv1.HorizontalPodAutoscaler{
		ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: autoscalingv1.HorizontalPodAutoscalerSpec{
			MaxReplicas: 2, ScaleTargetRef: autoscalingv1.CrossVersionObjectReference{Kind: "Deployment", Name: "web", APIVersion: "apps/v1"},
		},
	}, metav1.CreateOptions{})
	if !apierrors.IsBadRequest(err) {
		t.Errorf("it is %v", err)
	}
}
