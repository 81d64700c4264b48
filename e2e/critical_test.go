package e2e

import (
	"context"
	"errors"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// PR21: a critical pod that came with its node finds it full. The node makes
// room for it, and the pod that had to go is replaced elsewhere.
func TestCriticalPodAtItsNode(t *testing.T) {
	s := newSets(t, sharedCluster(t), "critical")
	kube := s.Reader().Kube
	web := pod(s.ns, "web", "exec sleep 1000", cpu("3"))
	s.create(replicaSet(web, 1))
	victim := s.settled("web", 1)[0]

	// A pod that asks for nothing that is missing stays.
	idle := pod(s.ns, "idle", "exec sleep 1000")
	critical := pod(s.ns, "critical", "exec sleep 1000", cpu("2"), class("system-node-critical"))
	idle.Spec.NodeName, critical.Spec.NodeName = victim.Spec.NodeName, victim.Spec.NodeName
	create(t, kube, idle)
	s.waitRunning(t, s.ns, "idle")
	create(t, kube, critical)
	s.waitRunning(t, s.ns, "critical", "idle")

	s.eventually(t, "the victim to have failed", func(ctx context.Context) error {
		p, err := kube.CoreV1().Pods(s.ns).Get(ctx, victim.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, c := range p.Status.Conditions {
			if c.Type == corev1.DisruptionTarget && c.Status == corev1.ConditionTrue && c.Reason == corev1.PodReasonTerminationByKubelet &&
				p.Status.Phase == corev1.PodFailed && p.Status.Reason == "Preempting" && p.Status.Message == "Preempted in order to admit critical pod" {
				return nil
			}
		}
		return fmt.Errorf("its status is %+v", p.Status)
	})
	s.eventually(t, "the event of its end", func(ctx context.Context) error {
		list, err := kube.CoreV1().Events(s.ns).List(ctx, metav1.ListOptions{FieldSelector: "reason=Preempting,involvedObject.name=" + victim.Name})
		if err == nil && len(list.Items) != 1 {
			err = fmt.Errorf("there are %d", len(list.Items))
		}
		return err
	})
	s.eventually(t, "its replacement", func(ctx context.Context) error {
		for _, p := range s.active(ctx, "web") {
			if podReady(&p) && p.Spec.NodeName != victim.Spec.NodeName {
				return nil
			}
		}
		return errors.New("there is none that is ready elsewhere")
	})
}
