package e2e

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/agent/logind/logindtest"
)

// A machine that ends waits for its pods, which end in the order of their importance, and the node says so.
func TestMachineEnds(t *testing.T) {
	t.Run("process", func(t *testing.T) { machineEnds(t, nil) })
	t.Run("cri", func(t *testing.T) { machineEnds(t, realContainers(t)) })
}

func machineEnds(t *testing.T, d daemon) {
	logind := logindtest.Start(t, time.Hour)
	t.Setenv("DBUS_SYSTEM_BUS_ADDRESS", logind.Address)
	const option = `shutdown_grace = "1m"`
	c := oneWorker(t, d, option)
	logind.Await(1, 0)
	const ends = "trap 'exit 0' TERM; while :; do sleep 0.1; done"
	create(t, c.Reader().Kube, imaged("plain", ends), imaged("critical", ends, func(p *corev1.Pod) { p.Spec.PriorityClassName = "system-node-critical" }))
	c.waitRunning(t, "default", "plain", "critical")

	logind.Prepare(true)
	var finished []metav1.Time
	for _, name := range []string{"plain", "critical"} {
		p := c.waitFor(t, name, "to fail", func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodFailed })
		if p.Status.Reason != "Terminated" || !strings.Contains(p.Status.Message, "imminent node shutdown") {
			t.Errorf("%s: %s, %s", name, p.Status.Reason, p.Status.Message)
		}
		finished = append(finished, p.Status.ContainerStatuses[0].State.Terminated.FinishedAt)
	}
	if finished[1].Before(&finished[0]) {
		t.Errorf("the critical pod ended at %v, the other one at %v", finished[1], finished[0])
	}
	c.waitShutdown(t, true)
	logind.Await(1, 1)
	late := imaged("late", ends, func(p *corev1.Pod) { p.Spec.NodeName = "worker-1" })
	late.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
	create(t, c.Reader().Kube, late)
	if p := c.waitFor(t, "late", "to be refused", func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodFailed }); p.Status.Reason != "NodeShutdown" {
		t.Errorf("it is refused for %s", p.Status.Reason)
	}

	logind.Prepare(false) // it does not end after all
	logind.Await(2, 1)
	c.waitShutdown(t, false)
	create(t, c.Reader().Kube, imaged("after", ends))
	c.waitRunning(t, "default", "after")
}

// waitShutdown waits until the node says that its machine ends, or is ready again.
func (c *cluster) waitShutdown(t *testing.T, ends bool) {
	t.Helper()
	c.eventually(t, fmt.Sprintf("a node that ends: %v", ends), func(ctx context.Context) error {
		n, err := c.Reader().Kube.CoreV1().Nodes().Get(ctx, "worker-1", metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, condition := range n.Status.Conditions {
			if condition.Type != corev1.NodeReady {
				continue
			}
			said := condition.Status == corev1.ConditionFalse && strings.Contains(condition.Message, "node is shutting down")
			if said != ends || !ends && condition.Status != corev1.ConditionTrue {
				return fmt.Errorf("it says %s: %s", condition.Status, condition.Message)
			}
			return nil
		}
		return errors.New("it does not say whether it is ready")
	})
}
