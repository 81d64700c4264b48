package controller

import (
	"strconv"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/model"
)

// LocalVolumes ends the volumes of model.LocalProvisioner that nobody claims any more: one
// whose policy says so is deleted, which its worker sees, and removes the directory. Where
// the directory is to stay, or went with its node, nothing holds the volume any longer.
func LocalVolumes(v *fsm.View) []fsm.Command {
	var out []fsm.Command
	v.EndingVolumes(func(volume *corev1.PersistentVolume) bool {
		_, node := v.Nodes.Get(model.LocalVolumeNode(volume))
		removed := volume.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimDelete
		switch {
		case volume.DeletionTimestamp == nil && removed:
			out = append(out, &fsm.DeleteObject{
				Resource: fsm.PersistentVolumes, Name: volume.Name, Precondition: fsm.Precondition{UID: string(volume.UID)},
			})
		case volume.DeletionTimestamp != nil && model.IsLetGo(volume) && !(removed && node):
			raw, err := model.WithoutLocalFinalizer(volume).Marshal()
			if err != nil {
				return true // it was read from bytes: it can be written
			}
			revision, _ := strconv.ParseInt(volume.ResourceVersion, 10, 64) // the state's own
			out = append(out, &fsm.PutObject{Resource: fsm.PersistentVolumes, Raw: raw, Revision: revision})
		}
		return len(out) < Batch
	})
	return out
}
