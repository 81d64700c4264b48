package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const scaledWorkload = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: busy}
spec:
  selector: {matchLabels: {app: busy}}
  template:
    metadata: {labels: {app: busy}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
      - name: main
        image: none
        command: ["/bin/sh", "-c", "while :; do if test -e %s; then i=0; while test $i -lt 20000; do i=$((i+1)); done; else sleep 1; fi; done"]
        resources: {requests: {cpu: 50m}, limits: {cpu: 100m}}
`

// A workload grows while its pods are busy, and shrinks when they are not.
func TestAutoscaler(t *testing.T) {
	c := newCluster(t,
		server("server-1", "bootstrap_expect = 1", `autoscaler {
  period                  = "1s"
  downscale_stabilization = "3s"
  cpu_initialization      = "0s"
  initial_readiness_delay = "0s"
}`),
		worker("worker-1", `sample_interval = "1s"`))
	if err := c.waitReady(t.Context()); err != nil {
		t.Fatal(err)
	}
	work := filepath.Join(t.TempDir(), "work")
	if err := os.WriteFile(work, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	c.berthIn(t, fmt.Sprintf(scaledWorkload, work), "create", "-f", "-")
	c.berth(t, "autoscale", "deployment", "busy", "--cpu=60%", "--min=1", "--max=3")
	autoscalers := c.Reader().Kube.AutoscalingV2().HorizontalPodAutoscalers("default")
	becomes := func(what string, replicas int32) *autoscalingv2.HorizontalPodAutoscaler {
		var a *autoscalingv2.HorizontalPodAutoscaler
		c.eventually(t, what, func(ctx context.Context) error {
			d, err := c.Reader().Kube.AppsV1().Deployments("default").Get(ctx, "busy", metav1.GetOptions{})
			if err != nil {
				return err
			}
			if a, err = autoscalers.Get(ctx, "busy", metav1.GetOptions{}); err != nil {
				return err
			}
			if d.Status.ReadyReplicas != replicas || *d.Spec.Replicas != replicas || a.Status.CurrentReplicas != replicas {
				return fmt.Errorf("%d are wanted, %d are ready; the autoscaler: %+v", *d.Spec.Replicas, d.Status.ReadyReplicas, a.Status)
			}
			return nil
		})
		return a
	}
	a := becomes("the workload to grow", 3)
	if len(a.Status.CurrentMetrics) != 1 || a.Status.CurrentMetrics[0].Resource == nil || a.Status.CurrentMetrics[0].Resource.Name != corev1.ResourceCPU {
		t.Errorf("it goes by %+v", a.Status.CurrentMetrics)
	}
	for _, condition := range a.Status.Conditions {
		if condition.Type == autoscalingv2.ScalingActive && condition.Status != corev1.ConditionTrue {
			t.Errorf("it says %+v", condition)
		}
	}
	if out := c.berth(t, "get", "hpa"); !strings.Contains(out, "Deployment/busy") || strings.Contains(out, "<unknown>") {
		t.Errorf("berth get hpa:\n%s", out)
	}
	if err := os.Remove(work); err != nil {
		t.Fatal(err)
	}
	becomes("the workload to shrink", 1)
}
