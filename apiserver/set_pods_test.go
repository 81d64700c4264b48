package apiserver

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/kubernetes/pkg/apis/apps"
	"k8s.io/kubernetes/pkg/apis/batch"
	core "k8s.io/kubernetes/pkg/apis/core"

	"github.com/berth-dev/berth/docs"
)

func setPodsBounds(t *testing.T, r docs.Row) {
	numbers := r.Numbers(t, 2)
	set := func(replicas int64, value string) *apps.StatefulSet {
		template := core.PodTemplateSpec{Spec: core.PodSpec{Containers: []core.Container{{Name: "main", Env: []core.EnvVar{{Name: "A", Value: value}}}}}}
		return &apps.StatefulSet{Spec: apps.StatefulSetSpec{Replicas: int32(replicas), Template: template}}
	}
	least := set(0, "x")
	rest := int64(templateBytes(&least.Spec.Template)) - 1
	const each = 100_000
	for _, c := range []struct {
		replicas, value int64
		why             string
	}{
		{numbers[0], 1, ""},
		{numbers[0] + 1, 1, fmt.Sprintf("spec.replicas: Invalid value: %d: must be at most %d", numbers[0]+1, numbers[0])},
		{numbers[1] / each, each - rest, ""},
		{numbers[1]/each + 1, each - rest, fmt.Sprintf("may take %d bytes as JSON together, and one of these takes %d", numbers[1], each)},
	} {
		err := checkLimits(set(c.replicas, strings.Repeat("x", int(c.value))))
		if c.why == "" && err != nil {
			t.Error(err)
		} else if c.why != "" {
			wantStatus(t, err, 422, c.why)
		}
	}
}

// A StatefulSet whose controller would make more pods in memory than there can be is refused, however its number comes.
func TestStatefulSetsOfTooMany(t *testing.T) {
	s := start(t, newDouble(t), nil)
	ctx := context.Background()
	sets := s.client(t).AppsV1().StatefulSets("default")
	labels := map[string]string{"app": "db"}
	set := func(replicas int32, env string) *appsv1.StatefulSet {
		spec := testPod("db").Spec
		spec.Containers[0].Env = []corev1.EnvVar{{Name: "A", Value: env}}
		return &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Name: "db"}, Spec: appsv1.StatefulSetSpec{
			Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: spec}}}
	}
	const why = `StatefulSet.apps "db" is invalid: spec.replicas: Invalid value: 2147483647: must be at most 10000`
	_, err := sets.Create(ctx, set(2147483647, ""), metav1.CreateOptions{})
	wantStatus(t, err, 422, why)
	made, err := sets.Create(ctx, set(3, ""), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = sets.UpdateScale(ctx, "db", &autoscalingv1.Scale{ObjectMeta: metav1.ObjectMeta{Name: "db", Namespace: "default"},
		Spec: autoscalingv1.ScaleSpec{Replicas: 2147483647}}, metav1.UpdateOptions{})
	wantStatus(t, err, 422, why)
	_, err = sets.Patch(ctx, "db", types.MergePatchType, []byte(`{"spec":{"replicas":2147483647}}`), metav1.PatchOptions{}, "scale")
	wantStatus(t, err, 422, why)

	// The template of before is much larger, and pods are still made from it.
	before := fmt.Sprintf(`{"spec":{"template":{"spec":{"containers":[{"name":"main","env":[{"name":"A","value":%q}]}]}}}}`, strings.Repeat("x", 1_000_000))
	if _, err := s.client(t).AppsV1().ControllerRevisions("default").Create(ctx, &appsv1.ControllerRevision{
		ObjectMeta: metav1.ObjectMeta{Name: "db-1"}, Data: runtime.RawExtension{Raw: []byte(before)}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	made.Status.CurrentRevision = "db-1"
	if _, err := sets.UpdateStatus(ctx, made, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	scale := func(n int) error {
		_, err := sets.Patch(ctx, "db", types.MergePatchType, fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, n), metav1.PatchOptions{})
		return err
	}
	wantStatus(t, scale(10_000), 422, "spec.replicas: Invalid value: 10000: must be at most 67, for the pods of a StatefulSet")
	if err := scale(67); err != nil {
		t.Error(err)
	}
}

// The controller of CronJobs goes through every time since the last, where there are too many to be computed.
func TestCronJobsOfLongAgo(t *testing.T) {
	at := metav1.NewTime(time.Date(1, 1, 1, 0, 0, 0, 0, time.UTC))
	wantStatus(t, checkLimits(&batch.CronJob{Status: batch.CronJobStatus{LastScheduleTime: &at}}), 422, "status.lastScheduleTime: Invalid value")
	at = metav1.NewTime(time.Unix(0, 0))
	if err := checkLimits(&batch.CronJob{Status: batch.CronJobStatus{LastScheduleTime: &at}}); err != nil {
		t.Error(err)
	}
}
