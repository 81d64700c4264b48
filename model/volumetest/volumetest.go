// Package volumetest makes the claims and volumes of big worlds: those in which tests search for what is dear, for
// the state machine and for the scheduler alike.
package volumetest

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apiresource "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/model"
)

// Plan says what claims waiting pods have, and what volumes they can be given.
type Plan struct {
	Free    int  // volumes of the one class, of a hundred sizes
	At      int  // each is 0: on one host, 1: in a zone, 2: everywhere, 3: on two hosts, 4: on one and one that is not there
	Claims  int  // of each waiting pod; of so many shapes that there are not too many in all
	Demands int  // different ones, by selectors
	Bound   bool // the claims have volumes already, each with a long node affinity
	Single  bool // one pod at a time may use a claim
}

// World is a plan with the nodes and namespaces that it is carried out in.
type World struct {
	Plan
	Nodes, Zones int
	NodeName     func(node int) string
	Namespace    func(shape int) string // of a shape's pods
}

const className, maxClaims = "disks", 20_000

// Claiming is how many of so many shapes have claims.
func (p Plan) Claiming(shapes int) int { return min(shapes, maxClaims/max(1, p.Claims)) }

// Class is the one class: its volumes are given with a pod's node.
func (p Plan) Class() *storagev1.StorageClass {
	mode := storagev1.VolumeBindingWaitForFirstConsumer
	return &storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{Name: className, UID: className}, Provisioner: model.NoProvisioner, VolumeBindingMode: &mode}
}

// Volume is the i-th that is free.
func (w *World) Volume(i int) *corev1.PersistentVolume {
	v := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("volume-%06d", i), UID: types.UID(fmt.Sprintf("volume-%06d", i)), Labels: map[string]string{"disk": "ssd"}},
		Spec: corev1.PersistentVolumeSpec{
			Capacity:    corev1.ResourceList{corev1.ResourceStorage: *apiresource.NewQuantity(int64(1+i%100)<<30, apiresource.BinarySI)},
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce, corev1.ReadWriteOncePod}, StorageClassName: className,
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
			PersistentVolumeSource:        corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: "/data"}},
		}}
	v.Status.Phase = corev1.VolumeAvailable
	on := func(hosts ...string) {
		v.Spec.NodeAffinity = &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
			MatchExpressions: []corev1.NodeSelectorRequirement{{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: hosts}}}}}}
	}
	switch w.At {
	case 0:
		on(w.NodeName(i % w.Nodes))
	case 1:
		v.Labels[corev1.LabelTopologyZone] = fmt.Sprintf("zone-%d", i%w.Zones)
	case 3:
		on(w.NodeName(i%w.Nodes), w.NodeName((i+1)%w.Nodes))
	case 4:
		on(w.NodeName(i%w.Nodes), fmt.Sprintf("gone-%d", i))
	}
	return v
}

func claimName(shape, i int) string { return fmt.Sprintf("claim-%05d-%03d", shape, i) }

// Claim is the i-th of a shape's pods.
func (w *World) Claim(shape, i int) *corev1.PersistentVolumeClaim {
	class, mode := className, corev1.ReadWriteOnce
	if w.Single {
		mode = corev1.ReadWriteOncePod
	}
	c := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.Namespace(shape), Name: claimName(shape, i), UID: types.UID("uid-" + claimName(shape, i))},
		Spec: corev1.PersistentVolumeClaimSpec{AccessModes: []corev1.PersistentVolumeAccessMode{mode}, StorageClassName: &class,
			Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{
				corev1.ResourceStorage: *apiresource.NewQuantity(int64(1+i%100)<<30, apiresource.BinarySI)}}}}
	if w.Demands > 1 {
		c.Spec.Selector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{
			Key: "disk", Operator: metav1.LabelSelectorOpNotIn, Values: []string{fmt.Sprintf("not-%d", i%w.Demands)}}}}
	}
	if w.Bound {
		c.Annotations = map[string]string{model.BindCompleted: "yes"}
		c.Spec.VolumeName, c.Status.Phase = "of-"+claimName(shape, i), corev1.ClaimBound
	}
	return c
}

// BoundVolume is the one that a claim has, which every node can reach by the last of its terms.
func (w *World) BoundVolume(shape, i int) *corev1.PersistentVolume {
	v := w.Volume(i)
	name := "of-" + claimName(shape, i)
	v.Name, v.UID, v.Status.Phase = name, types.UID(name), corev1.VolumeBound
	v.Spec.ClaimRef = &corev1.ObjectReference{Namespace: w.Namespace(shape), Name: claimName(shape, i), UID: types.UID("uid-" + claimName(shape, i))}
	s := &corev1.NodeSelector{}
	for t := range 64 {
		e := corev1.NodeSelectorRequirement{Key: "host", Operator: corev1.NodeSelectorOpIn, Values: []string{fmt.Sprintf("none-%d", t)}}
		if t == 63 {
			e = corev1.NodeSelectorRequirement{Key: "host", Operator: corev1.NodeSelectorOpExists}
		}
		s.NodeSelectorTerms = append(s.NodeSelectorTerms, corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{e}})
	}
	v.Spec.NodeAffinity = &corev1.VolumeNodeAffinity{Required: s}
	return v
}

// Give gives a pod the claims of its shape.
func (p Plan) Give(pod *corev1.Pod, shape int) {
	for i := range p.Claims {
		v := corev1.Volume{Name: fmt.Sprintf("v%d", i)}
		v.PersistentVolumeClaim = &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claimName(shape, i)}
		pod.Spec.Volumes = append(pod.Spec.Volumes, v)
	}
}
