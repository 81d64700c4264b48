package workloads

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/sched/clustertest"
)

// TestIndexesOfDevices: what upstream's controller looks up is what the state says, after every change.
func TestIndexesOfDevices(t *testing.T) {
	cl := clustertest.New()
	template, claim := "one-gpu", "named"
	p := clustertest.Pod("web cpu=1")
	p.Spec.ResourceClaims = []corev1.PodResourceClaim{
		{Name: "made", ResourceClaimTemplateName: &template}, {Name: "mine", ResourceClaimName: &claim},
	}
	found := func(what string, list []any, names ...string) {
		t.Helper()
		if len(list) != len(names) {
			t.Fatalf("%s: %d, want %v", what, len(list), names)
		}
		for i, o := range list {
			if got := o.(metav1.Object).GetName(); got != names[i] {
				t.Errorf("%s: %s, want %s", what, got, names[i])
			}
		}
	}
	pods, claims := podsWithDevices(), claimRows()
	ask := func(index, key string) []any { return pods.Indexes[index](cl.State.View(), key) }
	cl.AdmitPod(p)
	found("of the template", ask("podResourceClaimTemplate", "default/one-gpu"), "web")
	found("of the claim", ask("podResourceClaim", "default/named"), "web")
	found("of one that has still to be made", ask("podResourceClaim", "default/web-made"))

	stored, _ := cl.State.View().Pods.Get("default/web")
	owned := &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web-made", UID: "made",
		OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(stored, corev1.SchemeGroupVersion.WithKind("Pod"))}}}
	cl.PutObject(fsm.ResourceClaims, owned)
	odd := owned.DeepCopy()
	odd.Name, odd.UID, odd.OwnerReferences[0].UID = "odd", "odd", types.UID(string(stored.UID)+"\x00more")
	cl.PutObject(fsm.ResourceClaims, odd)
	found("owned", claims.Indexes["claimPodOwner"](cl.State.View(), string(stored.UID)), "web-made")

	next := stored.DeepCopy()
	next.Status.ResourceClaimStatuses = []corev1.PodResourceClaimStatus{{Name: "made", ResourceClaimName: &owned.Name}}
	cl.Must(&fsm.UpdatePod{Pod: fsm.PodWire{Object: next}})
	found("of one that has been made", ask("podResourceClaim", "default/web-made"), "web")
	cl.Remove("default/web")
	for _, index := range []string{"podResourceClaimTemplate", "podResourceClaim"} {
		for _, key := range []string{"default/one-gpu", "default/named", "default/web-made"} {
			found("of a pod that is gone", ask(index, key))
		}
	}
}

// TestNothingIsReservedForWhoHasEnded: upstream's controller takes such a reservation away, and would make it again as long as others use
// the claim.
func TestNothingIsReservedForWhoHasEnded(t *testing.T) {
	cl := clustertest.New()
	reference := func(name string) resourcev1.ResourceClaimConsumerReference {
		pod, ok := cl.State.View().Pods.Get("default/" + name)
		if !ok {
			t.Fatalf("there is no pod %s", name)
		}
		return resourcev1.ResourceClaimConsumerReference{Resource: "pods", Name: name, UID: pod.UID}
	}
	for _, name := range []string{"ended", "runs"} {
		cl.AdmitPod(clustertest.Pod(name + " cpu=1"))
	}
	pod, _ := cl.State.View().Pods.Get("default/ended")
	ended := pod.DeepCopy()
	ended.Status.Phase = corev1.PodSucceeded
	cl.Must(&fsm.UpdatePod{Pod: fsm.PodWire{Object: ended}})
	stored := &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "shared", UID: "shared"}}
	stored.Status.ReservedFor = []resourcev1.ResourceClaimConsumerReference{reference("runs")}
	cl.PutObject(fsm.ResourceClaims, stored)
	other := reference("ended")
	other.UID = "of another"
	for _, c := range []struct {
		name string
		by   []resourcev1.ResourceClaimConsumerReference
		uid  types.UID
		skip bool
	}{
		{"who has ended", []resourcev1.ResourceClaimConsumerReference{reference("runs"), reference("ended")}, "shared", true},
		{"who runs", []resourcev1.ResourceClaimConsumerReference{reference("runs"), reference("runs")}, "shared", false},
		{"one of the name", []resourcev1.ResourceClaimConsumerReference{reference("runs"), other}, "shared", false},
		{"nobody more", []resourcev1.ResourceClaimConsumerReference{reference("ended")}, "shared", false},
		{"a claim of the name", []resourcev1.ResourceClaimConsumerReference{reference("runs"), reference("ended")}, "later", false},
	} {
		claim := stored.DeepCopy()
		claim.UID, claim.Status.ReservedFor = c.uid, c.by
		if have := reservedAlready(cl.State.View(), claim); (have != nil) != c.skip {
			t.Errorf("%s: %v is told", c.name, have)
		}
	}
}
