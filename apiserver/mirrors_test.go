package apiserver

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A worker shows its own static pods, and nothing by which it could do more.
func TestMirrorOf(t *testing.T) {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", UID: "of-n1"}}
	right := func() *corev1.Pod {
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web-n1", UID: "chosen", Annotations: map[string]string{
				configHash: "abc", corev1.MirrorPodAnnotationKey: "abc"}},
			Spec: corev1.PodSpec{NodeName: "n1", Containers: []corev1.Container{{Name: "a", Image: "b"}}},
		}
	}
	foreign := right()
	foreign.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "rs", UID: "of-rs"}}
	m, err := MirrorOf(foreign, node)
	if err != nil {
		t.Fatal(err)
	}
	if o := m.OwnerReferences; len(o) != 1 || o[0].Kind != "Node" || o[0].UID != "of-n1" || !*o[0].Controller || m.UID != "" {
		t.Errorf("%+v", m.ObjectMeta)
	}
	for what, wrong := range map[string]func(p *corev1.Pod){
		"its node is":             func(p *corev1.Pod) { p.Spec.NodeName = "n2" },
		"it has not":              func(p *corev1.Pod) { delete(p.Annotations, corev1.MirrorPodAnnotationKey) },
		"with one value":          func(p *corev1.Pod) { p.Annotations[configHash] = "other" },
		"it has finalizers":       func(p *corev1.Pod) { p.Finalizers = []string{"example.com/never"} },
		"refers to serviceaccoun": func(p *corev1.Pod) { p.Spec.ServiceAccountName = "admin" },
		"refers to secrets": func(p *corev1.Pod) {
			p.Spec.ImagePullSecrets = []corev1.LocalObjectReference{{Name: "registry"}}
		},
		"refers to persistentvolumeclaims": func(p *corev1.Pod) {
			p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "c"}}}}
		},
	} {
		p := right()
		wrong(p)
		if m, err := MirrorOf(p, node); err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("%s: %v, %v", what, m, err)
		}
	}
}
