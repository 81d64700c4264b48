package fsm

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/component-helpers/storage/ephemeral"

	"github.com/berth-dev/berth/model"
	"github.com/berth-dev/berth/store"
)

// What the claims of a pod say of its nodes follows from the rows of claims, volumes and
// classes, and is a part of the class by which the pod is judged (ruledClass): so the
// scheduler, Apply, wakes and explanations go by the same. Claims that wait for a pod are
// given their volumes by the entry that gives the pod its node (bindClaims), and no two
// of them one volume. What binds by itself, and what becomes of volumes when their claims
// have gone, is for Kubernetes' controller of volumes (package workloads).

// volumeOrders are other orders of what claims, volumes and pods say.
type volumeOrders struct {
	// users are the pods that have a claim and have not ended: claim, zero, pod's name.
	users store.Tree[*corev1.Pod]
	// free are the volumes that claims can be given, by ofClass and name; and, by
	// meantFor and name, those that somebody has meant for one.
	free store.Tree[*corev1.PersistentVolume]
	// ending are the volumes of model.LocalProvisioner that are being deleted, or that
	// nobody claims any more.
	ending store.Tree[*corev1.PersistentVolume]
	// at is another whenever a claim, a volume or a class is.
	at *volumesAt
}

type volumesAt struct{ _ byte }

func (x *volumeOrders) fork() volumeOrders {
	return volumeOrders{users: x.users.Fork(), free: x.free.Fork(), ending: x.ending.Fork(), at: x.at}
}

func userKey(pod *corev1.Pod, claim string) string {
	return PodKey(pod.Namespace, claim) + "\x00" + pod.Name
}

// indexClaims keeps who uses claims. While nobody does, a change of a pod whose spec stays is
// none of one with claims.
func indexClaims(v *live, old, now *corev1.Pod) {
	if old != nil && now != nil && sameSpec(&old.Spec, &now.Spec) && model.Terminal(old) == model.Terminal(now) && v.volumes.users.Len() == 0 {
		return
	}
	if old != nil && !model.Terminal(old) {
		for _, claim := range model.Claims(old) {
			v.volumes.users.Delete(userKey(old, claim))
		}
	}
	if now != nil && !model.Terminal(now) {
		for _, claim := range model.Claims(now) {
			v.volumes.users.Set(userKey(now, claim), now)
		}
	}
}

// PodsWithClaim calls f for every pod that has not ended and has a claim, by its key.
func (v *View) PodsWithClaim(claim string, f func(pod *corev1.Pod) bool) {
	v.volumes.users.Scan(claim+"\x00", func(_ string, pod *corev1.Pod) bool { return f(pod) })
}

func indexVolumes(v *live, old, now *Object) {
	either := now
	if either == nil {
		either = old
	}
	switch either.Resource {
	case PersistentVolumes:
		if old != nil {
			v.volumes.free.Delete(freeKey(old.Value.(*corev1.PersistentVolume)))
			v.volumes.ending.Delete(old.Value.GetName())
		}
		if now != nil {
			if volume := now.Value.(*corev1.PersistentVolume); isFree(volume) {
				v.volumes.free.Set(freeKey(volume), volume)
			} else if isEnding(volume) {
				v.volumes.ending.Set(volume.Name, volume)
			}
		}
	case VolumeClaims, StorageClasses:
	default:
		return
	}
	v.volumes.at = new(volumesAt)
}

// isFree: a claim can be given the volume, if it is not meant for another.
func isFree(v *corev1.PersistentVolume) bool {
	if v.DeletionTimestamp != nil {
		return false
	}
	return v.Spec.ClaimRef == nil && v.Status.Phase == corev1.VolumeAvailable || v.Spec.ClaimRef != nil && v.Status.Phase != corev1.VolumeReleased && v.Status.Phase != corev1.VolumeFailed
}

func isEnding(v *corev1.PersistentVolume) bool {
	return (v.DeletionTimestamp != nil || v.Status.Phase == corev1.VolumeReleased) && slices.Contains(v.Finalizers, model.LocalFinalizer)
}

// EndingVolumes calls f for the volumes of model.LocalProvisioner that are being deleted, or
// that nobody claims any more, by name.
func (v *View) EndingVolumes(f func(volume *corev1.PersistentVolume) bool) {
	v.volumes.ending.Scan("", func(_ string, volume *corev1.PersistentVolume) bool { return f(volume) })
}

func freeKey(v *corev1.PersistentVolume) string {
	if ref := v.Spec.ClaimRef; ref != nil {
		return meantFor(ref.Namespace, ref.Name) + v.Name
	}
	return ofClass(model.VolumeClass(v)) + v.Name
}

// Classes come from annotations, too: they are whatever somebody writes.
func meantFor(namespace, claim string) string { return "=" + PodKey(namespace, claim) + "\x00" }
func ofClass(class string) string             { return "~" + class + "\x00" }

