package fsm

import (
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/berth-dev/berth/codec"
)

// The resources of volumes that outlive a pod, of what asks for them, and of their
// classes.
const (
	PersistentVolumes = "persistentvolumes"
	VolumeClaims      = "persistentvolumeclaims"
	StorageClasses    = "storageclasses"
)

// SinceVolumes is the version of the rules that brought volumes that outlive a pod. By
// those before nobody asks whether there are any: a pod goes to a node whatever it
// claims.
const SinceVolumes = 10

func volumeKinds() []ObjectKind {
	return []ObjectKind{
		{
			Resource: PersistentVolumes, Kind: "PersistentVolume", ClusterScoped: true, Since: SinceVolumes,
			New: func() codec.Object { return new(corev1.PersistentVolume) },
		},
		{
			Resource: VolumeClaims, Kind: "PersistentVolumeClaim", Since: SinceVolumes,
			New: func() codec.Object { return new(corev1.PersistentVolumeClaim) },
		},
		{
			Group: storagev1.GroupName, Resource: StorageClasses, Kind: "StorageClass", ClusterScoped: true, Since: SinceVolumes,
			New: func() codec.Object { return new(storagev1.StorageClass) },
		},
	}
}

// VolumeClaim, PersistentVolume and StorageClass find one by its name. It must not be
// changed.
func (v *View) VolumeClaim(namespace, name string) (*corev1.PersistentVolumeClaim, bool) {
	return objectIn[corev1.PersistentVolumeClaim](v, VolumeClaims, namespace, name)
}

func (v *View) PersistentVolume(name string) (*corev1.PersistentVolume, bool) {
	return objectIn[corev1.PersistentVolume](v, PersistentVolumes, "", name)
}

func (v *View) StorageClass(name string) (*storagev1.StorageClass, bool) {
	return objectIn[storagev1.StorageClass](v, StorageClasses, "", name)
}

func objectIn[T any, P interface {
	*T
	codec.Object
}](v *View, resource, namespace, name string) (P, bool) {
	return objectAt[T, P](v, resource, namespace+"/"+name)
}

// objectAt is objectIn by the namespace and name as they stand in the object's key.
func objectAt[T any, P interface {
	*T
	codec.Object
}](v *View, resource, key string) (P, bool) {
	o, ok := v.Objects.Get(resource + "/" + key)
	if !ok {
		return nil, false
	}
	value, ok := o.Value.(P)
	return value, ok
}
