package bench

import (
	"context"
	"errors"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/berth-dev/berth/fsm"
)

// replicaSetTarget is in pods a second.
const replicaSetTarget = 10_000

// replicaSet: one ReplicaSet is scaled from nothing, by one request.
func replicaSet(ctx context.Context, r *run) (err error) {
	c, err := r.start(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.stop(ctx)) }()
	clients, err := c.clients(1)
	if err != nil {
		return err
	}
	if err := createReplicaSet(ctx, clients[0], "web", 0, newPod("100m", "500Mi")); err != nil {
		return err
	}
	m, err := startMeter()
	if err != nil {
		return err
	}
	scale := &autoscalingv1.Scale{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: "web"},
		Spec:       autoscalingv1.ScaleSpec{Replicas: int32(r.Pods)},
	}
	if _, err := clients[0].AppsV1().ReplicaSets(metav1.NamespaceDefault).UpdateScale(ctx, "web", scale, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("scale the ReplicaSet: %w", err)
	}
	if err := c.awaitBound(ctx, r.Pods); err != nil {
		return err
	}
	if err := r.throughput(m, "scaled and bound", replicaSetTarget); err != nil {
		return err
	}
	return errors.Join(c.verify(ctx, r.Pods), verifyOwned(c.servers[0].View(), "web"))
}

func createReplicaSet(ctx context.Context, client kubernetes.Interface, name string, replicas int32, pod *corev1.Pod) error {
	app := map[string]string{appLabel: name}
	pod.Labels = app
	_, err := client.AppsV1().ReplicaSets(metav1.NamespaceDefault).Create(ctx, &appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: appsv1.ReplicaSetSpec{
			Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: app},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: app, Annotations: pod.Annotations}, Spec: pod.Spec},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("create ReplicaSet %s: %w", name, err)
	}
	return nil
}

// verifyOwned fails unless every pod is the ReplicaSet's.
func verifyOwned(v *fsm.View, name string) error {
	var err error
	v.Pods.Scan("", func(key string, pod *corev1.Pod) bool {
		if owner := metav1.GetControllerOf(pod); owner == nil || owner.Kind != "ReplicaSet" || owner.Name != name {
			err = fmt.Errorf("pod %s belongs to %v, and not to ReplicaSet %s", key, owner, name)
		}
		return err == nil
	})
	return err
}
