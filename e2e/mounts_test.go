package e2e

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// inCluster is the directory of a program for pods of any image (e2e/incluster).
var inCluster = sync.OnceValues(func() (string, error) {
	dir := filepath.Join(root, "incluster")
	cmd := exec.Command("go", "build", "-tags", "netgo,osusergo", "-ldflags", "-s -w", "-o", filepath.Join(dir, "incluster"), "./incluster")
	cmd.Stderr = os.Stderr
	return dir, cmd.Run()
})

// reachable is an address of this machine that pods with networks of their own can reach; empty: there is none.
func reachable() string {
	addrs, _ := net.InterfaceAddrs()
	for _, a := range addrs {
		if n, ok := a.(*net.IPNet); ok && n.IP.To4() != nil && n.IP.IsGlobalUnicast() {
			return n.IP.String()
		}
	}
	return ""
}

// A pod finds the API, is its service account there, and is nobody once it is gone; what it mounts follows changes, but
// for sub paths, and is not the pod's to change.
func mounts(t *testing.T, c *cluster) {
	dir, err := inCluster()
	if err != nil {
		t.Fatal(err)
	}
	kube := c.Reader().Kube
	c.berth(t, "create", "role", "mounts", "--verb=get", "--resource=pods")
	c.berth(t, "create", "rolebinding", "mounts", "--role=mounts", "--serviceaccount=default:default")
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "follow"}, Data: map[string]string{"key": "one"}}
	if _, err := kube.CoreV1().ConfigMaps("default").Create(t.Context(), cm, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	create(t, kube, imaged("mounts", `/client/incluster /api/v1/namespaces/default/pods/mounts /api/v1/namespaces/kube-system/secrets /api/v1/nodes
cat /var/run/secrets/kubernetes.io/serviceaccount/namespace; echo
cat /var/run/secrets/kubernetes.io/serviceaccount/token; echo
for file in /etc/follow/new /etc/labels/new /var/run/secrets/kubernetes.io/serviceaccount/new /etc/pinned; do (echo mine > $file) 2>/dev/null && echo wrote $file; done
until test "$(cat /etc/follow/key)" = two && grep -q new /etc/labels/labels; do sleep 0.1; done
echo "$(cat /etc/follow/key) $(cat /etc/pinned)"; exec sleep 1000`,
		volume("follow", "/etc/follow", corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "follow"}}}),
		volume("labels", "/etc/labels", corev1.VolumeSource{DownwardAPI: &corev1.DownwardAPIVolumeSource{Items: []corev1.DownwardAPIVolumeFile{
			{Path: "labels", FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v1", FieldPath: "metadata.labels"}}}}}),
		volume("client", "/client", corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: dir}}),
		func(p *corev1.Pod) {
			main := &p.Spec.Containers[0]
			main.VolumeMounts = append(main.VolumeMounts, corev1.VolumeMount{Name: "follow", MountPath: "/etc/pinned", SubPath: "key"})
		}))
	c.waitRunning(t, "default", "mounts")
	said := func(n int) []string {
		var lines []string
		c.eventually(t, fmt.Sprintf("the pod to say %d lines", n), func(context.Context) error {
			lines = strings.Split(strings.TrimSpace(c.berth(t, "logs", "mounts")), "\n")
			if len(lines) < n {
				return errors.New(strings.Join(lines, "; "))
			}
			return nil
		})
		return lines
	}
	lines := said(5)
	if got, want := strings.Join(lines[:4], "; "), "200 Pod mounts; 403 Status; 403 Status; default"; got != want {
		t.Errorf("the API answered %q, want %q", got, want)
	}
	config := rest.AnonymousClientConfig(c.Reader().RESTConfig())
	config.BearerToken = lines[4]
	pod, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	ask := func(ctx context.Context) error {
		_, err := pod.CoreV1().Pods("default").Get(ctx, "mounts", metav1.GetOptions{})
		return err
	}
	if err := ask(t.Context()); err != nil {
		t.Errorf("the pod's token: %v", err)
	}
	cm.Data["key"] = "two"
	if _, err := kube.CoreV1().ConfigMaps("default").Update(t.Context(), cm, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	c.berth(t, "label", "pod", "mounts", "is=new")
	if lines := said(6); lines[5] != "two one" {
		t.Errorf("after the change: %q", lines[5])
	}
	now := int64(0)
	if err := kube.CoreV1().Pods("default").Delete(t.Context(), "mounts", metav1.DeleteOptions{GracePeriodSeconds: &now}); err != nil {
		t.Fatal(err)
	}
	if err := ask(t.Context()); err == nil || !strings.Contains(err.Error(), "Unauthorized") {
		t.Errorf("the token of a pod that is gone: %v", err)
	}
}
