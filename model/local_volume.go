package model

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Annotations and finalizers by which Kubernetes' controllers and provisioners tell of volumes.
const (
	BindCompleted      = "pv.kubernetes.io/bind-completed"
	BoundByController  = "pv.kubernetes.io/bound-by-controller"
	ProvisionedBy      = "pv.kubernetes.io/provisioned-by"
	SelectedNode       = "volume.kubernetes.io/selected-node"
	StorageProvisioner = "volume.kubernetes.io/storage-provisioner"
	VolumeProtection   = "kubernetes.io/pv-protection"

	// LocalFinalizer holds a volume of LocalProvisioner until its directory is gone.
	LocalFinalizer = "berth.dev/local"
)

// LocalVolumeName is the name of the volume that is made for a claim, and of its directory.
func LocalVolumeName(claim *corev1.PersistentVolumeClaim) string { return "pvc-" + string(claim.UID) }

// LocalVolume is a new volume for a claim: a directory of a node, whose name is the volume's. Its worker knows where it
// keeps such directories; the servers need not.
func LocalVolume(claim *corev1.PersistentVolumeClaim, class *storagev1.StorageClass, node *corev1.Node, uid types.UID, now metav1.Time) *corev1.PersistentVolume {
	name := LocalVolumeName(claim)
	filesystem := corev1.PersistentVolumeFilesystem
	reclaim := corev1.PersistentVolumeReclaimDelete
	if class.ReclaimPolicy != nil {
		reclaim = *class.ReclaimPolicy
	}
	on := corev1.NodeSelectorTerm{MatchFields: []corev1.NodeSelectorRequirement{
		{Key: metav1.ObjectNameField, Operator: corev1.NodeSelectorOpIn, Values: []string{node.Name}},
	}}
	if host, ok := node.Labels[corev1.LabelHostname]; ok { // kubectl shows it; two nodes may have one
		on.MatchExpressions = []corev1.NodeSelectorRequirement{{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{host}}}
	}
	return &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, UID: uid, CreationTimestamp: now, Finalizers: []string{VolumeProtection, LocalFinalizer},
			Annotations: map[string]string{ProvisionedBy: LocalProvisioner},
		},
		Spec: corev1.PersistentVolumeSpec{
			Capacity:    corev1.ResourceList{corev1.ResourceStorage: claim.Spec.Resources.Requests[corev1.ResourceStorage]},
			AccessModes: claim.Spec.AccessModes, PersistentVolumeReclaimPolicy: reclaim, StorageClassName: class.Name, VolumeMode: &filesystem,
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: LocalDriver, VolumeHandle: name}},
			NodeAffinity:           &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{on}}},
		},
	}
}

// LocalVolumeNode is the node that the directory of a volume of LocalProvisioner is on; "" of another volume.
func LocalVolumeNode(v *corev1.PersistentVolume) string {
	a := v.Spec.NodeAffinity
	if s := v.Spec.CSI; s == nil || s.Driver != LocalDriver || a == nil || a.Required == nil || len(a.Required.NodeSelectorTerms) != 1 {
		return ""
	}
	for _, f := range a.Required.NodeSelectorTerms[0].MatchFields {
		if f.Key == metav1.ObjectNameField && f.Operator == corev1.NodeSelectorOpIn && len(f.Values) == 1 {
			return f.Values[0]
		}
	}
	return ""
}

// MayRemove says whether what a volume of LocalProvisioner holds is to be removed: its deletion has begun, nobody claims it
// any more, and its policy says so.
func MayRemove(v *corev1.PersistentVolume) bool {
	return v.DeletionTimestamp != nil && v.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimDelete && IsLetGo(v)
}

// IsLetGo says whether nothing but LocalFinalizer holds a volume.
func IsLetGo(v *corev1.PersistentVolume) bool {
	return slices.Contains(v.Finalizers, LocalFinalizer) && !slices.Contains(v.Finalizers, VolumeProtection)
}

// WithoutLocalFinalizer is the volume once nothing of it is on its node any more, or is to stay there.
func WithoutLocalFinalizer(v *corev1.PersistentVolume) *corev1.PersistentVolume {
	out := v.DeepCopy()
	out.Finalizers = slices.DeleteFunc(out.Finalizers, func(f string) bool { return f == LocalFinalizer })
	return out
}
