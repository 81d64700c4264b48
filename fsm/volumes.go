package fsm

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
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
	// users are the pods that have a claim and have not ended, by userKey.
	users store.Tree[*corev1.Pod]
	// offered are the volumes that any claim can be given, by ofClass and model.FreeKey, and
	// shelves how many there are of each class. meant are those that somebody has meant for
	// a claim, by meantFor and name.
	offered store.Tree[*model.FreeVolume]
	shelves store.Tree[*shelf]
	meant   store.Tree[*corev1.PersistentVolume]
	// ending are the volumes of model.LocalProvisioner that are being deleted, or that
	// nobody claims any more.
	ending store.Tree[*corev1.PersistentVolume]
	// at is another whenever a claim, a volume or a class is.
	at *volumesAt
}

type volumesAt struct{ _ byte }

// shelf is another whenever the free volumes of its class are.
type shelf struct{ volumes int }

func (x *volumeOrders) fork() volumeOrders {
	return volumeOrders{
		users: x.users.Fork(), offered: x.offered.Fork(), shelves: x.shelves.Fork(), meant: x.meant.Fork(), ending: x.ending.Fork(), at: x.at,
	}
}

// userKey has those on nodes come first.
func userKey(pod *corev1.Pod, claim string) string {
	return usersOf(PodKey(pod.Namespace, claim), pod.Spec.NodeName != "") + pod.Name
}

