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
			c, err := LetGo(volume)
			if err != nil {
				return true // it was read from bytes: it can be written
			}
			out = append(out, c)
		}
		return len(out) < Batch
	})
	return out
}

// LetGo is the command by which a volume of model.LocalProvisioner is held no longer: its
// directory has gone, or is to stay.
func LetGo(volume *corev1.PersistentVolume) (fsm.Command, error) {
	raw, err := model.WithoutLocalFinalizer(volume).Marshal()
	if err != nil {
		return nil, err
	}
	revision, _ := strconv.ParseInt(volume.ResourceVersion, 10, 64) // the state's own
	return &fsm.PutObject{Resource: fsm.PersistentVolumes, Raw: raw, Revision: revision}, nil
}
