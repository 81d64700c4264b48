package e2e

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

const budgetManifest = `apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: app}
spec:
  minAvailable: 2
  selector: {matchLabels: {app: app}}
`

// covered pods are those of the application that the budget protects.
func covered(p *corev1.Pod) { p.Labels = map[string]string{"app": "app"} }

// The example of the Kubernetes documentation (PD10): three nodes, an
// application of three pods of which two have to be there always, and an
// administrator who drains one node after the other.
func TestDrainMindsBudgets(t *testing.T) {
	c := sharedCluster(t)
	ns := c.namespace(t, "budget")
	kube := c.Reader().Kube
	file, err := c.WriteFile("budget.yaml", budgetManifest)
	if err != nil {
		t.Fatal(err)
	}
	berth := func(args ...string) string { t.Helper(); return c.berth(t, append(args, "-n", ns)...) }
	const sleep = "exec sleep 1000"
	t.Cleanup(func() { c.uncordon(t, "worker-1"); c.uncordon(t, "worker-2") })

	has(t, "apply", berth("apply", "-f", file), "poddisruptionbudget.policy/app created")
	create(t, kube, pod(ns, "pod-a", sleep, on("worker-1"), covered), pod(ns, "pod-b", sleep, on("worker-2"), covered),
		pod(ns, "pod-c", sleep, on("worker-3"), covered), pod(ns, "pod-x", sleep, on("worker-1")))
	c.waitRunning(t, ns, "pod-a", "pod-b", "pod-c", "pod-x")
	c.waitBudget(t, ns, "app", 1)
	has(t, "get pdb", berth("get", "pdb"), "MIN AVAILABLE", "MAX UNAVAILABLE", "ALLOWED DISRUPTIONS", "app", "N/A")

	// The first node: pod-a and pod-x go, nothing more may.
	has(t, "drain worker-1", berth("drain", "worker-1", "--force", "--timeout=100s"), "evicting pod budget/pod-a", "evicting pod budget/pod-x", "node/worker-1 drained")
	c.waitBudget(t, ns, "app", 0)
	r := run(t, c.env, "", "evict", "pod-b", "-n", ns, "--dry-run")
	if r.code != 1 || !strings.Contains(r.err, "The disruption budget app needs 2 healthy pods and has 2 currently") {
		t.Errorf("evict pod-b: status %d, %q", r.code, r.err)
	}

	// Its replacement is on the second node, which is drained next: one of the
	// two pods there goes, and the other has to wait.
	create(t, kube, pod(ns, "pod-d", sleep, on("worker-2"), covered))
	c.waitRunning(t, ns, "pod-d")
	c.waitBudget(t, ns, "app", 1)
	drained := make(chan result, 1)
	go func() {
		drained <- run(t, c.env, "", "drain", "worker-2", "--force", "--timeout=100s", "-n", ns)
	}()
	c.eventually(t, "one of the two pods to go", func(ctx context.Context) error {
		list, err := kube.CoreV1().Pods(ns).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		if n := len(list.Items); n != 2 {
			return fmt.Errorf("%d pods", n)
		}
		return nil
	})
	c.waitBudget(t, ns, "app", 0)

	// There is no room but on the third: as soon as pod-e is ready there, the
	// drain goes on.
	create(t, kube, pod(ns, "pod-e", sleep, on("worker-3"), covered))
	out := <-drained
	if out.code != 0 {
		t.Fatalf("drain: status %d\n%s%s", out.code, out.out, out.err)
	}
	has(t, "drain worker-2", out.out+out.err, "evicting pod budget/pod-b", "evicting pod budget/pod-d",
		"(will retry after 5s): Cannot evict pod as it would violate the pod's disruption budget.", "node/worker-2 drained")
	b := c.waitBudget(t, ns, "app", 0)
	if b.Status.CurrentHealthy != 2 || b.Status.DesiredHealthy != 2 {
		t.Errorf("the budget ends with %+v", b.Status)
	}
	has(t, "describe pdb", berth("describe", "pdb", "app"), "Min available:  2", "Allowed disruptions:  0", "Current:              2")
}

// waitBudget waits until a budget allows so many disruptions.
func (c *cluster) waitBudget(t testing.TB, namespace, name string, allows int32) (b *policyv1.PodDisruptionBudget) {
	t.Helper()
	c.eventually(t, "budget "+namespace+"/"+name, func(ctx context.Context) (err error) {
		b, err = c.Reader().Kube.PolicyV1().PodDisruptionBudgets(namespace).Get(ctx, name, metav1.GetOptions{})
		if err == nil && b.Status.DisruptionsAllowed != allows {
			err = fmt.Errorf("it allows %d: %+v", b.Status.DisruptionsAllowed, b.Status)
		}
		return err
	})
	return b
}

