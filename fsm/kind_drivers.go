package fsm

import (
	networkingv1 "k8s.io/api/networking/v1"
	resourcev1 "k8s.io/api/resource/v1"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/berth-dev/berth/codec"
)

// The resources of what drivers and controllers of others' keep here, and of what users
// ask them for: drivers of volumes and of devices, and those that let traffic in.
const (
	Ingresses               = "ingresses"
	IngressClasses          = "ingressclasses"
	CSIDrivers              = "csidrivers"
	CSINodes                = "csinodes"
	CSIStorageCapacities    = "csistoragecapacities"
	VolumeAttachments       = "volumeattachments"
	VolumeAttributesClasses = "volumeattributesclasses"
	DeviceClasses           = "deviceclasses"
	ResourceClaims          = "resourceclaims"
	ResourceClaimTemplates  = "resourceclaimtemplates"
	ResourceSlices          = "resourceslices"
)

// SinceDrivers is the version of the rules that brought them. By those before, a pod that claims devices
// goes to any node.
const SinceDrivers = 20

// MaxNodeDrivers is how many drivers of volumes a CSINode may name: it is looked at for
// every pod with claims that may go to the node.
const MaxNodeDrivers = 64

func driverKinds() []ObjectKind {
	kind := func(group, resource, name string, clusterScoped bool, empty func() codec.Object) ObjectKind {
		return ObjectKind{Group: group, Resource: resource, Kind: name, ClusterScoped: clusterScoped, Since: SinceDrivers, New: empty}
	}
	return []ObjectKind{
		kind(networkingv1.GroupName, Ingresses, "Ingress", false, func() codec.Object { return new(networkingv1.Ingress) }),
		kind(networkingv1.GroupName, IngressClasses, "IngressClass", true, func() codec.Object { return new(networkingv1.IngressClass) }),
		kind(storagev1.GroupName, CSIDrivers, "CSIDriver", true, func() codec.Object { return new(storagev1.CSIDriver) }),
		kind(storagev1.GroupName, CSINodes, "CSINode", true, func() codec.Object { return new(storagev1.CSINode) }),
		kind(storagev1.GroupName, CSIStorageCapacities, "CSIStorageCapacity", false, func() codec.Object { return new(storagev1.CSIStorageCapacity) }),
		kind(storagev1.GroupName, VolumeAttachments, "VolumeAttachment", true, func() codec.Object { return new(storagev1.VolumeAttachment) }),
		kind(storagev1.GroupName, VolumeAttributesClasses, "VolumeAttributesClass", true, func() codec.Object { return new(storagev1.VolumeAttributesClass) }),
		kind(resourcev1.GroupName, DeviceClasses, "DeviceClass", true, func() codec.Object { return new(resourcev1.DeviceClass) }),
		kind(resourcev1.GroupName, ResourceClaims, "ResourceClaim", false, func() codec.Object { return new(resourcev1.ResourceClaim) }),
		kind(resourcev1.GroupName, ResourceClaimTemplates, "ResourceClaimTemplate", false, func() codec.Object { return new(resourcev1.ResourceClaimTemplate) }),
		kind(resourcev1.GroupName, ResourceSlices, "ResourceSlice", true, func() codec.Object { return new(resourcev1.ResourceSlice) }),
	}
}

// VolumeAttachment, DeviceClass and ResourceSlice find one by its name. It must not be changed.
func (v *View) VolumeAttachment(name string) (*storagev1.VolumeAttachment, bool) {
	return objectIn[storagev1.VolumeAttachment](v, VolumeAttachments, "", name)
}

func (v *View) DeviceClass(name string) (*resourcev1.DeviceClass, bool) {
	return objectIn[resourcev1.DeviceClass](v, DeviceClasses, "", name)
}

func (v *View) ResourceSlice(name string) (*resourcev1.ResourceSlice, bool) {
	return objectIn[resourcev1.ResourceSlice](v, ResourceSlices, "", name)
}
