package apiserver

import (
	"encoding/json"
	"strings"
	"testing"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/kubernetes/pkg/apis/autoscaling"
)

// A list in an annotation that becomes fields has a bound, in whatever form it comes.
func TestListsInAnnotations(t *testing.T) {
	s := start(t, newDouble(t), nil)
	autoscaler := func(annotation string, n int) *autoscalingv1.HorizontalPodAutoscaler {
		a := &autoscalingv1.HorizontalPodAutoscaler{
			TypeMeta: metav1.TypeMeta{APIVersion: "autoscaling/v1", Kind: "HorizontalPodAutoscaler"}, ObjectMeta: metav1.ObjectMeta{Name: "a"},
			Spec: autoscalingv1.HorizontalPodAutoscalerSpec{ScaleTargetRef: autoscalingv1.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "d"}, MaxReplicas: 3},
		}
		if n > 0 {
			a.Annotations = map[string]string{annotation: "[" + strings.TrimSuffix(strings.Repeat("{},", n), ",") + "]"}
		}
		return a
	}
	const told = "it has more than 4096 values"
	json1, json2 := s.config(t, "root", "system:masters"), s.config(t, "root", "system:masters")
	json1.ContentType, json2.ContentType = "application/json", "application/vnd.kubernetes.protobuf"
	for _, annotation := range []string{autoscaling.MetricSpecsAnnotation, autoscaling.MetricStatusesAnnotation, autoscaling.HorizontalPodAutoscalerConditionsAnnotation} {
		_, err := clientFor(t, json1).AutoscalingV1().HorizontalPodAutoscalers("default").Create(t.Context(), autoscaler(annotation, 5000), metav1.CreateOptions{})
		wantStatus(t, err, 400, told)
		_, err = clientFor(t, json2).AutoscalingV1().HorizontalPodAutoscalers("default").Create(t.Context(), autoscaler(annotation, 5000), metav1.CreateOptions{})
		wantStatus(t, err, 400, told)
	}
	api := clientFor(t, json1).AutoscalingV1().HorizontalPodAutoscalers("default")
	if _, err := api.Create(t.Context(), autoscaler("", 0), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(autoscaler(autoscaling.HorizontalPodAutoscalerConditionsAnnotation, 5000))
	if err != nil {
		t.Fatal(err)
	}
	for form, code := range map[types.PatchType]int32{types.StrategicMergePatchType: 400, types.ApplyYAMLPatchType: 400, types.MergePatchType: 422} {
		_, err := api.Patch(t.Context(), "a", form, text, metav1.PatchOptions{FieldManager: "test"})
		wantStatus(t, err, code, told)
	}
}
