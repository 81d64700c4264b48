package fsm

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/codec"
	"github.com/berth-dev/berth/owners"
)

// What owner references mean. The rules are those of Kubernetes' garbage
// collector; a verdict is worked out from the state alone, by the collector to
// find what has to be done and again in Apply before it is done.

// Propagation is what becomes of the dependents of an object that is deleted;
// the values are metav1.DeletionPropagation's. "" keeps to what the object's
// finalizers say already.
type Propagation string

// Verdict is what has to be done about an object for its owners' sake, or for
// its dependents'.
type Verdict int

// The verdicts.
const (
	// Keep: nothing.
	Keep Verdict = iota
	// Disown: it has an owner that lives; references to others, that do not,
	// go.
	Disown
	// Collect: none of its owners is there any more, or none that will stay.
	Collect
	// CollectInForeground: the same, and it has dependents of its own that its
	// owner has to wait for.
	CollectInForeground
	// Release: it is being deleted, its dependents stay behind: they lose
	// their reference, and when none is left the object goes.
	Release
	// Finish: it is being deleted in the foreground and no dependent that
	// blocks is left.
	Finish
	// Unblock: it is being deleted in the foreground and waits, through
	// dependents that wait themselves, for its own end. Its owners stop waiting
	// for it.
	Unblock
)

// ownerState is what an owner reference leads to.
type ownerState int

const (
	ownerPresent ownerState = iota
	ownerAbsent
	// ownerWaiting: it is being deleted in the foreground.
	ownerWaiting
	// ownerForeign: it is in another namespace. Such a reference means
	// nothing.
	ownerForeign
)

// Judge says what has to be done about an object.
func (v *View) Judge(ref ObjectRef) Verdict {
	o, ok := v.owned(ref)
	if !ok || string(o.GetUID()) != ref.UID {
		return Keep
	}
	if o.GetDeletionTimestamp() != nil {
		switch {
		case slices.Contains(o.GetFinalizers(), metav1.FinalizerOrphanDependents):
			return Release
		case !owners.WaitsForDependents(o):
			return Keep
		case !v.blocked(o):
			return Finish
		case v.waitsForItself(o):
			return Unblock
		}
		return Keep
	}
	present, absent, waiting := 0, 0, 0
	refs := o.GetOwnerReferences()
	for i := range refs {
		switch v.ownerState(&refs[i], o.GetNamespace()) {
		case ownerPresent:
			present++
		case ownerAbsent:
			absent++
		case ownerWaiting:
			waiting++
		}
	}
	switch {
	case present > 0 && absent+waiting > 0:
		return Disown
	case present > 0 || absent+waiting == 0:
		return Keep
	case waiting > 0 && v.hasDependents(o):
		return CollectInForeground
	}
	return Collect
}

// Foreign is the first owner reference that leads into another namespace.
func (v *View) Foreign(ref ObjectRef) (metav1.OwnerReference, bool) {
	o, ok := v.owned(ref)
	if !ok || string(o.GetUID()) != ref.UID {
		return metav1.OwnerReference{}, false
	}
	refs := o.GetOwnerReferences()
	for i := range refs {
		if v.ownerState(&refs[i], o.GetNamespace()) == ownerForeign {
			return refs[i], true
		}
	}
	return metav1.OwnerReference{}, false
}

// ownerState follows one reference. Owners of kinds that the state machine does
// not hold are taken to be there.
func (v *View) ownerState(ref *metav1.OwnerReference, namespace string) ownerState {
	owner, known := v.owner(ref, namespace)
	switch {
	case !known:
		return ownerPresent
	case owner != nil && owner.GetUID() == ref.UID:
		if owners.WaitsForDependents(owner) {
			return ownerWaiting
		}
		return ownerPresent
	}
	if v.owners.Foreign(owners.ID{Namespace: namespace, UID: ref.UID}) {
		return ownerForeign
	}
	return ownerAbsent
}

