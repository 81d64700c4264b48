package apiserver

import (
	"context"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/kubernetes/plugin/pkg/admission/podresize"
)

// A resize changes what containers ask for and nothing else, up to what the node could hold; limit ranges and quotas are asked again.
func TestResize(t *testing.T) {
	s := share(t)
	pods, ns, node := podsOn(t, s, "a")
	ctx := context.Background()
	if err := bind(pods, "a", node); err != nil {
		t.Fatal(err)
	}
	p, err := pods.Get(ctx, "a", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	before := p.Generation
	list := p.Spec.Containers[0].Resources.Requests.DeepCopy()
	if list == nil {
		t.Fatal("the pod asks for nothing")
	}
	list[corev1.ResourceCPU] = resource.MustParse("900")
	p.Spec.Containers[0].Resources.Requests = list
	_, err = pods.Update(ctx, p, metav1.UpdateOptions{})
	wantStatus(t, err, 422, "pod updates may not change fields other than")
	p.Spec.Containers[0].Image, p.Labels = "other", map[string]string{"other": "yes"} // not of this part
	got, err := pods.UpdateResize(ctx, "a", p, metav1.UpdateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if c := got.Spec.Containers[0]; c.Resources.Requests.Cpu().String() != "900" || c.Image == "other" || got.Labels["other"] != "" || got.Generation != before+1 {
		t.Errorf("it is now %+v", got)
	}
	bad := got.DeepCopy()
	bad.Spec.Containers[0].Resources.Requests = nil
	_, err = pods.UpdateResize(ctx, "a", bad, metav1.UpdateOptions{})
	wantStatus(t, err, 422, "")
	bad = got.DeepCopy()
	bad.Spec.Containers[0].Resources.Requests[corev1.ResourceCPU] = resource.MustParse("1001")
	_, err = pods.UpdateResize(ctx, "a", bad, metav1.UpdateOptions{})
	wantStatus(t, err, 403, "node didn't have enough allocatable resources: cpu, requested: 1001000, allocatable: 1000000")
	if !apierrors.HasStatusCause(err, podresize.ReasonNodeCapacity) {
		t.Errorf("it does not say that the node is too small: %#v", err)
	}
	bad = got.DeepCopy()
	bad.Spec.Containers[0].Resources.Requests[corev1.ResourceCPU] = resource.MustParse("-1")
	_, err = pods.UpdateResize(ctx, "a", bad, metav1.UpdateOptions{})
	wantStatus(t, err, 422, "resources.requests[cpu]")

	k := newKubectl(t, s, ns)
	resize := func(cpu string) []string {
		return []string{"patch", "pod", "a", "--subresource=resize", "-p", `{"spec":{"containers":[{"name":"` + p.Spec.Containers[0].Name + `","resources":{"requests":{"cpu":"` + cpu + `"}}}]}}`}
	}
	k.want("", resize("2"), "patched")
	k.want("", []string{"get", "pod", "a", "--subresource=resize", "-o", "jsonpath={.spec.containers[0].resources.requests.cpu}"}, "2")
	k.want(limitRangeManifest, []string{"apply"}, "created")
	k.refused("", resize("10m"), "minimum cpu usage per Container is 50m, but request is 10m")
	k.want("", []string{"delete", "limits", "sizes"}, "deleted")
	k.want("apiVersion: v1\nkind: ResourceQuota\nmetadata: {name: q}\nspec: {hard: {requests.cpu: 3}}", []string{"create"}, "created")
	k.refused("", resize("4"), "exceeded quota: q")
	k.want("", resize("3"), "patched")
	k.want("", []string{"get", "quota", "q", "-o", `jsonpath={.status.used.requests\.cpu}`}, "3")
}
