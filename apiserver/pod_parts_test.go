package apiserver

import (
	"context"
	"fmt"
	"io"
	"testing"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
)

// podsOn gives a namespace with the pods that are named, and a node for them.
func podsOn(t testing.TB, s *testServer, names ...string) (pods typedcorev1.PodInterface, namespace, node string) {
	t.Helper()
	namespace = s.namespace(t)
	node = namespace + "-node"
	s.node(t, node)
	pods = s.client(t).CoreV1().Pods(namespace)
	for _, name := range names {
		if _, err := pods.Create(context.Background(), testPod(name), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	return pods, namespace, node
}

func bind(pods typedcorev1.PodInterface, name, node string, dryRun ...string) error {
	return pods.Bind(context.Background(), &corev1.Binding{ObjectMeta: metav1.ObjectMeta{Name: name}, Target: corev1.ObjectReference{Name: node}}, metav1.CreateOptions{DryRun: dryRun})
}

func TestBinding(t *testing.T) {
	pods, _, node := podsOn(t, share(t), "a")
	wantStatus(t, bind(pods, "a", "nowhere"), 404, `nodes "nowhere" not found`)
	wantStatus(t, bind(pods, "none", node), 404, `pods "none" not found`)
	if err := bind(pods, "a", node, metav1.DryRunAll); err != nil {
		t.Fatal(err)
	}
	if err := bind(pods, "a", node); err != nil {
		t.Fatal(err)
	}
	wantStatus(t, bind(pods, "a", node), 409, "already assigned to node")
}

func TestPodStatus(t *testing.T) {
	pods, _, node := podsOn(t, share(t), "a")
	ctx := context.Background()
	if err := bind(pods, "a", node); err != nil {
		t.Fatal(err)
	}
	p, err := pods.Get(ctx, "a", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	p.Status.Phase = corev1.PodRunning
	p.Spec.ActiveDeadlineSeconds = new(int64) // not of the status
	if p, err = pods.UpdateStatus(ctx, p, metav1.UpdateOptions{}); err != nil || p.Status.Phase != corev1.PodRunning || p.Spec.ActiveDeadlineSeconds != nil {
		t.Fatalf("got %v, %v", p, err)
	}
	ready := `{"status":{"conditions":[{"type":"Ready","status":"True"}]}}`
	if p, err = pods.Patch(ctx, "a", types.StrategicMergePatchType, []byte(ready), metav1.PatchOptions{}, "status"); err != nil || len(p.Status.Conditions) != 2 {
		t.Fatalf("got %v, %v", p.Status.Conditions, err)
	}
}

func TestLogs(t *testing.T) {
	pods, ns, node := podsOn(t, share(t), "a")
	ctx := context.Background()
	_, err := pods.GetLogs("a", &corev1.PodLogOptions{}).Stream(ctx)
	wantStatus(t, err, 400, "does not have a host assigned")
	if err := bind(pods, "a", node); err != nil {
		t.Fatal(err)
	}
	stream, err := pods.GetLogs("a", &corev1.PodLogOptions{Follow: true, Previous: true}).Stream(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	text, err := io.ReadAll(stream)
	if want := fmt.Sprintf("log of %s/a main follow=true previous=true\n", ns); err != nil || string(text) != want {
		t.Fatalf("got %q, %v", text, err)
	}
	_, err = pods.GetLogs("a", &corev1.PodLogOptions{Container: "none"}).Stream(ctx)
	wantStatus(t, err, 400, "container none is not valid for pod a")
	_, err = pods.GetLogs("none", &corev1.PodLogOptions{}).Stream(ctx)
	wantStatus(t, err, 404, `pods "none" not found`)
}

// TestUnsupportedParts: each says in one sentence that it is not there.
// EC1 to EC3: ephemeral containers come by their own way, and stay.
func TestEphemeralContainers(t *testing.T) {
	pods, _, node := podsOn(t, share(t), "a")
	ctx := context.Background()
	if err := bind(pods, "a", node); err != nil {
		t.Fatal(err)
	}
	p, err := pods.Get(ctx, "a", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	look := corev1.EphemeralContainer{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "look", Image: "busybox"}, TargetContainerName: p.Spec.Containers[0].Name}
	p.Spec.EphemeralContainers = []corev1.EphemeralContainer{look}
	_, err = pods.Update(ctx, p, metav1.UpdateOptions{})
	wantStatus(t, err, 422, "pod updates may not change fields other than")
	p.Spec.Containers[0].Image = "other" // not of this part
	added, err := pods.UpdateEphemeralContainers(ctx, "a", p, metav1.UpdateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if got := added.Spec.EphemeralContainers; len(got) != 1 || got[0].TerminationMessagePath == "" || added.Spec.Containers[0].Image == "other" ||
		added.Generation != p.Generation+1 {
		t.Errorf("it is now %+v", added)
	}
	bad := added.DeepCopy()
	bad.Spec.EphemeralContainers[0].Image = "other"
	_, err = pods.UpdateEphemeralContainers(ctx, "a", bad, metav1.UpdateOptions{})
	wantStatus(t, err, 422, "may not be changed")
	bad.Spec.EphemeralContainers = nil
	_, err = pods.UpdateEphemeralContainers(ctx, "a", bad, metav1.UpdateOptions{})
	wantStatus(t, err, 422, "may not be removed")
	patch := `{"spec":{"ephemeralContainers":[{"name":"more","image":"busybox","ports":[{"containerPort":80}]}]}}`
	_, err = pods.Patch(ctx, "a", types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{}, "ephemeralcontainers")
	wantStatus(t, err, 422, "ports: Forbidden")
	patch = `{"spec":{"ephemeralContainers":[{"name":"more","image":"busybox"}]}}`
	if p, err = pods.Patch(ctx, "a", types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{}, "ephemeralcontainers"); err != nil || len(p.Spec.EphemeralContainers) != 2 {
		t.Errorf("another one: %v, %+v", err, p)
	}
}

func TestEviction(t *testing.T) {
	pods, _, node := podsOn(t, share(t), "running", "waiting")
	ctx := context.Background()
	if err := bind(pods, "running", node); err != nil {
		t.Fatal(err)
	}
	evict := func(name string, dryRun ...string) error {
		return pods.EvictV1(ctx, &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: name}, DeleteOptions: &metav1.DeleteOptions{DryRun: dryRun}})
	}
	for _, name := range []string{"running", "waiting"} {
		if err := evict(name, metav1.DryRunAll); err != nil {
			t.Fatal(err)
		}
		if err := evict(name); err != nil {
			t.Fatal(err)
		}
	}
	p, err := pods.Get(ctx, "running", metav1.GetOptions{})
	if err != nil || p.DeletionTimestamp == nil || *p.DeletionGracePeriodSeconds != 30 || p.Generation != 2 {
		t.Fatalf("got %v, %v", p, err)
	}
	found := false
	for _, c := range p.Status.Conditions {
		found = found || c.Type == corev1.DisruptionTarget && c.Reason == "EvictionByEvictionAPI"
	}
	if !found {
		t.Fatalf("no DisruptionTarget in %v", p.Status.Conditions)
	}
	_, err = pods.Get(ctx, "waiting", metav1.GetOptions{})
	wantStatus(t, err, 404, "not found")
	wantStatus(t, evict("waiting"), 404, "not found")

	zero := int64(0)
	if err := pods.Delete(ctx, "running", metav1.DeleteOptions{GracePeriodSeconds: &zero}); err != nil {
		t.Fatal(err)
	}
	_, err = pods.Get(ctx, "running", metav1.GetOptions{})
	wantStatus(t, err, 404, "not found")
}
