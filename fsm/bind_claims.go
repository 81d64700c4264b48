package fsm

import (
	"fmt"
	"maps"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/model"
)

// bindClaims gives the claims of a pod, which is about to be bound to a node, the volumes
// that they have there, in the entry that binds the pod: no volume is ever promised to two.
// A directory of a node needs no more than an object here; its worker makes it when it is
// first mounted. A volume that somebody else makes is asked for, and the pod is not
// bound until it is there: then it says why.
func (tx *Tx) bindClaims(pod *corev1.Pod, node *corev1.Node, class *model.Class) (why string) {
	v := tx.view
	if v.Version() < SinceVolumes {
		return ""
	}
	names := model.Claims(pod)
	if len(names) == 0 {
		return ""
	}
	if reasons := class.VolumeReasons(node); len(reasons) > 0 {
		return explain(node.Name, reasons)
	}
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
		if storageClass.Provisioner == model.LocalProvisioner {
			made := model.LocalVolume(claim, storageClass, node, tx.newUID(), tx.now())
			if _, there := v.PersistentVolume(made.Name); there {
				return fmt.Sprintf("there is a persistentvolume %q already", made.Name)
			}
			volume := tx.claimVolume(claim, made)
			tx.giveVolume(claim, volume, node.Name)
			continue
		}
		tx.changeClaim(claim, func(c *corev1.PersistentVolumeClaim) {
			c.Annotations[model.SelectedNode] = node.Name
		})
		why = awaitsProvisioner(claim.Name, storageClass.Provisioner)
	}
	return why
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
