package workloads

import (
	"encoding/json"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/berth-dev/berth/informers"
	"github.com/berth-dev/berth/informers/worldtest"
)

// The controller of StatefulSets makes all pods of a set in memory: it is not given one that has too many, whoever stored it.
func TestLargeStatefulSetsAreKeptFromTheirController(t *testing.T) {
	w := worldtest.New(t)
	data, err := json.Marshal(strings.Repeat("x", 1_000_000))
	if err != nil {
		t.Fatal(err)
	}
	w.Put(t, controllerRevisions, &appsv1.ControllerRevision{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "large"}, Data: runtime.RawExtension{Raw: data}})
	for _, c := range []struct {
		name, revision string
		replicas       int32
		env            int
		given          bool
	}{
		{"usual", "", 3, 10, true},
		{"many", "", 10_000, 1000, true},
		{"too-many", "", 10_001, 10, false},
		{"endless", "", 2147483647, 10, false},
		{"large", "", 500, 1_000_000, false},
		{"few-large", "", 60, 1_000_000, true},
		{"large-before", "large", 500, 10, false},
		{"few-large-before", "large", 60, 10, true},
	} {
		set := &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: c.name}, Status: appsv1.StatefulSetStatus{CurrentRevision: c.revision},
			Spec: appsv1.StatefulSetSpec{Replicas: &c.replicas, Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{Containers: []corev1.Container{
				{Name: "main", Env: []corev1.EnvVar{{Name: "A", Value: strings.Repeat("x", c.env)}}}}}}}}
		w.Put(t, "statefulsets", set)
		if _, given, _ := informers.New(statefulSets(), w.View).GetByKey("a/" + c.name); given != c.given {
			t.Errorf("%s: given %v", c.name, given)
		}
	}
}

// The controller of DaemonSets makes room for as many pods as may be replaced at a time.
func TestDaemonSetsThatReplaceAllAtATime(t *testing.T) {
	w := worldtest.New(t)
	all, some := intstr.FromInt32(2147483647), intstr.FromString("10%")
	w.Put(t, "daemonsets", &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "all"}, Spec: appsv1.DaemonSetSpec{
		UpdateStrategy: appsv1.DaemonSetUpdateStrategy{RollingUpdate: &appsv1.RollingUpdateDaemonSet{MaxUnavailable: &all, MaxSurge: &some}}}})
	o, _, _ := informers.New(daemonSets(), w.View).GetByKey("a/all")
	if u := o.(*appsv1.DaemonSet).Spec.UpdateStrategy.RollingUpdate; u.MaxUnavailable.IntVal != mostAtATime || *u.MaxSurge != some {
		t.Errorf("%v, %v", u.MaxUnavailable, u.MaxSurge)
	}
	if all.IntVal != 2147483647 {
		t.Error("the row was changed")
	}
}