// volumesFor is what the pod's claims, of volumes and of devices, say of nodes; nil for most pods.
func (v *View) volumesFor(pod *corev1.Pod) *model.Volumes {
	if v.Version() < SinceVolumes {
		return nil
	}
	claims, devices := model.Claims(pod), v.devicesClaimed(pod)
	if len(claims) == 0 && devices == "" {
		return nil
	}
	key := volumesKey{at: v.volumes.at, pod: PodKey(pod.Namespace, strings.Join(claims, "/")), uid: string(pod.UID), devices: devices}
	holders := v.holders(pod, claims)
	for _, h := range holders {
		key.held += h.UID + "/" + h.Node + "/"
	}
	return v.effective.volumes(key, func() *model.Volumes {
		var b model.VolumesBuilder
		if devices != "" {
			b.Keep(model.DeviceClaims, devices)
		}
		for _, h := range holders {
			b.Held(h)
		}
		for _, c := range v.claimsOf(pod, claims, &b) {
			v.want(&b, c)
		}
		return b.Done()
	})
}

// devicesClaimed is model.DevicesClaimed, as far as it matters by the rules as they are.
func (v *View) devicesClaimed(pod *corev1.Pod) string {
	if v.Version() < SinceDrivers {
		return ""
	}
	return model.DevicesClaimed(pod)
}

// holders are the other pods on nodes that use claims of the pod that one at a time may
// use.
func (v *View) holders(pod *corev1.Pod, claims []string) (out []model.Holder) {
	for _, name := range claims {
		claim, ok := v.VolumeClaim(pod.Namespace, name)
		if !ok || !slices.Contains(claim.Spec.AccessModes, corev1.ReadWriteOncePod) {
			continue
		}
		v.PodsWithClaim(PodKey(pod.Namespace, name), func(other *corev1.Pod) bool {
			if h := (model.Holder{Node: other.Spec.NodeName, UID: string(other.UID), Priority: model.Priority(other)}); h.Node != "" && other.UID != pod.UID && !slices.Contains(out, h) {
				out = append(out, h)
			}
			return true
		})
	}
	return out
}

// claimsOf tells of the claims that have volumes, or keep the pod from having a node, and
// gives those that wait for one, in the order in which they choose.
func (v *View) claimsOf(pod *corev1.Pod, names []string, b *model.VolumesBuilder) (waiting []*corev1.PersistentVolumeClaim) {
	for i := range pod.Spec.Volumes {
		if vol := &pod.Spec.Volumes[i]; vol.Ephemeral != nil {
			name := model.ClaimOf(pod, vol)
			claim, ok := v.VolumeClaim(pod.Namespace, name)
			switch {
			case !ok:
				b.Keep(model.ClaimNotMade, name)
			case ephemeral.VolumeIsForPod(pod, claim) != nil:
				b.Keep(model.ClaimForeign, name)
			}
		}
	}
	for _, name := range names {
		claim, ok := v.VolumeClaim(pod.Namespace, name)
		switch {
		case !ok:
			b.Keep(model.ClaimMissing, name)
		case claim.Status.Phase == corev1.ClaimLost:
			b.Keep(model.ClaimLost, name)
		case claim.DeletionTimestamp != nil:
			b.Keep(model.ClaimDeleted, name)
		case isBound(claim):
			if volume, ok := v.PersistentVolume(claim.Spec.VolumeName); ok {
				b.Bound(volume)
			} else {
				b.Keep(model.VolumeMissing, name)
			}
		case claim.Spec.VolumeName != "" || v.isMeantFor(claim):
			b.Keep(model.ClaimUnbound, name)
		default:
			waiting = append(waiting, claim)
		}
	}
	slices.SortFunc(waiting, func(a, b *corev1.PersistentVolumeClaim) int {
		x, y := a.Spec.Resources.Requests[corev1.ResourceStorage], b.Spec.Resources.Requests[corev1.ResourceStorage]
		return cmp.Or(x.Cmp(y), strings.Compare(a.Name, b.Name))
	})
	return waiting
}

func isBound(c *corev1.PersistentVolumeClaim) bool {
	return c.Spec.VolumeName != "" && metav1.HasAnnotation(c.ObjectMeta, model.BindCompleted)
}

// isMeantFor says whether somebody has meant a volume for the claim.
func (v *View) isMeantFor(c *corev1.PersistentVolumeClaim) bool {
	is := false
	v.volumes.free.Scan(meantFor(c.Namespace, c.Name), func(_ string, volume *corev1.PersistentVolume) bool {
		is = volume.Spec.ClaimRef.UID == "" || volume.Spec.ClaimRef.UID == c.UID
		return !is
	})
	return is
}

