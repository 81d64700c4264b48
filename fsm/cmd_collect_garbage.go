package fsm

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/owners"
)

// CollectGarbage looks at objects again and does what their owner references
// demand by then: deletes those that nobody owns any more, takes references
// away that lead nowhere, ends the deletion of owners whose dependents are
// gone. It is safe to propose for any object at any time: what has to be done
// is decided here, on the state as it is.
//
// Refuses nothing; what is gone or replaced is passed over.
type CollectGarbage struct {
	Objects []ObjectRef `msgpack:"objects"`
}

// maxReleased bounds the dependents that one command releases, of whichever
// owners; the collector looks again.
const maxReleased = 1000

// Apply implements Command.
func (c *CollectGarbage) Apply(tx *Tx) Result {
	release := maxReleased
	for _, ref := range c.Objects {
		if tx.enough() {
			break // the collector looks again
		}
		tx.part(ref.Resource+"/"+PodKey(ref.Namespace, ref.Name), func() { tx.collect(ref, &release) })
	}
	return Result{}
}

// collect does what is to be done about one object, and takes the dependents that
// it releases from those that may be.
func (tx *Tx) collect(ref ObjectRef, release *int) {
	v := tx.view
	v.cache.work += costObject
	if foreign, ok := v.Foreign(ref); ok {
		tx.reportForeign(ref, foreign)
	}
	switch v.Judge(ref) {
	case Disown:
		o, _ := v.owned(ref)
		refs := withoutOwners(o.GetOwnerReferences(), func(r *metav1.OwnerReference) bool {
			s := v.ownerState(r, ref.Namespace)
			return s == ownerAbsent || s == ownerWaiting
		})
		tx.changeOwned(ref, func(o metav1.Object) { o.SetOwnerReferences(refs) })
	case Collect:
		tx.deleteOwned(ref, "")
	case CollectInForeground:
		tx.breakCircle(ref)
		tx.deleteOwned(ref, Propagation(metav1.DeletePropagationForeground))
	case Release:
		*release -= tx.releaseDependents(ref, *release)
	case Unblock:
		tx.unblock(ref)
	case Finish:
		tx.changeOwned(ref, func(o metav1.Object) {
			o.SetFinalizers(without(o.GetFinalizers(), metav1.FinalizerDeleteDependents))
		})
	}
}

func (tx *Tx) deleteOwned(ref ObjectRef, p Propagation) {
	v := tx.view
	if ref.Resource == owners.Pods {
		key := PodKey(ref.Namespace, ref.Name)
		if pod, ok := v.Pods.Get(key); ok {
			tx.deletePod(key, propagate(pod, p), nil, nil)
		}
		return
	}
	if ref.Resource == DisruptionBudgets {
		key := PodKey(ref.Namespace, ref.Name)
		if b, ok := v.Budgets.Get(key); ok {
			tx.endBudget(key, b)
		}
		return
	}
	key := ObjectKey(ref.Resource, ref.Namespace, ref.Name)
	if o, ok := v.Objects.Get(key); ok {
		tx.deleteObject(key, o, p)
	}
}

// breakCircle: owners that wait for each other in a circle would wait for ever.
// One whose dependents wait themselves lets its own owners go on.
func (tx *Tx) breakCircle(ref ObjectRef) {
	o, _ := tx.view.owned(ref)
	if circle, _ := tx.view.owners.Blocked(owners.IDOf(o)); circle {
		tx.unblock(ref)
	}
}

// unblock has an object's owners not wait for it.
func (tx *Tx) unblock(ref ObjectRef) {
	o, _ := tx.view.owned(ref)
	refs := slices.Clone(o.GetOwnerReferences()) // stored ones are shared
	for i := range refs {
		no := false
		refs[i].BlockOwnerDeletion = &no
	}
	tx.changeOwned(ref, func(o metav1.Object) { o.SetOwnerReferences(refs) })
}

// releaseDependents takes the references to an owner that leaves its dependents
// behind out of so many of them, and says of how many. After the last the owner
// goes.
func (tx *Tx) releaseDependents(ref ObjectRef, most int) int {
	if most <= 0 {
		return 0
	}
	v := tx.view
	o, _ := v.owned(ref)
	uid := o.GetUID()
	var dependents []ObjectRef
	v.Dependents(owners.IDOf(o), "", func(_ string, d ObjectRef, _ owners.Dependent) bool {
		dependents = append(dependents, d)
		return len(dependents) <= most
	})
	released := dependents[:min(len(dependents), most)]
	for _, d := range released {
		tx.changeOwned(d, func(o metav1.Object) {
			o.SetOwnerReferences(withoutOwners(o.GetOwnerReferences(), func(r *metav1.OwnerReference) bool { return r.UID == uid }))
		})
	}
	if len(dependents) <= most {
		tx.changeOwned(ref, func(o metav1.Object) {
			o.SetFinalizers(without(o.GetFinalizers(), metav1.FinalizerOrphanDependents))
		})
	}
	return len(released)
}

// reportForeign says once of an object that one of its owners is in another
// namespace.
func (tx *Tx) reportForeign(ref ObjectRef, foreign metav1.OwnerReference) {
	o, _ := tx.view.owned(ref)
	about := corev1.ObjectReference{Namespace: ref.Namespace, Name: ref.Name, UID: o.GetUID(), ResourceVersion: o.GetResourceVersion()}
	about.APIVersion, about.Kind = "v1", "Pod"
	if kind, ok := objectKinds[ref.Resource]; ok {
		about.APIVersion, about.Kind = kind.apiVersion(), kind.Kind
	} else if d, ok := tx.view.Definition(ref.Resource); ok {
		about.APIVersion, about.Kind = d.Spec.Group+"/"+storageVersion(d), d.Status.AcceptedNames.Kind
	} else if ref.Resource == DisruptionBudgets {
		about.APIVersion, about.Kind = policyv1.SchemeGroupVersion.String(), "PodDisruptionBudget"
	}
	tx.onceEvent(about, corev1.EventTypeWarning, "OwnerRefInvalidNamespace", fmt.Sprintf(
		"ownerRef [%s/%s, namespace: %s, name: %s, uid: %s] does not exist in namespace %q",
		foreign.APIVersion, foreign.Kind, ref.Namespace, foreign.Name, foreign.UID, ref.Namespace))
}
