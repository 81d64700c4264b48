package sched

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apiresource "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/model"
	"github.com/berth-dev/berth/sched/clustertest"
)

// The volumes of a world: claims c1 to c3 of two classes, one whose volumes somebody makes and one whose volumes are directories of
// nodes, and volumes v1 to v3. Each comes, goes and changes as its kind's API lets it, in any order.

// furnishVolumes has most of them there from the beginning, and volumes change often.
func (w *world) furnishVolumes() {
	w.claiming = true
	w.changesStorageClass("made")
	w.changesStorageClass("local")
	for _, name := range []string{"1", "2", "3"} {
		w.changesClaim("c" + name)
		w.changesVolume("v" + name)
	}
	w.events = append(w.events, slices.Repeat([]event{{"volumes", 1, (*world).changesVolumes}}, len(w.events)/3+1)...)
}

// claimsVolumes gives a pod some claims, which need not be there.
func (w *world) claimsVolumes(p *corev1.Pod) {
	if !w.claiming && w.pick("claims anything", "", "", "", "", "", "yes") == "" {
		return
	}
	for i := range len(w.pick("claims", "", "1", "1", "12")) {
		p.Spec.Volumes = append(p.Spec.Volumes, volumeOfClaim(fmt.Sprint("v", i), w.pick("claim", "c1", "c2", "c3")))
	}
}

func (w *world) changesVolumes() {
	switch w.pick("of volumes", "class", "claim", "claim", "volume", "volume", "binding") {
	case "class":
		w.changesStorageClass(w.pick("class", "made", "local"))
	case "claim":
		w.changesClaim(w.pick("claim", "c1", "c2", "c3"))
	case "volume":
		w.changesVolume(w.pick("volume", "v1", "v2", "v3"))
	case "binding":
		w.bindsClaim(w.pick("claim", "c1", "c2", "c3"), w.pick("volume", "v1", "v2", "v3"))
	}
}

// comesOrGoes removes an object that is there, and says whether there was none.
func (w *world) comesOrGoes(resource, namespace, name string) (comes bool) {
	if _, there := w.State.View().Objects.Get(fsm.ObjectKey(resource, namespace, name)); !there {
		return true
	}
	w.Must(&fsm.DeleteObject{Resource: resource, Namespace: namespace, Name: name})
	return false
}

func (w *world) changesStorageClass(name string) {
	if !w.comesOrGoes(fsm.StorageClasses, "", name) {
		return
	}
	mode := storagev1.VolumeBindingWaitForFirstConsumer
	if name == "made" && w.pick("when", "now", "later", "later") == "now" {
		mode = storagev1.VolumeBindingImmediate
	}
	by := map[string]string{"made": w.pick("by", model.NoProvisioner, "somebody.else"), "local": model.LocalProvisioner}[name]
	w.PutObject(fsm.StorageClasses, &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-" + name)},
		Provisioner: by, VolumeBindingMode: &mode})
}

func (w *world) accessModes() []corev1.PersistentVolumeAccessMode {
	return []corev1.PersistentVolumeAccessMode{corev1.PersistentVolumeAccessMode(
		w.pick("mode", string(corev1.ReadWriteOnce), string(corev1.ReadWriteMany), string(corev1.ReadWriteOncePod)))}
}

func (w *world) changesClaim(name string) {
	if !w.comesOrGoes(fsm.VolumeClaims, "default", name) {
		return
	}
	class := w.pick("claim's class", "made", "local")
	modes := w.accessModes()
	c := newClaim(name, class, w.pick("size", "1Gi", "2Gi"), modes...)
	c.UID = types.UID(fmt.Sprint("uid-", name, w.State.View().Revision()))
	w.PutObject(fsm.VolumeClaims, c)
}

func storage(size string) corev1.ResourceList {
	return corev1.ResourceList{corev1.ResourceStorage: apiresource.MustParse(size)}
}

// changesVolume lets a volume come or go, or lets go of its claim.
func (w *world) changesVolume(name string) {
	if old, ok := w.State.View().PersistentVolume(name); ok && old.Spec.ClaimRef != nil && w.pick("let go of", "yes", "no") == "yes" {
		v := old.DeepCopy()
		v.Spec.ClaimRef, v.Status.Phase = nil, corev1.VolumeAvailable
		w.PutObject(fsm.PersistentVolumes, v)
		return
	}
	if !w.comesOrGoes(fsm.PersistentVolumes, "", name) {
		return
	}
	v := newVolume(name, w.pick("capacity", "1Gi", "3Gi"), w.pick("volume's zone", "", "a", "b"))
	v.UID = types.UID(fmt.Sprint("uid-", name, w.State.View().Revision()))
	w.PutObject(fsm.PersistentVolumes, v)
}

// newVolume is a volume that any claim of the class "made" can be given, on nodes of a zone unless that is "".
func newVolume(name, capacity, zone string) *corev1.PersistentVolume {
	v := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PersistentVolumeSpec{
			Capacity: storage(capacity), AccessModes: []corev1.PersistentVolumeAccessMode{
				corev1.ReadWriteOnce, corev1.ReadWriteMany, corev1.ReadWriteOncePod},
			StorageClassName: "made", PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
			PersistentVolumeSource: corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/data"}},
		},
		Status: corev1.PersistentVolumeStatus{Phase: corev1.VolumeAvailable}}
	if zone != "" {
		v.Spec.NodeAffinity = &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
			MatchExpressions: []corev1.NodeSelectorRequirement{{Key: zoneKey, Operator: corev1.NodeSelectorOpIn, Values: []string{zone}}},
		}}}}
	}
	return v
}

// newClaim is a claim that nobody has given a volume.
func newClaim(name, class, size string, modes ...corev1.PersistentVolumeAccessMode) *corev1.PersistentVolumeClaim {
	return &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec: corev1.PersistentVolumeClaimSpec{AccessModes: modes, StorageClassName: &class,
			Resources: corev1.VolumeResourceRequirements{Requests: storage(size)}},
		Status: corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimPending}}
}

// claiming is a pod with a volume that a claim is to give it.
func claiming(claim, words string) *corev1.Pod {
	p := clustertest.Pod(words)
	p.Spec.Volumes = append(p.Spec.Volumes, volumeOfClaim("data", claim))
	return p
}

func volumeOfClaim(name, claim string) corev1.Volume {
	return corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{
		PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim},
	}}
}

// bindsClaim gives a claim a volume, as Kubernetes' own controller does for one that waits for nobody: first the volume, then the claim.
func (w *world) bindsClaim(claim, volume string) {
	c, ok := w.State.View().VolumeClaim("default", claim)
	v, found := w.State.View().PersistentVolume(volume)
	if !ok || !found || c.Spec.VolumeName != "" || v.Spec.ClaimRef != nil {
		return
	}
	v = v.DeepCopy()
	v.Spec.ClaimRef = &corev1.ObjectReference{Kind: "PersistentVolumeClaim", APIVersion: "v1", Namespace: "default", Name: claim, UID: c.UID}
	v.Status.Phase = corev1.VolumeBound
	w.PutObject(fsm.PersistentVolumes, v)
	if w.pick("the claim", "at once", "later") == "later" {
		w.NowUnixNano += second
		if c, ok = w.State.View().VolumeClaim("default", claim); !ok || c.Spec.VolumeName != "" {
			return
		}
	}
	c = c.DeepCopy()
	c.Spec.VolumeName, c.Status.Phase = volume, corev1.ClaimBound
	metav1.SetMetaDataAnnotation(&c.ObjectMeta, model.BindCompleted, "yes")
	w.PutObject(fsm.VolumeClaims, c)
}