// owner is the object that a reference names, whatever its UID; nil if there is
// none. known is false for kinds that are not held here.
func (v *View) owner(ref *metav1.OwnerReference, namespace string) (owner metav1.Object, known bool) {
	named := kindNamed(ref)
	if kind, ok := kindsByName[named]; ok && v.Version() >= kind.Since {
		if kind.ClusterScoped && v.Version() >= SinceDefinitions {
			namespace = ""
		}
		if o, ok := v.Objects.Get(ObjectKey(kind.Resource, namespace, ref.Name)); ok {
			return o.Value, true
		}
		return nil, true
	}
	if d, ok := v.definedKind(named); ok {
		if d.Spec.Scope == apiextensionsv1.ClusterScoped {
			namespace = ""
		}
		if o, ok := v.Objects.Get(ObjectKey(d.Name, namespace, ref.Name)); ok {
			return o.Value, true
		}
		return nil, true
	}
	switch named {
	case podResource.groupKind():
		return found(v.Pods.Get(PodKey(namespace, ref.Name)))
	case budgetResource.groupKind():
		return found(v.Budgets.Get(PodKey(namespace, ref.Name)))
	case nodeResource.groupKind():
		return found(v.Nodes.Get(ref.Name))
	case namespaceResource.groupKind():
		return found(v.Namespaces.Get(ref.Name))
	case classResource.groupKind():
		return found(v.PriorityClasses.Get(ref.Name))
	}
	return nil, false
}

func found[T metav1.Object](o T, ok bool) (metav1.Object, bool) {
	if !ok {
		return nil, true
	}
	return o, true
}

var kindsByName = func() map[schema.GroupKind]ObjectKind {
	m := map[schema.GroupKind]ObjectKind{}
	for _, k := range ObjectKinds() {
		m[schema.GroupKind{Group: k.Group, Kind: k.Kind}] = k
	}
	return m
}()

// kindNamed is the kind that a reference names, in whatever version.
func kindNamed(ref *metav1.OwnerReference) schema.GroupKind {
	group, _, ok := strings.Cut(ref.APIVersion, "/")
	if !ok {
		group = ""
	}
	return schema.GroupKind{Group: group, Kind: ref.Kind}
}

func (v *View) hasDependents(o metav1.Object) bool {
	has := false
	v.Dependents(owners.IDOf(o), "", func(string, ObjectRef, owners.Dependent) bool {
		has = true
		return false
	})
	return has
}

// blocked: a dependent is left that the owner's deletion waits for.
func (v *View) blocked(o metav1.Object) bool {
	byWaiting, byOthers := v.owners.Blocked(owners.IDOf(o))
	return byWaiting || byOthers
}

// maxCircle bounds the owners that are followed to find a circle.
const maxCircle = 256

// waitsForItself: all that the object's deletion waits for is being deleted in
// the foreground as well, and waits in the end for the object.
func (v *View) waitsForItself(o metav1.Object) bool {
	circle, seen := false, map[types.UID]bool{o.GetUID(): true}
	for next := []metav1.Object{o}; len(next) > 0 && len(seen) <= maxCircle && !circle; next = next[1:] {
		owner := owners.IDOf(next[0])
		if _, byOthers := v.owners.Blocked(owner); byOthers {
			continue // the circle is not what it waits for, or not alone
		}
		v.owners.Waiting(owner, func(k owners.Key) bool {
			dependent, ok := v.owned(ObjectRef{Resource: k.Resource, Namespace: k.Namespace, Name: k.Name})
			switch {
			case !ok:
			case dependent.GetUID() == o.GetUID():
				circle = true
			case !seen[dependent.GetUID()]:
				seen[dependent.GetUID()] = true
				next = append(next, dependent)
			}
			return !circle && len(seen) <= maxCircle
		})
	}
	return circle
}

// finalizersFor are an object's finalizers once it is deleted with a
// propagation; the slice is the object's own if nothing changes.
func finalizersFor(have []string, p Propagation) []string {
	var want string
	switch metav1.DeletionPropagation(p) {
	case metav1.DeletePropagationOrphan:
		want = metav1.FinalizerOrphanDependents
	case metav1.DeletePropagationForeground:
		want = metav1.FinalizerDeleteDependents
	case metav1.DeletePropagationBackground:
	default:
		return have
	}
	var next []string
	for _, f := range have {
		if f == want || f != metav1.FinalizerOrphanDependents && f != metav1.FinalizerDeleteDependents {
			next = append(next, f)
		}
	}
	if want != "" && !slices.Contains(next, want) {
		next = append(next, want)
	}
	if slices.Equal(next, have) {
		return have
	}
	return next
}

