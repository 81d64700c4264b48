package apiserver

import (
	"context"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

// TestNodeRightsOfClaims: the claims of devices of its pods are a node's to read, one that is made of a template as soon as the pod names
// it, be it after the pod is bound. None is a node's to write, and which claim is a pod's own is not for it to say.
func TestNodeRightsOfClaims(t *testing.T) {
	s, root, n1 := ofNodes(t)
	ctx := t.Context()
	for _, name := range []string{"named", "made", "other"} {
		if _, err := root.ResourceV1().ResourceClaims("team").Create(ctx, &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	get := func(by kubernetes.Interface, claim string) error {
		_, err := by.ResourceV1().ResourceClaims("team").Get(ctx, claim, metav1.GetOptions{})
		return err
	}
	wantStatus(t, get(n1, "named"), 403, "no relationship found between node 'n1' and this object")
	pod := needy("n1")
	pod.Name = "with-devices"
	pod.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "a", ResourceClaimName: new("named")}, {Name: "b", ResourceClaimTemplateName: new("template")}}
	if _, err := root.CoreV1().Pods("team").Create(ctx, pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := get(n1, "named"); err != nil {
		t.Error(err)
	}
	wantStatus(t, get(n1, "made"), 403, "no relationship found")
	name := func(by kubernetes.Interface) error {
		_, err := by.CoreV1().Pods("team").Patch(ctx, pod.Name, types.StrategicMergePatchType,
			[]byte(`{"status":{"resourceClaimStatuses":[{"name":"b","resourceClaimName":"made"}]}}`), metav1.PatchOptions{}, "status")
		return err
	}
	wantStatus(t, name(n1), 403, "cannot update resource claim stat")
	if err := name(root); err != nil {
		t.Fatal(err)
	}
	if err := get(n1, "made"); err != nil {
		t.Error(err)
	}
	wantStatus(t, get(n1, "other"), 403, "no relationship found")
	wantStatus(t, get(s.clientOf(t, "system:node:n2", "system:nodes"), "made"), 403, "no relationship found")
	_, err := n1.ResourceV1().ResourceClaims("team").List(ctx, metav1.ListOptions{})
	wantStatus(t, err, 403, "can only get individual resources of this type")
	_, err = n1.ResourceV1().ResourceClaims("team").Patch(ctx, "made", types.MergePatchType, []byte(`{"status":{"reservedFor":null}}`), metav1.PatchOptions{}, "status")
	wantStatus(t, err, 403, "can only get individual resources of this type")
}

// TestNodeRightsOfSlices: a node writes what drivers offer on itself, and sees no more.
func TestNodeRightsOfSlices(t *testing.T) {
	_, root, n1 := ofNodes(t)
	ctx := t.Context()
	slice := func(name, driver, node string) *resourcev1.ResourceSlice {
		o := &resourcev1.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: resourcev1.ResourceSliceSpec{
			Driver: driver, Pool: resourcev1.ResourcePool{Name: name, Generation: 1, ResourceSliceCount: 1}, Devices: []resourcev1.Device{{Name: "one"}},
		}}
		if o.Spec.NodeName = &node; node == "" {
			o.Spec.NodeName, o.Spec.AllNodes = nil, new(true)
		}
		return o
	}
	ours, others := n1.ResourceV1().ResourceSlices(), root.ResourceV1().ResourceSlices()
	create := func(o *resourcev1.ResourceSlice) error {
		_, err := ours.Create(ctx, o, metav1.CreateOptions{})
		return err
	}
	change := func(name string) error {
		_, err := ours.Patch(ctx, name, types.MergePatchType, []byte(`{"spec":{"devices":[{"name":"one"},{"name":"two"}]}}`), metav1.PatchOptions{})
		return err
	}
	deleteAll := func(selector string) error {
		return ours.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{FieldSelector: selector})
	}
	names := func(of interface {
		List(context.Context, metav1.ListOptions) (*resourcev1.ResourceSliceList, error)
	}, selector string) (out string) {
		list, err := of.List(ctx, metav1.ListOptions{FieldSelector: selector})
		if err != nil {
			return err.Error()
		}
		for i := range list.Items {
			out += list.Items[i].Name + " "
		}
		return out
	}
	for _, o := range []*resourcev1.ResourceSlice{slice("a", "gpu.example.com", "n1"), slice("b", "nic.example.com", "n1")} {
		if err := create(o); err != nil {
			t.Fatal(err)
		}
	}
	for _, o := range []*resourcev1.ResourceSlice{slice("theirs", "gpu.example.com", "n2"), slice("everywhere", "gpu.example.com", "")} {
		wantStatus(t, create(o), 403, "can only create ResourceSlice with the same NodeName as the requesting node")
		if _, err := others.Create(ctx, o, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		wantStatus(t, change(o.Name), 403, "no relationship found between node 'n1' and this object")
		wantStatus(t, ours.Delete(ctx, o.Name, metav1.DeleteOptions{}), 403, "no relationship found")
		_, err := ours.Get(ctx, o.Name, metav1.GetOptions{})
		wantStatus(t, err, 403, "no relationship found")
	}
	if err := change("a"); err != nil {
		t.Error(err)
	}
	if got := names(ours, "spec.nodeName=n1"); got != "a b " {
		t.Errorf("its own are %q", got)
	}
	_, err := ours.List(ctx, metav1.ListOptions{})
	wantStatus(t, err, 403, "resourceslices with nodeName field selector")
	wantStatus(t, deleteAll(""), 403, "resourceslices with nodeName field selector")
	wantStatus(t, deleteAll("spec.nodeName=n2"), 403, "resourceslices with nodeName field selector")
	if err := deleteAll("spec.nodeName=n1,spec.driver=nic.example.com"); err != nil {
		t.Error(err)
	}
	if got := names(others, ""); got != "a everywhere theirs " {
		t.Errorf("those of one driver deleted, %q are left", got)
	}
	if err := deleteAll("spec.nodeName=n1"); err != nil {
		t.Error(err)
	}
	if got := names(others, ""); got != "everywhere theirs " {
		t.Errorf("its own deleted, %q are left", got)
	}
}
