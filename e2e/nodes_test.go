package e2e

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const strangerManifest = `apiVersion: v1
kind: Node
metadata: {name: stranger, labels: {of: others}}
status:
  capacity: {cpu: "4", memory: 8Gi, pods: "10"}
  allocatable: {cpu: "4", memory: 8Gi, pods: "10"}
---
apiVersion: coordination.k8s.io/v1
kind: Lease
metadata: {name: stranger, namespace: kube-node-lease}
spec: {holderIdentity: stranger, leaseDurationSeconds: 40}
---
apiVersion: v1
kind: Pod
metadata: {name: guest}
spec:
  nodeSelector: {of: others}
  tolerations:
  - {key: node.kubernetes.io/unreachable, operator: Exists, effect: NoExecute, tolerationSeconds: 1}
  terminationGracePeriodSeconds: 0
  containers: [{name: main, image: none}]
`

// PD12: a node that somebody else made gets pods when its status says that it is
// ready, lives by its lease, and is lost when nothing of it is written any more.
func TestANodeThatSomebodyElseMade(t *testing.T) {
	t.Parallel() // it waits, mostly
	const grace = 4 * time.Second
	c := newCluster(t, server("server-1", "bootstrap_expect = 1", fmt.Sprintf("scheduler { node_grace = %q }", grace)))
	ctx := t.Context()
	if err := c.waitReady(ctx); err != nil {
		t.Fatal(err)
	}
	file, err := c.WriteFile("stranger.yaml", strangerManifest)
	if err != nil {
		t.Fatal(err)
	}
	has(t, "apply", c.berth(t, "apply", "-f", file), "node/stranger created", "lease.coordination.k8s.io/stranger created", "pod/guest created")
	kube := c.Reader().Kube
	guest := func(ctx context.Context) (*corev1.Pod, error) {
		return kube.CoreV1().Pods("default").Get(ctx, "guest", metav1.GetOptions{})
	}
	c.eventually(t, "the reason why its pod waits", func(ctx context.Context) error {
		p, err := guest(ctx)
		if err != nil {
			return err
		}
		for _, cond := range p.Status.Conditions {
			if cond.Type == corev1.PodScheduled && strings.Contains(cond.Message, "untolerated taint") && p.Spec.NodeName == "" {
				return nil
			}
		}
		return fmt.Errorf("node %q, conditions %v", p.Spec.NodeName, p.Status.Conditions)
	})

	posted := func() {
		t.Helper()
		c.berth(t, "patch", "node", "stranger", "--subresource=status", "-p",
			`{"status":{"conditions":[{"type":"Ready","status":"True","reason":"StrangerReady"}]}}`)
	}
	posted()
	c.eventually(t, "its pod to be bound", func(ctx context.Context) error {
		p, err := guest(ctx)
		if err == nil && p.Spec.NodeName != "stranger" {
			err = errors.New("it waits")
		}
		return err
	})

	readySince := time.Now()
	c.eventually(t, "the node to live by its lease", func(ctx context.Context) error {
		c.berth(t, "patch", "lease", "stranger", "-n", "kube-node-lease", "--type=merge", "-p",
			fmt.Sprintf(`{"spec":{"renewTime":%q}}`, time.Now().Add(-time.Hour).UTC().Format(metav1.RFC3339Micro)))
		n, err := kube.CoreV1().Nodes().Get(ctx, "stranger", metav1.GetOptions{})
		switch {
		case err != nil:
			return err
		case !nodeReady(n): // this machine was too busy to renew it in time
			posted()
			readySince = time.Now()
		case time.Since(readySince) > 3*grace/2:
			return nil
		}
		return fmt.Errorf("it has done so for %s", time.Since(readySince))
	})

	c.eventually(t, "the node to be lost", func(ctx context.Context) error {
		n, err := kube.CoreV1().Nodes().Get(ctx, "stranger", metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, cond := range n.Status.Conditions {
			if cond.Type == corev1.NodeReady && cond.Status == corev1.ConditionUnknown && cond.Reason == "NodeStatusUnknown" && cond.LastHeartbeatTime.IsZero() {
				return nil
			}
		}
		return fmt.Errorf("its conditions are %v", n.Status.Conditions)
	})
	has(t, "get", c.berth(t, "get", "node", "stranger"), "NotReady")
	has(t, "describe", c.berth(t, "describe", "node", "stranger"), "NodeStatusUnknown", "the node's lease was not renewed", "NodeNotReady")
	// As long as every node is lost its pods stay: that is more likely the servers' fault.
	c.berthIn(t, strings.ReplaceAll(strings.Split(strangerManifest, "---")[0], "stranger", "neighbour")+
		"  conditions: [{type: Ready, status: \"True\"}]\n", "create", "-f", "-")
	c.eventually(t, "its pod to be evicted", func(ctx context.Context) error {
		c.berth(t, "patch", "node", "neighbour", "--subresource=status", "-p", fmt.Sprintf(
			`{"status":{"conditions":[{"type":"Ready","status":"True","lastHeartbeatTime":%q}]}}`, time.Now().UTC().Format(time.RFC3339)))
		p, err := guest(ctx)
		switch {
		case apierrors.IsNotFound(err):
			return nil
		case err == nil:
			err = fmt.Errorf("it is on %s, conditions %v", p.Spec.NodeName, p.Status.Conditions)
		}
		return err
	})
}

// A worker that is stopped in order has left gossip, and one that was killed has failed.
func TestAWorkerThatIsStoppedLeaves(t *testing.T) {
	t.Parallel() // it waits, mostly
	c := newCluster(t, server("server-1", "bootstrap_expect = 1"), worker("worker-1"), worker("worker-2"))
	if err := c.waitReady(t.Context()); err != nil {
		t.Fatal(err)
	}
	workers := c.Workers()
	workers[0].Signal(syscall.SIGTERM)
	workers[1].Kill()
	c.eventually(t, "what became of the workers", func(context.Context) error {
		out := c.berth(t, "members")
		for _, line := range strings.Split(out, "\n") {
			if strings.HasPrefix(line, "worker-1") && !strings.Contains(line, "left") ||
				strings.HasPrefix(line, "worker-2") && !strings.Contains(line, "failed") {
				return errors.New(out)
			}
		}
		return nil
	})
}