// deleteObject ends a plain object: at once, or, if finalizers hold it, when
// the last of them is gone.
func (tx *Tx) deleteObject(key string, old *Object, p Propagation) (*Object, bool) {
	finalizers := tx.view.finalizersOfDefinition(old, finalizersFor(old.Value.GetFinalizers(), p))
	if len(finalizers) == 0 {
		remove(tx, tx.view.Objects, key)
		return old, true
	}
	if old.Value.GetDeletionTimestamp() != nil && slices.Equal(finalizers, old.Value.GetFinalizers()) {
		return old, false
	}
	next := changedObject(old, func(o metav1.Object) {
		o.SetFinalizers(finalizers)
		if o.GetDeletionTimestamp() != nil {
			return
		}
		now, grace := tx.now(), int64(0)
		o.SetDeletionTimestamp(&now)
		o.SetDeletionGracePeriodSeconds(&grace)
		if o.GetGeneration() > 0 {
			o.SetGeneration(o.GetGeneration() + 1)
		}
	})
	put(tx, tx.view.Objects, key, next)
	return next, false
}

// changedObject is a changed copy of a plain object.
func changedObject(old *Object, change func(o metav1.Object)) *Object {
	value := old.Value.(runtime.Object).DeepCopyObject().(codec.Object)
	change(value)
	return &Object{Resource: old.Resource, Value: value}
}

// changeOwned changes the owner references and finalizers of a pod or plain
// object. One that is being deleted goes with its last finalizer.
func (tx *Tx) changeOwned(ref ObjectRef, change func(o metav1.Object)) {
	v := tx.view
	if ref.Resource == owners.Pods {
		key := PodKey(ref.Namespace, ref.Name)
		old, ok := v.Pods.Get(key)
		if !ok {
			return
		}
		pod := *old
		if change(&pod); podLetGo(&pod) {
			tx.removePod(key, old)
		} else {
			put(tx, v.Pods, key, &pod)
		}
		return
	}
	if ref.Resource == DisruptionBudgets {
		tx.changeBudget(PodKey(ref.Namespace, ref.Name), change)
		return
	}
	key := ObjectKey(ref.Resource, ref.Namespace, ref.Name)
	old, ok := v.Objects.Get(key)
	if !ok {
		return
	}
	next := changedObject(old, change)
	if letGo(next.Value) {
		remove(tx, v.Objects, key)
	} else {
		put(tx, v.Objects, key, next)
	}
}

// letGo says whether nothing holds an object any more that is to be deleted. What
// its writer wanted to store then never is: the end is one change, as whoever
// watches expects.
func letGo(o metav1.Object) bool {
	return o.GetDeletionTimestamp() != nil && len(o.GetFinalizers()) == 0
}

// podLetGo is letGo for pods: one that runs goes when its worker says so.
func podLetGo(pod *corev1.Pod) bool {
	return letGo(pod) && (pod.DeletionGracePeriodSeconds == nil || *pod.DeletionGracePeriodSeconds == 0 || pod.Spec.NodeName == "")
}

// withoutOwners are the references but for those that drop says. The slice is a
// new one: stored ones are shared.
func withoutOwners(refs []metav1.OwnerReference, drop func(ref *metav1.OwnerReference) bool) []metav1.OwnerReference {
	var out []metav1.OwnerReference
	for i := range refs {
		if !drop(&refs[i]) {
			out = append(out, refs[i])
		}
	}
	return out
}

func without(list []string, x string) []string {
	var out []string
	for _, s := range list {
		if s != x {
			out = append(out, s)
		}
	}
	return out
}

// OwnerRef is the object that an owner reference leads to, if it is a pod or
// plain object and is there.
func (v *View) OwnerRef(ref *metav1.OwnerReference, namespace string) (ObjectRef, bool) {
	out := ObjectRef{Resource: owners.Pods, Namespace: namespace, Name: ref.Name, UID: string(ref.UID)}
	named := kindNamed(ref)
	if kind, ok := kindsByName[named]; ok {
		if out.Resource = kind.Resource; kind.ClusterScoped {
			out.Namespace = ""
		}
	} else if d, ok := v.definedKind(named); ok {
		if out.Resource = d.Name; d.Spec.Scope == apiextensionsv1.ClusterScoped {
			out.Namespace = ""
		}
	} else if named != podResource.groupKind() {
		return out, false
	}
	o, ok := v.owned(out)
	return out, ok && o.GetUID() == ref.UID
}