// want says what a claim that has no volume can be given.
func (v *View) want(b *model.VolumesBuilder, c *corev1.PersistentVolumeClaim) {
	name := model.ClaimClass(c)
	class, ok := v.StorageClass(name)
	switch {
	case name == "":
		b.Keep(model.ClaimUnbound, c.Name)
		return
	case !ok:
		b.Keep(model.ClaimRefused, fmt.Sprintf("storageclass.storage.k8s.io %q not found", name))
		return
	case !model.WaitsForPod(class):
		b.Keep(model.ClaimUnbound, c.Name)
		return
	}
	if node := c.Annotations[model.SelectedNode]; node != "" && class.Provisioner != model.LocalProvisioner {
		b.Keep(model.ClaimRefused, awaitsProvisioner(c.Name, class.Provisioner))
		return
	}
	volumes := v.volumesThatFit(c, name)
	switch class.Provisioner {
	case model.NoProvisioner:
		b.Want(volumes, false, nil)
	case model.LocalProvisioner:
		why := notLocal(c)
		if why != "" && len(volumes) == 0 {
			b.Keep(model.ClaimRefused, fmt.Sprintf("persistentvolumeclaim %q: %s", c.Name, why))
			return
		}
		b.Want(volumes, why == "", class.AllowedTopologies)
	default:
		b.Want(volumes, true, class.AllowedTopologies)
	}
}

func awaitsProvisioner(claim, provisioner string) string {
	return fmt.Sprintf("waiting for a volume to be created for persistentvolumeclaim %q, either by the external provisioner %q or by an administrator", claim, provisioner)
}

// notLocal says what of a claim a directory of a node cannot be.
func notLocal(c *corev1.PersistentVolumeClaim) string {
	for _, mode := range c.Spec.AccessModes {
		if mode != corev1.ReadWriteOnce && mode != corev1.ReadWriteOncePod {
			return fmt.Sprintf("volumes of %s are on one node, and cannot be %s", model.LocalProvisioner, mode)
		}
	}
	switch {
	case c.Spec.VolumeMode != nil && *c.Spec.VolumeMode != corev1.PersistentVolumeFilesystem:
		return fmt.Sprintf("volumes of %s are directories, and no devices (volumeMode)", model.LocalProvisioner)
	case c.Spec.Selector != nil:
		return fmt.Sprintf("volumes of %s are new ones, which no selector finds (selector)", model.LocalProvisioner)
	case c.Spec.DataSource != nil || c.Spec.DataSourceRef != nil:
		return fmt.Sprintf("volumes of %s begin empty (dataSource)", model.LocalProvisioner)
	case c.Spec.VolumeAttributesClassName != nil && *c.Spec.VolumeAttributesClassName != "":
		return fmt.Sprintf("volumes of %s have no attributes (volumeAttributesClassName)", model.LocalProvisioner)
	}
	return ""
}

// volumesThatFit are those of a class that a claim can be given on some node, smallest
// first.
func (v *View) volumesThatFit(c *corev1.PersistentVolumeClaim, class string) (out []*corev1.PersistentVolume) {
	selector := labels.Everything()
	if c.Spec.Selector != nil {
		var err error
		if selector, err = metav1.LabelSelectorAsSelector(c.Spec.Selector); err != nil {
			return nil
		}
	}
	asked := c.Spec.Resources.Requests[corev1.ResourceStorage]
	v.volumes.free.Scan(ofClass(class), func(_ string, volume *corev1.PersistentVolume) bool {
		has := volume.Spec.Capacity[corev1.ResourceStorage]
		if has.Cmp(asked) >= 0 && selector.Matches(labels.Set(volume.Labels)) && sameMode(c.Spec.VolumeMode, volume.Spec.VolumeMode) &&
			hasModes(volume, c.Spec.AccessModes) && textOf(c.Spec.VolumeAttributesClassName) == textOf(volume.Spec.VolumeAttributesClassName) {
			out = append(out, volume)
		}
		return true
	})
	slices.SortFunc(out, model.CompareVolumes)
	return out
}

// sameMode: a volume of which nothing else is said is a file system.
func sameMode(a, b *corev1.PersistentVolumeMode) bool {
	block := func(m *corev1.PersistentVolumeMode) bool { return m != nil && *m == corev1.PersistentVolumeBlock }
	return block(a) == block(b)
}

func hasModes(v *corev1.PersistentVolume, modes []corev1.PersistentVolumeAccessMode) bool {
	return !slices.ContainsFunc(modes, func(m corev1.PersistentVolumeAccessMode) bool { return !slices.Contains(v.Spec.AccessModes, m) })
}

func textOf(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

// volumesKey names what is asked by a pod's claims as they were at some time.
type volumesKey struct {
	at                      *volumesAt
	pod, uid, held, devices string
}

// maxVolumesBytes bounds what is remembered of what claims say.
const maxVolumesBytes = 16 << 20

func (x *effectiveClasses) volumes(key volumesKey, build func() *model.Volumes) *model.Volumes {
	x.mu.Lock()
	defer x.mu.Unlock()
	if v, ok := x.claims[key]; ok {
		return v
	}
	v := build()
	if x.claims == nil || x.claimBytes > maxVolumesBytes {
		x.claims, x.claimBytes = map[volumesKey]*model.Volumes{}, 0
	}
	x.claims[key] = v
	x.claimBytes += len(key.pod) + len(key.held) + len(key.devices) + 2*structBytes
	if v != nil {
		x.claimBytes += v.Bytes()
	}
	return v
}
