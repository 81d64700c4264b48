package fsm

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apiresource "k8s.io/apimachinery/pkg/api/resource"

	"github.com/berth-dev/berth/codec"
	"github.com/berth-dev/berth/model"
)

// volumeObject: persistentvolumes NAME class= size= hosts=a,b zone= modes=RWO,… claim=CLAIM
// phase=; persistentvolumeclaims NAME class= size= modes= volume=NAME attributes=CLASS given=SIZE; storageclasses NAME
// provisioner= wait
func (s *transcript) volumeObject(a words, resource string) codec.Object {
	meta := s.meta(a[1:], "")
	modes := []corev1.PersistentVolumeAccessMode{}
	for _, m := range a.list("modes") {
		modes = append(modes, map[string]corev1.PersistentVolumeAccessMode{
			"RWO": corev1.ReadWriteOnce, "RWX": corev1.ReadWriteMany, "RWOP": corev1.ReadWriteOncePod,
		}[m])
	}
	if len(modes) == 0 {
		modes = append(modes, corev1.ReadWriteOnce)
	}
	size := corev1.ResourceList{corev1.ResourceStorage: apiresource.MustParse(a.or("size", "1Gi"))}
	class := a.or("class", "")
	switch resource {
	case StorageClasses:
		mode := storagev1.VolumeBindingImmediate
		if a.has("wait") {
			mode = storagev1.VolumeBindingWaitForFirstConsumer
		}
		return &storagev1.StorageClass{ObjectMeta: meta, Provisioner: a.or("provisioner", model.NoProvisioner), VolumeBindingMode: &mode}
	case VolumeClaims:
		meta.Namespace = a.or("ns", "default")
		c := &corev1.PersistentVolumeClaim{ObjectMeta: meta, Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: modes, StorageClassName: &class, VolumeName: a.or("volume", ""), Resources: corev1.VolumeResourceRequirements{Requests: size},
		}}
		if c.Spec.VolumeName != "" {
			c.Annotations = map[string]string{model.BindCompleted: "yes"}
			c.Status.Phase = corev1.ClaimBound
		}
		if name, ok := a.get("attributes"); ok {
			c.Spec.VolumeAttributesClassName = &name
		}
		if given, ok := a.get("given"); ok {
			c.Status.AllocatedResources = corev1.ResourceList{corev1.ResourceStorage: apiresource.MustParse(given)}
		}
		return c
	}
	v := &corev1.PersistentVolume{ObjectMeta: meta, Spec: corev1.PersistentVolumeSpec{
		Capacity: size, AccessModes: modes, StorageClassName: class, PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
		PersistentVolumeSource: corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: "/data"}},
	}}
	v.Status.Phase = corev1.PersistentVolumePhase(a.or("phase", string(corev1.VolumeAvailable)))
	if zone, ok := a.get("zone"); ok {
		v.Labels = map[string]string{corev1.LabelTopologyZone: zone}
	}
	if hosts := a.list("hosts"); len(hosts) > 0 {
		v.Spec.NodeAffinity = &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
			MatchExpressions: []corev1.NodeSelectorRequirement{{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: hosts}},
		}}}}
	}
	if name, ok := a.get("claim"); ok {
		ref := &corev1.ObjectReference{Kind: "PersistentVolumeClaim", Namespace: "default", Name: name}
		if c, ok := s.view().VolumeClaim("default", name); ok {
			ref.UID = c.UID
		}
		v.Spec.ClaimRef, v.Status.Phase = ref, corev1.VolumeBound
	}
	return v
}

// claims: claims=NAME,… of a pod, scratch=CLASS for an ephemeral volume, devices=NAME,… of claims of devices, and
// devices-made=NAME,… of those that are made of a template.
func (a words) fillClaims(p *corev1.Pod) {
	for _, name := range a.list("devices") {
		p.Spec.ResourceClaims = append(p.Spec.ResourceClaims, corev1.PodResourceClaim{Name: name, ResourceClaimName: &name})
	}
	for _, name := range a.list("devices-made") {
		p.Spec.ResourceClaims = append(p.Spec.ResourceClaims, corev1.PodResourceClaim{Name: name, ResourceClaimTemplateName: &name})
	}
	for i, name := range a.list("claims") {
		p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: fmt.Sprint("v", i), VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name},
		}})
	}
	if class, ok := a.get("scratch"); ok {
		p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: "scratch", VolumeSource: corev1.VolumeSource{
			Ephemeral: &corev1.EphemeralVolumeSource{VolumeClaimTemplate: &corev1.PersistentVolumeClaimTemplate{
				Spec: corev1.PersistentVolumeClaimSpec{StorageClassName: &class},
			}},
		}})
	}
}

func describeVolume(v *corev1.PersistentVolume) string {
	out := string(v.Status.Phase)
	if ref := v.Spec.ClaimRef; ref != nil {
		out += " of " + ref.Name
	}
	if node := model.LocalVolumeNode(v); node != "" {
		out += " on " + node
	}
	return out
}

func describeClaim(c *corev1.PersistentVolumeClaim) string {
	parts := []string{string(c.Status.Phase)}
	if c.Spec.VolumeName != "" {
		parts = append(parts, c.Spec.VolumeName)
	}
	if node := c.Annotations[model.SelectedNode]; node != "" {
		parts = append(parts, "chosen for "+node)
	}
	return strings.TrimSpace(strings.Join(parts, " "))
}
