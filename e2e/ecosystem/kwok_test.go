package ecosystem

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// fakes are a node of KWOK's, and pods for it.
const fakes = `apiVersion: v1
kind: Node
metadata:
  name: fake-1
  annotations: {kwok.x-k8s.io/node: fake}
  labels: {type: kwok, kubernetes.io/hostname: fake-1}
spec:
  taints: [{key: kwok.x-k8s.io/node, value: fake, effect: NoSchedule}]
status:
  allocatable: {cpu: "8", memory: 16Gi, pods: "20"}
  capacity: {cpu: "8", memory: 16Gi, pods: "20"}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: fake}
spec:
  replicas: 10
  selector: {matchLabels: {app: fake}}
  template:
    metadata: {labels: {app: fake}}
    spec:
      nodeSelector: {type: kwok}
      tolerations: [{key: kwok.x-k8s.io/node, operator: Exists}]
      containers: [{name: fake, image: fake.test/fake:1, resources: {requests: {cpu: 500m}}}]
---
apiVersion: v1
kind: Pod
metadata: {name: real}
spec:
  terminationGracePeriodSeconds: 1
  containers: [{name: real, image: "registry.test/busybox:1", command: [sleep, "36000"]}]
`

// TestKWOK: nodes that KWOK pretends to be, beside those of workers.
func TestKWOK(t *testing.T) {
	needTool(t, "kwok")
	tool(t, "kubectl", "create", "namespace", "kwok")
	k := namespaced{t, "kwok"}
	t.Cleanup(func() {
		atEnd(t, "delete", "node", "fake-1", "--ignore-not-found")
		atEnd(t, "delete", "namespace", "kwok", "--ignore-not-found", "--wait")
	})
	before := readNode(t, "node-1")
	start := func(t *testing.T) *lines {
		return follow(t, command(t, "kwok", "--kubeconfig", shared.Kubeconfig, "--manage-all-nodes=false",
			"--manage-nodes-with-annotation-selector=kwok.x-k8s.io/node=fake", "--node-lease-duration-seconds=40"))
	}
	k.input(fakes, "apply", "-f", "-")
	t.Run("with KWOK", func(t *testing.T) {
		k := k.on(t)
		said := start(t)
		t.Cleanup(func() {
			if t.Failed() {
				t.Logf("KWOK says\n%s", strings.Join(said.all(), "\n"))
			}
		})
		k.run("wait", "node/fake-1", "--for=condition=Ready", "--timeout=3m")
		k.run("rollout", "status", "deployment/fake", "--timeout=5m")
		pods, err := kube().CoreV1().Pods("kwok").List(t.Context(), metav1.ListOptions{LabelSelector: "app=fake"})
		if err != nil {
			t.Fatal(err)
		}
		for i := range pods.Items {
			if p := &pods.Items[i]; p.Spec.NodeName != "fake-1" || p.Status.Phase != corev1.PodRunning || p.Status.PodIP == "" {
				t.Errorf("%s on %q is %s at %q", p.Name, p.Spec.NodeName, p.Status.Phase, p.Status.PodIP)
			}
		}
		k.run("wait", "pod/real", "--for=condition=Ready", "--timeout=5m")
		if node := k.run("get", "pod/real", "-o", "jsonpath={.spec.nodeName}"); !strings.HasPrefix(node, "node-") {
			t.Errorf("the real pod is on %s", node)
		}
		renewed(t, "fake-1")
		// The node is full, and what goes makes room.
		k.run("scale", "deployment/fake", "--replicas=17")
		eventually(t, "a pod that finds no room", func(context.Context) error {
			if out := k.run("get", "pods", "--field-selector=status.phase=Pending"); !strings.Contains(out, "Pending") {
				return errors.New(out)
			}
			return nil
		})
		k.run("scale", "deployment/fake", "--replicas=3")
		eventually(t, "three pods", func(ctx context.Context) error {
			pods, err := kube().CoreV1().Pods("kwok").List(ctx, metav1.ListOptions{LabelSelector: "app=fake"})
			if err == nil && len(pods.Items) != 3 {
				err = fmt.Errorf("there are %d", len(pods.Items))
			}
			return err
		})
	})
	t.Run("without KWOK the node is lost", func(t *testing.T) {
		k.on(t).run("wait", "node/fake-1", "--for=condition=Ready=Unknown", "--timeout=5m")
	})
	t.Run("a node of ours is as it was", func(t *testing.T) {
		after := readNode(t, "node-1")
		if !equality.Semantic.DeepEqual(before, after) {
			t.Errorf("it was\n%v\nand is\n%v", before, after)
		}
	})
}

// readNode is what of a node stays, whatever runs on it.
func readNode(t *testing.T, name string) *corev1.Node {
	t.Helper()
	n, err := kube().CoreV1().Nodes().Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	out := &corev1.Node{ObjectMeta: metav1.ObjectMeta{UID: n.UID, Labels: n.Labels, Annotations: n.Annotations}, Spec: n.Spec,
		Status: corev1.NodeStatus{Capacity: n.Status.Capacity, Addresses: n.Status.Addresses, NodeInfo: n.Status.NodeInfo}}
	for _, c := range n.Status.Conditions {
		out.Status.Conditions = append(out.Status.Conditions, corev1.NodeCondition{Type: c.Type, Status: c.Status, LastTransitionTime: c.LastTransitionTime})
	}
	return out
}

// renewed waits until a node's lease is renewed twice.
func renewed(t *testing.T, node string) {
	t.Helper()
	var first *metav1.MicroTime
	eventually(t, "the lease of "+node+" to be renewed", func(ctx context.Context) error {
		lease, err := kube().CoordinationV1().Leases(corev1.NamespaceNodeLease).Get(ctx, node, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if first == nil {
			first = lease.Spec.RenewTime
		}
		if lease.Spec.RenewTime.Equal(first) {
			return errors.New("it is not renewed yet")
		}
		return nil
	})
}
