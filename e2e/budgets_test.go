package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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
