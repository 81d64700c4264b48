package e2e

import (
	"encoding/base64"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/worker/runtime/cri/daemontest"
)

// Images of a registry that asks who one is are for pods that name a secret of it, or whose service account does. Others are told.
func secretPulls(t *testing.T, c *cluster) {
	kube := c.Reader().Kube
	image, err := daemontest.BusyboxImage("team/private:1")
	if err != nil {
		t.Fatal(err)
	}
	name := serveImage(t, image, "ada", "countess")
	host, _, _ := strings.Cut(name, "/")
	for secret, password := range map[string]string{"right": "countess", "wrong": "baroness"} {
		auth := base64.StdEncoding.EncodeToString([]byte("ada:" + password))
		s := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: secret}, Type: corev1.SecretTypeDockerConfigJson,
			Data: map[string][]byte{corev1.DockerConfigJsonKey: fmt.Appendf(nil, `{"auths":{%q:{"auth":%q}}}`, host, auth)}}
		if _, err := kube.CoreV1().Secrets("default").Create(t.Context(), s, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "puller"}, ImagePullSecrets: []corev1.LocalObjectReference{{Name: "right"}}}
	if _, err := kube.CoreV1().ServiceAccounts("default").Create(t.Context(), account, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	// Always: that another pod's secret has brought it must not help.
	private := func(pod string, secrets ...string) *corev1.Pod {
		return imaged(pod, "exec sleep 1000", func(p *corev1.Pod) {
			p.Spec.Containers[0].Image, p.Spec.Containers[0].ImagePullPolicy = name, corev1.PullAlways
			for _, s := range secrets {
				p.Spec.ImagePullSecrets = append(p.Spec.ImagePullSecrets, corev1.LocalObjectReference{Name: s})
			}
		})
	}
	ofAccount := private("pull-by-account")
	ofAccount.Spec.ServiceAccountName = "puller"
	create(t, kube, private("pull-by-none"), private("pull-by-wrong", "wrong"), private("pull-by-missing", "missing"),
		private("pull-by-right", "wrong", "right"), ofAccount)
	c.waitRunning(t, "default", "pull-by-right", "pull-by-account")
	for _, pod := range [...]string{"pull-by-right", "pull-by-account"} {
		c.hasEvent(t, pod, "Pulling", fmt.Sprintf("Pulling image %q", name))
		c.hasEvent(t, pod, "Pulled", fmt.Sprintf("Successfully pulled image %q in ", name))
	}
	why := "401 Unauthorized"
	if *crioPrograms != "" { // in words of its own
		why = "team/private"
	}
	for _, pod := range [...]string{"pull-by-none", "pull-by-wrong", "pull-by-missing"} {
		p := c.waitFor(t, pod, "to wait", func(p *corev1.Pod) bool { return waiting(p) == "ImagePullBackOff" })
		has(t, "what it is told", p.Status.ContainerStatuses[0].State.Waiting.Message, fmt.Sprintf("Back-off pulling image %q: ErrImagePull: ", name), why)
		c.hasEvent(t, pod, "Failed", fmt.Sprintf("Failed to pull image %q", name))
		c.hasEvent(t, pod, "Failed", "Error: ErrImagePull")
		c.hasEvent(t, pod, "BackOff", fmt.Sprintf("Back-off pulling image %q", name))
		c.hasEvent(t, pod, "Failed", "Error: ImagePullBackOff")
	}
	c.hasEvent(t, "pull-by-missing", "FailedToRetrieveImagePullSecret", `Unable to retrieve the image pull secret "missing"`)
	events, err := kube.CoreV1().Events("default").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range events.Items {
		if m := events.Items[i].Message; strings.Contains(m, "countess") || strings.Contains(m, "baroness") {
			t.Errorf("an event tells a password: %s", m)
		}
	}
}
