package apiserver

import (
	"reflect"
	"slices"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	core "k8s.io/kubernetes/pkg/apis/core"
)

// TestWhatIsLeftOutIsTold: who asks for a field of a feature that is off gets a warning for it, for a pod as for a template, when
// it is made as when it is changed; and who asks for one that Berth turns on has it, and none.
func TestWhatIsLeftOutIsTold(t *testing.T) {
	s := share(t)
	told := &warnings{}
	config := s.config(t, "root", "system:masters")
	config.WarningHandler = told
	client, ns, ctx := clientFor(t, config), s.namespace(t), t.Context()
	wants := func(want ...string) {
		t.Helper()
		if !slices.Equal(told.texts, want) {
			t.Errorf("warned of %q, want %q", told.texts, want)
		}
		told.texts = nil
	}
	group := &corev1.PodSchedulingGroup{PodGroupName: new("all-or-none")}
	pod := testPod("grouped")
	pod.Spec.SchedulingGroup = group
	made, err := client.CoreV1().Pods(ns).Create(ctx, pod, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if made.Spec.SchedulingGroup != nil {
		t.Error("it is not left out")
	}
	wants("spec.schedulingGroup is left out: it is of a feature that is not served")

	pod = testPod("told")
	pod.Spec.OS, pod.Spec.Containers[0].Lifecycle = &corev1.PodOS{Name: corev1.Linux}, &corev1.Lifecycle{StopSignal: new(corev1.SIGUSR1)}
	if made, err = client.CoreV1().Pods(ns).Create(ctx, pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if l := made.Spec.Containers[0].Lifecycle; l == nil || l.StopSignal == nil || *l.StopSignal != corev1.SIGUSR1 {
		t.Errorf("its stop signal became %v", l)
	}
	wants()

	two := intstr.FromInt32(2)
	set := &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: appsv1.StatefulSetSpec{
		ServiceName: "web", Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}},
		Template:       corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "web"}}, Spec: testPod("web").Spec},
		UpdateStrategy: appsv1.StatefulSetUpdateStrategy{RollingUpdate: &appsv1.RollingUpdateStatefulSetStrategy{MaxUnavailable: &two}},
	}}
	set, err = client.AppsV1().StatefulSets(ns).Create(ctx, set, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if got := set.Spec.UpdateStrategy.RollingUpdate.MaxUnavailable; got == nil || *got != two {
		t.Errorf("maxUnavailable became %v", got)
	}
	wants()
	set.Spec.Template.Spec.SchedulingGroup = group
	if _, err = client.AppsV1().StatefulSets(ns).Update(ctx, set, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	wants("spec.template.spec.schedulingGroup is left out: it is of a feature that is not served")
}

// TestDropped: what is left out is named as deep as it goes, and of lists what has kept its place is looked at.
func TestDropped(t *testing.T) {
	type inner struct{ SELinuxType, DNSPolicy, Image string }
	type spec struct {
		inner
		Containers []inner
		TTLSeconds *int64
		Labels     map[string]string
		Only       *inner
	}
	was := spec{Containers: []inner{{SELinuxType: "a", Image: "x"}, {DNSPolicy: "b"}, {Image: "c"}}, TTLSeconds: new(int64(5)), Labels: map[string]string{"a": "b"}, Only: &inner{Image: "x"}}
	is := spec{Containers: []inner{{Image: "y"}, {Image: "z"}}, Only: &inner{}}
	got := dropped(nil, "spec", reflect.ValueOf(was), reflect.ValueOf(is))
	if want := []string{"spec.containers[0].seLinuxType", "spec.containers[1].dnsPolicy", "spec.ttlSeconds", "spec.labels", "spec.only.image"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// describedPod is one with as much beside its spec as pods have that were written by several.
func describedPod() *core.Pod {
	pod := &core.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web", Labels: map[string]string{}}}
	for _, manager := range []string{"kubectl", "kube-controller-manager", "berth"} {
		pod.Labels[manager] = "yes"
		pod.ManagedFields = append(pod.ManagedFields, metav1.ManagedFieldsEntry{Manager: manager, FieldsV1: &metav1.FieldsV1{Raw: make([]byte, 1000)}})
	}
	for i := range 3 {
		pod.Spec.Containers = append(pod.Spec.Containers, core.Container{
			Name: string(rune('a' + i)), Image: "registry.example.com/image:v1", Command: []string{"run", "it"}, Env: make([]core.EnvVar, 10),
			Resources: core.ResourceRequirements{Requests: core.ResourceList{core.ResourceCPU: resource.MustParse("1"), core.ResourceMemory: resource.MustParse("1Gi")}},
		})
		pod.Status.ContainerStatuses = append(pod.Status.ContainerStatuses, core.ContainerStatus{Name: pod.Spec.Containers[i].Name})
	}
	return pod
}

// What nobody compares costs nothing.
func TestTellDroppedCopiesTheSpecAlone(t *testing.T) {
	described := describedPod()
	bare := &core.Pod{Spec: described.Spec}
	cost := func(pod *core.Pod) float64 {
		return testing.AllocsPerRun(100, func() { tellDropped(t.Context(), pod, func() {}) })
	}
	if most, least := cost(described), cost(bare); most != least {
		t.Errorf("%g allocations, and %g of the same spec alone", most, least)
	}
}

func BenchmarkTellDropped(b *testing.B) {
	pod := describedPod()
	b.ReportAllocs()
	for b.Loop() {
		tellDropped(b.Context(), pod, func() {})
	}
}