func usersOf(claim string, onNodes bool) string {
	if onNodes {
		return claim + "\x00n"
	}
	return claim + "\x00w"
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

// PodsWithClaim calls f for every pod that has not ended and has a claim, by its key; for
// those on nodes first.
func (v *View) PodsWithClaim(claim string, f func(pod *corev1.Pod) bool) {
	more := true
	for _, onNodes := range [...]bool{true, false} {
		v.volumes.users.Scan(usersOf(claim, onNodes), func(_ string, pod *corev1.Pod) bool {
			more = more && f(pod)
			return more
		})
	}
}

func indexVolumes(v *live, old, now *Object) {
	either := now
	if either == nil {
		either = old
	}
	switch either.Resource {
	case PersistentVolumes:
		if old != nil {
			v.volumes.putAway(old.Value.(*corev1.PersistentVolume))
			v.volumes.ending.Delete(old.Value.GetName())
		}
		if now != nil {
			if volume := now.Value.(*corev1.PersistentVolume); isFree(volume) {
				v.volumes.putOut(volume)
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

// putOut has a volume that is free found by those whom it can be given to.
func (x *volumeOrders) putOut(volume *corev1.PersistentVolume) {
	if ref := volume.Spec.ClaimRef; ref != nil {
		x.meant.Set(meantFor(ref.Namespace, ref.Name, ref.UID)+volume.Name, volume)
		return
	}
	class := model.VolumeClass(volume)
	free := model.NewFreeVolume(volume, func(site string) *model.FreeVolume {
		_, beside, _ := x.offered.First(ofClass(class) + site)
		return beside
	})
	x.offered.Set(ofClass(class)+free.Key(), free)
	x.restock(class, 1)
}

// putAway is the opposite of putOut, of a volume that was free or not.
func (x *volumeOrders) putAway(volume *corev1.PersistentVolume) {
	if !isFree(volume) {
		return
	}
	if ref := volume.Spec.ClaimRef; ref != nil {
		x.meant.Delete(meantFor(ref.Namespace, ref.Name, ref.UID) + volume.Name)
		return
	}
	class := model.VolumeClass(volume)
	x.offered.Delete(ofClass(class) + model.FreeKey(volume))
	x.restock(class, -1)
}

func (x *volumeOrders) restock(class string, more int) {
	next := shelf{volumes: more}
	if old, ok := x.shelves.Get(class); ok {
		next.volumes += old.volumes
	}
	if next.volumes == 0 {
		x.shelves.Delete(class)
		return
	}
	x.shelves.Set(class, &next)
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

// Classes come from annotations, too: they are whatever somebody writes.
func meantFor(namespace, claim string, uid types.UID) string {
	return PodKey(namespace, claim) + "\x00" + string(uid) + "\x00"
}

func ofClass(class string) string { return strconv.Itoa(len(class)) + " " + class }

// volumesFor is what the pod's claims, of volumes and of devices, say of nodes; nil for most pods.
func (v *View) volumesFor(pod *corev1.Pod) *model.Volumes {
	if v.Version() < SinceVolumes {
		return nil
	}
	claims, devices := model.Claims(pod), v.devicesText(pod)
	if len(claims) == 0 && devices == "" {
		return nil
	}
	holders, crowded := v.holders(pod, claims)
	key := volumesKey{pod: PodKey(pod.Namespace, strings.Join(claims, "/")), uid: string(pod.UID), devices: devices, held: heldText(holders), crowded: crowded}
	return v.effective.volumes(v.volumes.at, key, func() *model.Volumes {
		b := v.newVolumes(pod, holders)
		if why := v.tooDear(v.claimsWork(pod, claims), crowded); why != "" {
			b.Refuse(why)
			return b.Done()
		}
		for _, c := range v.claimsOf(pod, claims, b) {
			v.want(b, c)
		}
		if why := v.tooMany(b); why != "" {
			b = v.newVolumes(pod, holders)
			b.Refuse(why)
		}
		return b.Done()
	})
}

func (v *View) newVolumes(pod *corev1.Pod, holders []model.Holder) *model.VolumesBuilder {
	b := &model.VolumesBuilder{CountsEach: v.Version() < SinceClaimsCounted}
	if v.Version() >= SinceDevices {
		v.askForDevices(b, pod)
	} else if devices := v.devicesClaimed(pod); devices != "" {
		b.Keep(model.DeviceClaims, devices)
	}
	for _, h := range holders {
		b.Held(h)
	}
	return b
}

func heldText(holders []model.Holder) string {
	var b strings.Builder
	for _, h := range holders {
		b.WriteString(h.UID + "/" + h.Node + "/")
	}
	return b.String()
}

// devicesClaimed is model.DevicesClaimed, as far as it matters by the rules as they are.
func (v *View) devicesClaimed(pod *corev1.Pod) string {
	if v.Version() < SinceDrivers {
		return ""
	}
	return model.DevicesClaimed(pod)
}

// holders are the other pods on nodes that use claims of the pod that one at a time may
// use; crowded names a claim that more have than are looked at.
func (v *View) holders(pod *corev1.Pod, claims []string) (out []model.Holder, crowded string) {
	var known map[model.Holder]bool
	for _, name := range claims {
		claim, ok := v.VolumeClaim(pod.Namespace, name)
		if !ok || !slices.Contains(claim.Spec.AccessModes, corev1.ReadWriteOncePod) {
			continue
		}
		v.volumes.users.Scan(usersOf(PodKey(pod.Namespace, name), true), func(_ string, other *corev1.Pod) bool {
			h := model.Holder{Node: other.Spec.NodeName, UID: string(other.UID), Priority: model.Priority(other)}
			if other.UID == pod.UID || known[h] {
				return true
			}
			if len(out) >= maxHolders && v.Version() >= SinceClaimsCounted {
				crowded = name
				return false
			}
			if known == nil {
				known = map[model.Holder]bool{}
			}
			known[h] = true
			out = append(out, h)
			return true
		})
		if crowded != "" {
			break
		}
	}
	return out, crowded
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
	for _, uid := range [...]types.UID{"", c.UID} {
		prefix := meantFor(c.Namespace, c.Name, uid)
		if at, _, ok := v.volumes.meant.First(prefix); ok && strings.HasPrefix(at, prefix) {
			return true
		}
	}
	return false
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
	offer, asked := v.offer(c, name), c.Spec.Resources.Requests[corev1.ResourceStorage]
	switch class.Provisioner {
	case model.NoProvisioner:
		b.Want(offer, asked, false, nil)
	case model.LocalProvisioner:
		why := notLocal(c)
		if why != "" && !offer.Has(asked) {
			b.Keep(model.ClaimRefused, fmt.Sprintf("persistentvolumeclaim %q: %s", c.Name, why))
			return
		}
		b.Want(offer, asked, why == "", class.AllowedTopologies)
	default:
		b.Want(offer, asked, true, class.AllowedTopologies)
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

// noOffer is that of nothing.
var noOffer = model.NewOffer(nil)

// offer are the volumes of a class that meet what a claim demands beside its size. The
// caller is in effectiveClasses.volumes.
func (v *View) offer(c *corev1.PersistentVolumeClaim, class string) *model.Offer {
	on, ok := v.volumes.shelves.Get(class)
	if !ok {
		return noOffer
	}
	return v.effective.offer(VolumeList{on, demandKey(c)}, func() *model.Offer {
		selector := labels.Everything()
		if c.Spec.Selector != nil {
			var err error
			if selector, err = metav1.LabelSelectorAsSelector(c.Spec.Selector); err != nil {
				return noOffer
			}
		}
		out := make([]*model.FreeVolume, 0, on.volumes)
		meets, of := false, (*model.FreeVolume)(nil)
		v.volumes.offered.Scan(ofClass(class), func(_ string, f *model.FreeVolume) bool {
			if of == nil || f.Traits != of.Traits {
				meets, of = hasTraits(f.Volume, c), f
			}
			if meets && (selector.Empty() || selector.Matches(labels.Set(f.Volume.Labels))) {
				out = append(out, f)
			}
			return true
		})
		return model.NewOffer(out)
	})
}

// hasTraits says whether a volume has what a claim demands, beside its size and labels.
func hasTraits(volume *corev1.PersistentVolume, c *corev1.PersistentVolumeClaim) bool {
	return sameMode(c.Spec.VolumeMode, volume.Spec.VolumeMode) && hasModes(volume, c.Spec.AccessModes) &&
		textOf(c.Spec.VolumeAttributesClassName) == textOf(volume.Spec.VolumeAttributesClassName)
}

// demandKey is equal for claims that demand the same of a volume of their class, beside its size.
func demandKey(c *corev1.PersistentVolumeClaim) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%t %q %q", c.Spec.VolumeMode != nil && *c.Spec.VolumeMode == corev1.PersistentVolumeBlock, c.Spec.AccessModes, textOf(c.Spec.VolumeAttributesClassName))
	if c.Spec.Selector != nil {
		text, err := c.Spec.Selector.Marshal()
		if err != nil {
			panic("fsm: marshalling a claim's selector: " + err.Error()) // as model's
		}
		b.WriteByte(' ')
		b.Write(text)
	}
	return b.String()
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

// volumesKey names what is asked by a pod's claims.
type volumesKey struct{ pod, uid, held, crowded, devices string }

// What is remembered of what claims say, and of the volumes that they can be given, is
// bounded.
const maxVolumesBytes, maxOfferBytes = 16 << 20, 32 << 20

// volumes remembers what claims say as they are at one time.
func (x *effectiveClasses) volumes(at *volumesAt, key volumesKey, build func() *model.Volumes) *model.Volumes {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.claimsAt != at {
		x.claims, x.claimBytes, x.claimsAt = nil, 0, at
	}
	if v, ok := x.claims[key]; ok {
		return v
	}
	v := build()
	bytes := len(key.pod) + len(key.held) + len(key.crowded) + len(key.devices) + 2*structBytes + v.Bytes()
	if x.claims == nil || x.claimBytes+bytes > maxVolumesBytes {
		x.claims, x.claimBytes = map[volumesKey]*model.Volumes{}, 0
	}
	if bytes <= maxVolumesBytes {
		x.claims[key] = v
		x.claimBytes += bytes
	}
	return v
}

// offer remembers lists of volumes. The caller is in volumes.
func (x *effectiveClasses) offer(list VolumeList, build func() *model.Offer) *model.Offer {
	if o, ok := x.offers[list]; ok {
		return o
	}
	o := build()
	bytes := len(list.demand) + structBytes + o.Bytes()
	if x.offers == nil || x.offerBytes+bytes > maxOfferBytes {
		x.offers, x.offerBytes = map[VolumeList]*model.Offer{}, 0
	}
	if bytes <= maxOfferBytes {
		x.offers[list] = o
		x.offerBytes += bytes
	}
	return o
}
