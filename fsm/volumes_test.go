package fsm

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestVolumesOfOddClasses: a volume whose class, by its annotation, looks like the claim that
// others are meant for is meant for none.
func TestVolumesOfOddClasses(t *testing.T) {
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "data", UID: "uid"}}
	odd := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{
		Name: "odd", Annotations: map[string]string{corev1.BetaStorageClassAnnotation: "=default/data"},
	}}
	odd.Status.Phase = corev1.VolumeAvailable
	v := newLive()
	put := func(volume *corev1.PersistentVolume) {
		indexVolumes(v, nil, &Object{Resource: PersistentVolumes, Value: volume})
	}
	put(odd)
	if v.isMeantFor(claim) {
		t.Error("a volume without a claim is meant for one")
	}
	meant := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "meant"}}
	meant.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "default", Name: "data", UID: "uid"}
	put(meant)
	if !v.isMeantFor(claim) {
		t.Error("the claim's own volume is not meant for it")
	}
}
