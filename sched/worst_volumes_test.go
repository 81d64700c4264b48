package sched

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/codec"
	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/model/volumetest"
)

type worstVolumes = volumetest.Plan

func (w *worstWorld) storeNew(kind string, o codec.Object) fsm.Command {
	raw, err := o.Marshal()
	if err != nil {
		panic(err)
	}
	return &fsm.PutObject{Resource: kind, Raw: raw, Create: true}
}

func (w *worstWorld) volumes() *volumetest.World {
	return &volumetest.World{
		Plan: w.Volumes, Nodes: w.Nodes, Zones: w.Zones, NodeName: w.nodeName, Namespace: func(int) string { return "default" },
	}
}

func (w *worstWorld) makeVolumes() {
	if w.Volumes == (worstVolumes{}) {
		return
	}
	of := w.volumes()
	w.Must(w.storeNew(fsm.StorageClasses, of.Class()))
	w.many(of.Free, func(i int) fsm.Command { return w.storeNew(fsm.PersistentVolumes, of.Volume(i)) })
	n := of.Claims
	if of.Bound {
		w.many(w.claiming()*n, func(i int) fsm.Command { return w.storeNew(fsm.PersistentVolumes, of.BoundVolume(i/n, i%n)) })
	}
	w.many(w.claiming()*n, func(i int) fsm.Command { return w.storeNew(fsm.VolumeClaims, of.Claim(i/n, i%n)) })
}

// claiming is how many shapes have claims.
func (w *worstWorld) claiming() int { return w.Volumes.Claiming(max(1, w.Shapes)) }

// giveClaims gives a waiting pod those of its shape.
func (w *worstWorld) giveClaims(pod *corev1.Pod, shape int) {
	if shape < w.claiming() {
		w.Volumes.Give(pod, shape)
	}
}