const heldManifest = `apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: held}
spec: {minAvailable: 1, selector: {matchLabels: {app: held}}}
---
apiVersion: v1
kind: Pod
metadata: {name: held, labels: {app: held}}
spec:
  nodeSelector: {kubernetes.io/hostname: %s}
  terminationGracePeriodSeconds: 1
  containers: [{name: main, image: none, command: [/bin/sh, -c, exec sleep 36000]}]
`

// A drain touches nobody before it was said what becomes of the pods that it cannot give back. Then the DaemonSet's pod stays, one whose
// budget allows nothing stays until it does, and one whose volume is of the node goes; the pod after it waits, and says for what.
func TestDrainOfWhatIsBoundToItsNode(t *testing.T) {
	c := sharedCluster(t)
	s := newSets(t, c, "drained")
	s.kubectl("apply", "-f", "../examples/manifests/volumes.yaml", "-f", "../examples/manifests/daemonset.yaml")
	store := s.back("store-0", "", 1)
	node := store.Spec.NodeName
	t.Cleanup(func() { c.uncordon(t, node) })
	c.berthIn(t, fmt.Sprintf(heldManifest, node), "apply", "-n", s.ns, "-f", "-")
	held := c.waitRunning(t, s.ns, "held")[0]
	c.waitBudget(t, s.ns, "held", 0)
	s.kubectl("rollout", "status", "daemonset/agent", "--timeout=90s")
	agents := func() map[types.UID]string {
		t.Helper()
		list, err := c.Reader().Kube.CoreV1().Pods(s.ns).List(t.Context(), metav1.ListOptions{LabelSelector: "app=agent"})
		if err != nil {
			t.Fatal(err)
		}
		out := map[types.UID]string{}
		for i := range list.Items {
			if p := &list.Items[i]; podReady(p) && p.Status.ContainerStatuses[0].RestartCount == 0 {
				out[p.UID] = p.Spec.NodeName
			}
		}
		return out
	}
	before := agents()
	same := func(p *corev1.Pod) {
		t.Helper()
		if now := c.waitRunning(t, p.Namespace, p.Name)[0]; now.UID != p.UID || now.Status.ContainerStatuses[0].RestartCount != 0 {
			t.Errorf("%s was disturbed: %+v", p.Name, now.Status)
		}
	}

	r := run(t, c.env, "", "drain", node)
	if r.code == 0 {
		t.Errorf("drain without a word about DaemonSets: %s", r.out)
	}
	has(t, "drain", r.err, "cannot delete DaemonSet-managed Pods (use --ignore-daemonsets to ignore): drained/agent-",
		"cannot delete Pods that declare no controller (use --force to override): drained/held")
	same(held)
	same(store)

	drained := make(chan result, 1)
	go func() {
		drained <- run(t, c.env, "", "drain", node, "--ignore-daemonsets", "--force", "--timeout=100s")
	}()
	s.eventually(t, "the next store-0 to wait for its node", func(ctx context.Context) error {
		p, err := c.Reader().Kube.CoreV1().Pods(s.ns).Get(ctx, "store-0", metav1.GetOptions{})
		if err != nil {
			return err
		}
		why := condition(p, corev1.PodScheduled)
		if p.UID == store.UID || why == nil || !strings.Contains(why.Message, "node(s) didn't match PersistentVolume's node affinity") {
			return fmt.Errorf("it says %+v", why)
		}
		return nil
	})
	has(t, "why", s.kubectl("why", "store-0"), "didn't match PersistentVolume's node affinity", "node(s) were unschedulable")
	same(held)
	refused := run(t, c.env, "", "evict", "held", "-n", s.ns, "--dry-run")
	if refused.code != 1 || !strings.Contains(refused.err, "The disruption budget held needs 1 healthy pods and has 1 currently") {
		t.Errorf("evict held: status %d, %q", refused.code, refused.err)
	}
	s.kubectl("patch", "pdb", "held", "--type=merge", "-p", `{"spec":{"minAvailable":0}}`)
	out := <-drained
	if out.code != 0 {
		t.Fatalf("drain: status %d\n%s%s", out.code, out.out, out.err)
	}
	has(t, "drain", out.out+out.err, "ignoring DaemonSet-managed Pods: drained/agent-", "evicting pod drained/store-0", "evicting pod drained/held",
		"(will retry after 5s): Cannot evict pod as it would violate the pod's disruption budget.", fmt.Sprintf("node/%s drained", node))
	if now := agents(); !maps.Equal(now, before) || len(now) != 3 {
		t.Errorf("the DaemonSet's pods were on %v, and are on %v", before, now)
	}
	c.uncordon(t, node)
	s.back("store-0", store.UID, 2)
	s.kubectl("delete", "daemonset/agent", "statefulset/store", "pdb/held", "--timeout=90s")
	s.eventually(t, "the volumes to go", func(context.Context) error {
		if left := s.kubectl("get", "pv,pvc", "-o", "name"); strings.TrimSpace(left) != "" {
			return fmt.Errorf("there are %s", left)
		}
		return nil
	})
	c.berth(t, "delete", "storageclass", "local")
}
