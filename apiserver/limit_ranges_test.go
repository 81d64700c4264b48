package apiserver

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	core "k8s.io/kubernetes/pkg/apis/core"

	"github.com/berth-dev/berth/docs"
)

const limitRangeManifest = `
apiVersion: v1
kind: LimitRange
metadata: {name: sizes}
spec:
  limits:
  - type: Container
    default: {cpu: 500m, memory: 128Mi}
    defaultRequest: {cpu: 100m}
    min: {cpu: 50m}
    max: {cpu: "1"}
    maxLimitRequestRatio: {cpu: "10"}
  - type: Pod
    max: {memory: 300Mi}
`

// Pods get what the limit range of their namespace gives, and no more than it allows.
func TestLimitRangesByKubectl(t *testing.T) {
	s := share(t)
	k := newKubectl(t, s, s.namespace(t))
	k.want(limitRangeManifest, []string{"apply"}, "limitrange/sizes created")
	k.want("", []string{"get", "limits"}, "sizes")
	k.want("", []string{"describe", "limits", "sizes"}, "Container", "50m", "500m", "300Mi")
	containers := func(resources ...string) string {
		out := "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec: {containers: ["
		for i, r := range resources {
			out += fmt.Sprintf("{name: c%d, image: busybox, resources: %s}, ", i, r)
		}
		return out + "]}"
	}
	for _, tt := range []struct{ pod, refusal string }{
		{containers("{requests: {cpu: 20m}}"), `pods "web" is forbidden: [minimum cpu usage per Container is 50m, but request is 20m, cpu max limit to request ratio per Container is 10, but provided ratio is 25.000000]`},
		{containers("{limits: {cpu: 2}}"), `pods "web" is forbidden: maximum cpu usage per Container is 1, but limit is 2`},
		{containers("{}", "{}", "{}"), `pods "web" is forbidden: maximum memory usage per Pod is 300Mi, but limit is 384Mi`},
	} {
		k.refused(tt.pod, []string{"create"}, tt.refusal)
		k.refused(tt.pod, []string{"create", "--dry-run=server"}, tt.refusal)
	}
	k.want(containers("{}"), []string{"create"}, "created")
	k.want("", []string{"get", "pod", "web", "-o", "jsonpath={.spec.containers[0].resources}{.metadata.annotations}"},
		`{"limits":{"cpu":"500m","memory":"128Mi"},"requests":{"cpu":"100m","memory":"128Mi"}}`, "LimitRanger plugin set: cpu, memory request for container c0")
	k.refused(strings.Replace(limitRangeManifest, "min: {cpu: 50m}", "min: {cpu: 2}", 1), []string{"apply"}, "is greater than max value")
	k.refused(strings.Replace(limitRangeManifest, "min: {cpu: 50m}", "min: {memory: -1}", 1), []string{"apply"}, "spec.limits[0].min[memory]: Invalid value: \"-1\": must not be negative")
	k.want("", []string{"delete", "limits", "sizes"}, "deleted")

	ann := newKubectlAs(t, s, k.namespace, "ann", "people")
	ann.want("", []string{"get", "limits"}, "No resources found")
	ann.refused(limitRangeManifest, []string{"create"}, "forbidden")
}

// The pods of a template get the same, and are refused in the same words.
func TestLimitRangesOfTemplates(t *testing.T) {
	s := share(t)
	ns := s.namespace(t)
	k := newKubectl(t, s, ns)
	k.want(limitRangeManifest, []string{"apply"}, "created")
	pod := func(cpu string) *corev1.Pod {
		p := testPod("")
		p.Namespace, p.GenerateName = ns, "web-"
		if cpu != "" {
			p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{"cpu": resource.MustParse(cpu)}
		}
		return p
	}
	finish := func(pod *corev1.Pod) (*corev1.Pod, error) { return finishTemplate(s.double.View, pod, admitAll) }
	in := pod("")
	got, err := finish(in)
	if err != nil {
		t.Fatal(err)
	}
	if q := got.Spec.Containers[0].Resources.Limits["memory"]; q.String() != "128Mi" {
		t.Errorf("the template's pod may use %s", q.String())
	}
	if len(in.Spec.Containers[0].Resources.Limits) > 0 {
		t.Error("the template itself was changed")
	}
	_, err = finish(pod("20m"))
	wantStatus(t, err, 403, `pods "web-" is forbidden: [minimum cpu usage per Container is 50m, but request is 20m`)
}

// limitRangeBounds are the rows of the table of limits about limit ranges.
func limitRangeBounds(t *testing.T, r docs.Row) {
	n := r.Numbers(t, 3)
	s := start(t, newDouble(t), nil)
	fillsNamespace(t, n[0], func(i int64) error {
		l := &corev1.LimitRange{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("l%d", i)}}
		_, err := s.client(t).CoreV1().LimitRanges("kube-public").Create(t.Context(), l, metav1.CreateOptions{})
		return err
	})
	holds(t, n[1], "spec.limits", func(n int) runtime.Object {
		return &core.LimitRange{Spec: core.LimitRangeSpec{Limits: make([]core.LimitRangeItem, n)}}
	})
	holds(t, n[2], "spec.limits[0].max", func(n int) runtime.Object {
		list := core.ResourceList{}
		for i := range n {
			list[core.ResourceName(fmt.Sprintf("example.com/r%d", i))] = resource.MustParse("1")
		}
		return &core.LimitRange{Spec: core.LimitRangeSpec{Limits: []core.LimitRangeItem{{Max: list}}}}
	})
}
