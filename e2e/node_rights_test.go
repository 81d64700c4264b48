package e2e

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// Who has the certificate of a node sees at the API what the node's pods need, as long as they are there, and
// nothing of another node's.
func TestNodeAtTheAPI(t *testing.T) {
	c, s, added := joined(t, 1)
	namespace := c.namespace(t, "rights")
	for _, node := range []string{"w1", "w2"} {
		if _, err := s.Kube.CoreV1().Secrets(namespace).Create(t.Context(), &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Name: node}, StringData: map[string]string{"KEY": "of-" + node},
		}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		p := pod(namespace, node, "sleep 1000", on(node))
		p.Spec.Containers[0].EnvFrom = []corev1.EnvFromSource{{SecretRef: &corev1.SecretEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: node}}}}
		create(t, s.Kube, p)
	}
	c.waitRunning(t, namespace, "w1", "w2") // the workers fetch by the same rule
	config := rest.AnonymousClientConfig(s.RESTConfig())
	config.CertFile = filepath.Join(added[0].DataDir, "tls", "node.pem")
	config.KeyFile = config.CertFile
	w1, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	own, err := w1.CoreV1().Secrets(namespace).Get(ctx, "w1", metav1.GetOptions{})
	if err != nil || string(own.Data["KEY"]) != "of-w1" {
		t.Errorf("its own secret: %v %v", own.Data, err)
	}
	forbidden := func(what string, err error) {
		t.Helper()
		if !apierrors.IsForbidden(err) {
			t.Errorf("%s: %v", what, err)
		}
	}
	_, err = w1.CoreV1().Secrets(namespace).Get(ctx, "w2", metav1.GetOptions{})
	forbidden("another node's secret", err)
	_, err = w1.CoreV1().Secrets("").List(ctx, metav1.ListOptions{})
	forbidden("all secrets", err)
	_, err = w1.CoreV1().Pods("").List(ctx, metav1.ListOptions{})
	forbidden("all pods", err)
	_, err = w1.CoreV1().Nodes().Patch(ctx, "w2", types.MergePatchType, []byte(`{"metadata":{"labels":{"a":"b"}}}`), metav1.PatchOptions{})
	forbidden("another node", err)
	_, err = w1.CoreV1().Pods(namespace).Patch(ctx, "w2", types.MergePatchType, []byte(`{"status":{"phase":"Failed"}}`), metav1.PatchOptions{}, "status")
	forbidden("the status of another's pod", err)
	forbidden("another's pod", w1.CoreV1().Pods(namespace).Delete(ctx, "w2", metav1.DeleteOptions{}))
	_, err = w1.CoreV1().Pods(namespace).Create(ctx, pod(namespace, "mine", "true", on("w1")), metav1.CreateOptions{})
	forbidden("a pod of its own making", err)

	watch, err := w1.CoreV1().Secrets(namespace).Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=w1"})
	if err != nil {
		t.Fatal(err)
	}
	defer watch.Stop()
	if e := <-watch.ResultChan(); e.Type != "ADDED" {
		t.Error(e)
	}
	now := int64(0)
	if err := s.Kube.CoreV1().Pods(namespace).Delete(ctx, "w1", metav1.DeleteOptions{GracePeriodSeconds: &now}); err != nil {
		t.Fatal(err)
	}
	for range watch.ResultChan() { // it ends
	}
	c.eventually(t, "its right to have ended", func(ctx context.Context) error {
		_, err := w1.CoreV1().Secrets(namespace).Get(ctx, "w1", metav1.GetOptions{})
		if err == nil || !strings.Contains(err.Error(), "no relationship found") {
			return errors.Join(errors.New("it reads what no pod of its needs"), err)
		}
		return nil
	})
}
