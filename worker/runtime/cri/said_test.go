package cri

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// FuzzConfigured: what a container runtime shows of its configuration is understood or passed over.
func FuzzConfigured(f *testing.F) {
	f.Add(`{"sandboxImage":"pause","containerd":{"snapshotter":"overlayfs","defaultRuntimeName":"runc","runtimes":{"runc":{"options":{"SystemdCgroup":true}}}}}`)
	f.Add(`{"containerd":{"runtimes":null}}`)
	f.Add(`[]`)
	f.Fuzz(func(t *testing.T, text string) {
		var a, b about
		a.configured(text)
		b.configured(text)
		if a != b {
			t.Errorf("%+v, and %+v", a, b)
		}
	})
}

// FuzzCredentials: a secret of credentials is refused without a word of what is in it, or gives those that are for the image.
func FuzzCredentials(f *testing.F) {
	f.Add("registry.example.com/a/b:c", []byte(`{"auths":{"https://registry.example.com/v1/":{"auth":"dTpw"},"*.example.com":{"username":"u","password":"p"}}}`), false)
	f.Add("docker.io/library/busybox", []byte(`{"index.docker.io":{"auth":"dTpw"}}`), true)
	f.Add("a", []byte(`{"auths":{"[":{"auth":"-"}}}`), false)
	f.Fuzz(func(t *testing.T, image string, data []byte, old bool) {
		s := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "s"}, Type: corev1.SecretTypeDockerConfigJson, Data: map[string][]byte{corev1.DockerConfigJsonKey: data}}
		if old {
			s.Type, s.Data = corev1.SecretTypeDockercfg, map[string][]byte{corev1.DockerConfigKey: data}
		}
		got, err := credentials(image, []*corev1.Secret{s})
		if err != nil {
			if !strings.Contains(err.Error(), "image pull secret s") {
				t.Error(err)
			}
			return
		}
		for _, c := range got {
			if c.auth == nil {
				t.Error("an entry is nothing")
			}
		}
	})
}
