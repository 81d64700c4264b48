package e2e

import (
	"encoding/base64"
	"fmt"
	"net/http"
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
	secret := func(name, password string) {
		auth := base64.StdEncoding.EncodeToString([]byte("ada:" + password))
		s := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}, Type: corev1.SecretTypeDockerConfigJson,
			Data: map[string][]byte{corev1.DockerConfigJsonKey: fmt.Appendf(nil, `{"auths":{%q:{"auth":%q}}}`, host, auth)}}
		if _, err := kube.CoreV1().Secrets("default").Create(t.Context(), s, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	secret("right", "countess")
	secret("wrong", "baroness")
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "puller"}, ImagePullSecrets: []corev1.LocalObjectReference{{Name: "right"}}}
	if _, err := kube.CoreV1().ServiceAccounts("default").Create(t.Context(), account, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	private := func(pod string, secrets ...string) *corev1.Pod {
		return ofImage(pod, name, corev1.PullAlways, secrets...)
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
	imagesOfOthers(t, c, name, secret)
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

// ofImage is a pod of an image, with secrets for it.
func ofImage(pod, image string, policy corev1.PullPolicy, secrets ...string) *corev1.Pod {
	return imaged(pod, "exec sleep 1000", func(p *corev1.Pod) {
		p.Spec.Containers[0].Image, p.Spec.Containers[0].ImagePullPolicy = image, policy
		for _, s := range secrets {
			p.Spec.ImagePullSecrets = append(p.Spec.ImagePullSecrets, corev1.LocalObjectReference{Name: s})
		}
	})
}

// imagesOfOthers: an image that is here because a secret has brought it is for those alone who have that secret, or what it says: also by its digest, also with a worker
// that was killed meanwhile. Whoever else asks the registry, or, where he may not ask it, is told that it is not here.
func imagesOfOthers(t *testing.T, c *cluster, name string, secret func(name, password string)) {
	kube := c.Reader().Kube
	w := c.Workers()[0]
	w.Kill()
	if err := w.Start(); err != nil {
		t.Fatal(err)
	}
	byDigest := strings.TrimSuffix(name, ":1") + "@" + digestOf(t, name, "ada", "countess")
	const here, never = corev1.PullIfNotPresent, corev1.PullNever
	ofAccount := ofImage("kept-account", name, here)
	ofAccount.Spec.ServiceAccountName = "puller"
	create(t, kube, ofAccount, ofImage("kept-right", name, here, "wrong", "right"), ofImage("kept-digest-right", byDigest, here, "right"), ofImage("never-right", name, never, "right"),
		ofImage("kept-none", name, here), ofImage("kept-wrong", name, here, "wrong"), ofImage("kept-digest-none", byDigest, here), ofImage("never-none", name, never))
	used := func(pods ...string) {
		t.Helper()
		for _, pod := range pods {
			c.waitRunning(t, "default", pod)
			c.hasEvent(t, pod, "Pulled", "already present on machine and can be accessed by the pod")
		}
	}
	asked := func(pods ...string) {
		t.Helper()
		for _, pod := range pods {
			c.waitFor(t, pod, "to wait", func(p *corev1.Pod) bool { return waiting(p) == "ImagePullBackOff" })
			c.hasEvent(t, pod, "Failed", "Failed to pull image")
		}
	}
	used("kept-account", "kept-right", "kept-digest-right", "never-right")
	asked("kept-none", "kept-wrong", "kept-digest-none")
	p := c.waitFor(t, "never-none", "to wait", func(p *corev1.Pod) bool { return waiting(p) == "ErrImageNeverPull" })
	has(t, "what it is told", p.Status.ContainerStatuses[0].State.Waiting.Message, "is not present with pull policy of Never")
	// A secret that was made anew is another one, and counts by what it says.
	for i, password := range []string{"countess", "baroness"} {
		if err := kube.CoreV1().Secrets("default").Delete(t.Context(), "right", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		secret("right", password)
		pod := fmt.Sprintf("kept-anew-%d", i)
		create(t, kube, ofImage(pod, name, here, "right"))
		if i == 0 {
			used(pod)
		} else {
			asked(pod)
		}
	}
}

// digestOf is what a registry calls an image for good.
func digestOf(t *testing.T, name, user, password string) string {
	t.Helper()
	host, path, _ := strings.Cut(name, "/")
	repository, tag, _ := strings.Cut(path, ":")
	req, err := http.NewRequestWithContext(t.Context(), http.MethodHead, "http://"+host+"/v2/"+repository+"/manifests/"+tag, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.SetBasicAuth(user, password)
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		t.Fatal(res.Status)
	}
	return res.Header.Get("Docker-Content-Digest")
}
