package fsm

import (
	"fmt"
	"maps"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/model"
)

// bindClaims gives the claims of a pod, which is about to be bound to a node, the volumes
// that they have there, in the entry that binds the pod: no volume is ever promised to two.
// A directory of a node needs no more than an object here; its worker makes it when it is
// first mounted. A volume that somebody else makes is asked for, and the pod is not
// bound until it is there: then it says why. Of its claims of devices it is noted that it uses them.
func (tx *Tx) bindClaims(pod *corev1.Pod, node *corev1.Node, class *model.Class) (why string) {
	v := tx.view
	if v.Version() < SinceVolumes {
		return ""
	}
	names, devices := model.Claims(pod), v.deviceClaims(pod)
	if len(names)+len(devices) == 0 && (len(pod.Spec.ResourceClaims) == 0 || v.Version() < SinceDevices) {
		return ""
	}
	if reasons := class.VolumeReasons(node); len(reasons) > 0 {
		return explain(node.Name, reasons)
	}
	if why := tx.bindVolumes(pod, names, node, class); why != "" {
		return why
	}
	tx.useDevices(pod, devices)
	return ""
}

func (tx *Tx) bindVolumes(pod *corev1.Pod, names []string, node *corev1.Node, class *model.Class) (why string) {
	v := tx.view
	waiting := v.claimsOf(pod, names, new(model.VolumesBuilder))
	chosen := class.ChooseVolumes(node)
	if len(chosen) != len(waiting) {
		return "the pod's claims have changed"
	}
	v.billUnits(len(waiting) * 2 * costChange)
	for i, claim := range waiting {
		if chosen[i] != "" {
			volume, _ := v.PersistentVolume(chosen[i])
			tx.giveVolume(claim, tx.claimVolume(claim, volume), node.Name)
			continue
		}
		storageClass, _ := v.StorageClass(model.ClaimClass(claim))
		not := v.notAtOnce(claim, storageClass)
		switch {
		case not == "":
			volume := tx.claimVolume(claim, model.LocalVolume(claim, storageClass, node, tx.newUID(), tx.now()))
			tx.giveVolume(claim, volume, node.Name)
		case storageClass.Provisioner == model.LocalProvisioner:
			return not
		default:
			tx.changeClaim(claim, func(c *corev1.PersistentVolumeClaim) {
				c.Annotations[model.SelectedNode] = node.Name
			})
			why = not
		}
	}
	return why
}

// notAtOnce says why no volume of a class can be made for a claim in the entry that wants one; "" if it can.
func (v *live) notAtOnce(claim *corev1.PersistentVolumeClaim, class *storagev1.StorageClass) string {
	if class.Provisioner != model.LocalProvisioner {
		return awaitsProvisioner(claim.Name, class.Provisioner)
	}
	name := model.LocalVolumeName(claim)
	if _, there := v.PersistentVolume(name); there {
		return fmt.Sprintf("there is a persistentvolume %q already", name)
	}
	return ""
}

// SinceBindingsLookFirst is the LogVersion from which on a binding by others is refused before anything is done for it.
const SinceBindingsLookFirst = 29

// neverAtOnce says which of a pod's claims would not have its volume on a node in the entry that binds the pod; "" for none.
func (v *live) neverAtOnce(pod *corev1.Pod, node *corev1.Node, class *model.Class) string {
	names := model.Claims(pod)
	if len(names) == 0 || v.Version() < SinceBindingsLookFirst {
		return ""
	}
	chosen := class.ChooseVolumes(node)
	for i, claim := range v.claimsOf(pod, names, new(model.VolumesBuilder)) {
		if i >= len(chosen) || chosen[i] != "" {
			continue
		}
		storageClass, _ := v.StorageClass(model.ClaimClass(claim))
		if not := v.notAtOnce(claim, storageClass); not != "" {
			return not
		}
	}
	return ""
}

// claimVolume stores that a volume is a claim's.
func (tx *Tx) claimVolume(claim *corev1.PersistentVolumeClaim, old *corev1.PersistentVolume) *corev1.PersistentVolume {
	volume := old.DeepCopy()
	volume.Spec.ClaimRef = &corev1.ObjectReference{
		Kind: "PersistentVolumeClaim", APIVersion: "v1", Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID, ResourceVersion: claim.ResourceVersion,
	}
	metav1.SetMetaDataAnnotation(&volume.ObjectMeta, model.BoundByController, "yes")
	now := tx.now()
	volume.Status.Phase, volume.Status.LastPhaseTransitionTime = corev1.VolumeBound, &now
	tx.storeObject(ObjectKey(PersistentVolumes, "", volume.Name), &Object{Resource: PersistentVolumes, Value: volume})
	return volume
}

// giveVolume stores that a claim has a volume.
func (tx *Tx) giveVolume(claim *corev1.PersistentVolumeClaim, volume *corev1.PersistentVolume, node string) {
	tx.changeClaim(claim, func(c *corev1.PersistentVolumeClaim) {
		c.Annotations[model.SelectedNode] = node
		c.Annotations[model.BindCompleted], c.Annotations[model.BoundByController] = "yes", "yes"
		if volume.Annotations[model.ProvisionedBy] == model.LocalProvisioner {
			c.Annotations[model.StorageProvisioner] = model.LocalProvisioner
		}
		c.Spec.VolumeName = volume.Name
		c.Status.Phase, c.Status.AccessModes, c.Status.Capacity = corev1.ClaimBound, volume.Spec.AccessModes, volume.Spec.Capacity.DeepCopy()
	})
}

// changeClaim stores a claim with other annotations, spec and status.
func (tx *Tx) changeClaim(old *corev1.PersistentVolumeClaim, change func(c *corev1.PersistentVolumeClaim)) {
	claim := *old
	if claim.Annotations = maps.Clone(old.Annotations); claim.Annotations == nil {
		claim.Annotations = map[string]string{}
	}
	change(&claim)
	tx.storeObject(ObjectKey(VolumeClaims, claim.Namespace, claim.Name), &Object{Resource: VolumeClaims, Value: &claim})
}
