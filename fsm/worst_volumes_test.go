package fsm

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apiresource "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/codec"
	"github.com/berth-dev/berth/model"
)

// worstVolumes are the claims of waiting pods, and the volumes that they can be given.
type worstVolumes struct {
	Free    int  // volumes of the one class, of a hundred sizes
	At      int  // each is 0: on one host, 1: in a zone, 2: everywhere, 3: on two hosts, 4: on one and one that is not there
	Claims  int  // of each waiting pod; of so many shapes that there are not too many in all
	Demands int  // different ones, by selectors
	Bound   bool // the claims have volumes already, each with a long node affinity
	Single  bool // one pod at a time may use a claim
}

const worstClass, worstClaims = "disks", 20_000

func (w *worstWorld) storeNew(resource string, o codec.Object) Command {
	raw, err := o.Marshal()
	if err != nil {
		w.t.Fatal(err)
	}
	return &PutObject{Resource: resource, Raw: raw, Create: true}
}

func (w *worstWorld) makeVolumes() {
	if w.Volumes == (worstVolumes{}) {
		return
	}
	mode := storagev1.VolumeBindingWaitForFirstConsumer
	w.must(w.storeNew(StorageClasses, &storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{Name: worstClass, UID: worstClass}, Provisioner: model.NoProvisioner, VolumeBindingMode: &mode}))
	w.many(w.Volumes.Free, func(i int) Command { return w.storeNew(PersistentVolumes, w.volume(i)) })
	n := w.Volumes.Claims
	if w.Volumes.Bound {
		w.many(w.claiming()*n, func(i int) Command { return w.storeNew(PersistentVolumes, w.boundVolume(i/n, i%n)) })
	}
	w.many(w.claiming()*n, func(i int) Command { return w.storeNew(VolumeClaims, w.claim(i/n, i%n)) })
}

// claiming is how many shapes have claims.
func (w *worstWorld) claiming() int { return min(w.Shapes, worstClaims/max(1, w.Volumes.Claims)) }

func (w *worstWorld) volume(i int) *corev1.PersistentVolume {
	v := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("volume-%06d", i), UID: types.UID(fmt.Sprintf("volume-%06d", i)), Labels: map[string]string{"disk": "ssd"}},
		Spec: corev1.PersistentVolumeSpec{
			Capacity:    corev1.ResourceList{corev1.ResourceStorage: *apiresource.NewQuantity(int64(1+i%100)<<30, apiresource.BinarySI)},
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce, corev1.ReadWriteOncePod}, StorageClassName: worstClass,
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
			PersistentVolumeSource:        corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: "/data"}},
		}}
	v.Status.Phase = corev1.VolumeAvailable
	on := func(hosts ...string) {
		v.Spec.NodeAffinity = &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
			MatchExpressions: []corev1.NodeSelectorRequirement{{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: hosts}}}}}}
	}
	switch w.Volumes.At {
	case 0:
		on(w.nodeName(i % w.Nodes))
	case 1:
		v.Labels[corev1.LabelTopologyZone] = fmt.Sprintf("zone-%d", i%w.Zones)
	case 3:
		on(w.nodeName(i%w.Nodes), w.nodeName((i+1)%w.Nodes))
	case 4:
		on(w.nodeName(i%w.Nodes), fmt.Sprintf("gone-%d", i))
	}
	return v
}

func (w *worstWorld) claimName(shape, i int) string { return fmt.Sprintf("claim-%05d-%03d", shape, i) }

func (w *worstWorld) claim(shape, i int) *corev1.PersistentVolumeClaim {
	class, mode := worstClass, corev1.ReadWriteOnce
	if w.Volumes.Single {
		mode = corev1.ReadWriteOncePod
	}
	c := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace(shape), Name: w.claimName(shape, i), UID: types.UID("uid-" + w.claimName(shape, i))},
		Spec: corev1.PersistentVolumeClaimSpec{AccessModes: []corev1.PersistentVolumeAccessMode{mode}, StorageClassName: &class,
			Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{
				corev1.ResourceStorage: *apiresource.NewQuantity(int64(1+i%100)<<30, apiresource.BinarySI)}}}}
	if w.Volumes.Demands > 1 {
		c.Spec.Selector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{
			Key: "disk", Operator: metav1.LabelSelectorOpNotIn, Values: []string{fmt.Sprintf("not-%d", i%w.Volumes.Demands)}}}}
	}
	if w.Volumes.Bound {
		c.Annotations = map[string]string{model.BindCompleted: "yes"}
		c.Spec.VolumeName, c.Status.Phase = "of-"+w.claimName(shape, i), corev1.ClaimBound
	}
	return c
}

// boundVolume is one that a claim has, which every node can reach by the last of its terms.
func (w *worstWorld) boundVolume(shape, i int) *corev1.PersistentVolume {
	v := w.volume(i)
	name := "of-" + w.claimName(shape, i)
	v.Name, v.UID, v.Status.Phase = name, types.UID(name), corev1.VolumeBound
	v.Spec.ClaimRef = &corev1.ObjectReference{Namespace: w.namespace(shape), Name: w.claimName(shape, i), UID: types.UID("uid-" + w.claimName(shape, i))}
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

// giveClaims gives a waiting pod those of its shape.
func (w *worstWorld) giveClaims(pod *corev1.Pod, shape int) {
	if shape >= w.claiming() {
		return
	}
	for i := range w.Volumes.Claims {
		v := corev1.Volume{Name: fmt.Sprintf("v%d", i)}
		v.PersistentVolumeClaim = &corev1.PersistentVolumeClaimVolumeSource{ClaimName: w.claimName(shape, i)}
		pod.Spec.Volumes = append(pod.Spec.Volumes, v)
	}
}
