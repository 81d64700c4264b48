package fsm

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/model"
	"github.com/berth-dev/berth/queue"
)

// volumes notes what a change of a claim, a volume or a class of volumes means, and says
// whether it was one.
func (w *wakes) volumes(old, now *Object) bool {
	for _, o := range [...]*Object{old, now} {
		if o == nil {
			continue
		}
		switch value := o.Value.(type) {
		case *corev1.PersistentVolumeClaim:
			w.Claims = append(w.Claims, PodKey(value.Namespace, value.Name))
		case *corev1.PersistentVolume:
			if ref := value.Spec.ClaimRef; ref != nil {
				w.Claims = append(w.Claims, PodKey(ref.Namespace, ref.Name))
			}
			if value.Spec.ClaimRef == nil && o == now {
				w.StorageClasses = append(w.StorageClasses, model.VolumeClass(value))
				if w.tx.view.Version() >= SinceNamedVolumes {
					w.Volumes = append(w.Volumes, value.Name)
				}
			}
			if o == old && isAnybodys(old) && !isAnybodys(now) {
				w.Taken = append(w.Taken, model.VolumeClass(value))
			}
		default:
			if o.Resource != StorageClasses {
				return false
			}
			w.StorageClasses = append(w.StorageClasses, o.Value.GetName())
		}
	}
	return true
}

// isAnybodys says whether a volume is there that any claim of its class can be given.
func isAnybodys(o *Object) bool {
	if o == nil {
		return false
	}
	volume, ok := o.Value.(*corev1.PersistentVolume)
	return ok && volume.Spec.ClaimRef == nil && isFree(volume)
}

// SinceNamedVolumes is the LogVersion from which on a volume that comes wakes those whose claims name it.
const SinceNamedVolumes = 24

// awaits says whether a claim can be given one of the volumes that changed.
func awaits(claim *corev1.PersistentVolumeClaim, c *queue.Changes) bool {
	if isBound(claim) {
		return slices.Contains(c.Volumes, claim.Spec.VolumeName)
	}
	return slices.Contains(c.StorageClasses, model.ClaimClass(claim))
}

// wakeClaims wakes one of each group whose claims, or what these can be given, have
// changed.
func (tx *Tx) wakeClaims(c *queue.Changes) {
	tx.wakeDeprived(c.Taken)
	if len(c.Claims)+len(c.StorageClasses) == 0 {
		return
	}
	v := tx.view
	tx.putMark(&queue.PodMark{Volumes: true})
	if !v.queue.HasClaims() {
		return
	}
	var groups []string
	slices.Sort(c.Claims)
	for _, key := range slices.Compact(c.Claims) {
		v.queue.OfClaim(&tx.work, key, func(g queue.Group) { groups = append(groups, g.Key) })
	}
	if len(c.StorageClasses) > 0 {
		v.queue.EachClaim(func(key string, g queue.Group) bool {
			if tx.work.Over() {
				c.Scope.Volumes = true
				return false
			}
			tx.work.Look()
			if claim, ok := objectAt[corev1.PersistentVolumeClaim](&v.View, VolumeClaims, key); ok && awaits(claim, c) {
				groups = append(groups, g.Key)
			}
			return true
		})
	}
	slices.Sort(groups)
	for _, group := range slices.Compact(groups) {
		if tx.work.Over() {
			c.Scope.Volumes = true
			return
		}
		tx.wakeWaiting(group)
	}
}

// SinceTakenVolumes is the LogVersion from which on a volume that is given to one pod wakes those who counted on it.
const SinceTakenVolumes = 25

// wakeDeprived wakes those whose claims can be given no volume any more on the node that they are nominated to, because one of
// these classes has been given to others: they look elsewhere (T5). Those for whom an entry has no time find it out when
// their victims have gone.
func (tx *Tx) wakeDeprived(classes []string) {
	v := tx.view
	if len(classes) == 0 || v.Version() < SinceTakenVolumes {
		return
	}
	var deprived []*QueueEntry
	v.Nominations.Scan("", func(key string, n *Nomination) bool {
		tx.work.Look()
		if e, ok := v.Queue.Get(key); ok && e.Waits() && tx.awaitsOne(key, classes) {
			if node, ok := v.Nodes.Get(n.Node); ok && newHelp(v, node).looksAgain(tx, n) {
				deprived = append(deprived, e)
			}
		}
		return !tx.work.Over()
	})
	for _, e := range deprived {
		tx.wake(e)
	}
}

// awaitsOne says whether a waiting pod, by its key, has a claim that is to be given a volume of one of the classes.
func (tx *Tx) awaitsOne(key string, classes []string) bool {
	v := tx.view
	pod, ok := v.Pods.Get(key)
	return ok && slices.ContainsFunc(model.Claims(pod), func(name string) bool {
		claim, ok := objectAt[corev1.PersistentVolumeClaim](&v.View, VolumeClaims, PodKey(pod.Namespace, name))
		return ok && !isBound(claim) && slices.Contains(classes, model.ClaimClass(claim))
	})
}
