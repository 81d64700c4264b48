package fsm

import (
	"maps"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/model"
	"github.com/berth-dev/berth/store"
)

// ownerIndexes say who belongs to whom by owner references.
type ownerIndexes struct {
	dependents store.Tree[Dependent] // owner's UID, resource, key: who names it as an owner
	tallies    store.Tree[*Tally]    // controller's UID, labels: how its pods are
	orphans    store.Tree[struct{}]  // key of Pods: active, and without a controller
	owners     store.Tree[string]    // UID -> key of Objects
}

func (x *ownerIndexes) fork() ownerIndexes {
	return ownerIndexes{
		dependents: x.dependents.Fork(), tallies: x.tallies.Fork(), orphans: x.orphans.Fork(), owners: x.owners.Fork(),
	}
}

// Pods is the resource of pods where objects of several tables are named.
const Pods = "pods"

// DisruptionBudgets is the resource of disruption budgets there.
const DisruptionBudgets = "poddisruptionbudgets"

// ObjectRef names one object of the tables that can have owners: a pod, a
// disruption budget, or a plain object.
type ObjectRef struct {
	Resource  string `msgpack:"resource"`
	Namespace string `msgpack:"namespace"`
	Name      string `msgpack:"name"`
	UID       string `msgpack:"uid"`
}

// Dependent is an owner reference as its owner sees it.
type Dependent struct {
	Controller bool // the owner is the controller
	Blocks     bool // the owner's deletion in the foreground waits for it
}

// Tally counts the pods of one controller that have the same labels.
type Tally struct {
	Labels map[string]string
	// Pods are all; of them Active ones have not ended and are not ending,
	// Ready ones are active and ready, Terminating ones are ending.
	Pods, Active, Ready, Terminating int32
}

// TallyOf counts all pods of a controller.
func (v *View) TallyOf(controller types.UID) Tally {
	var sum Tally
	v.Tallies(controller, func(t *Tally) bool {
		sum.add(t, 1)
		return true
	})
	return sum
}

// Tallies calls f for the counts of a controller's pods, one for each set of
// labels that they have.
func (v *View) Tallies(controller types.UID, f func(t *Tally) bool) {
	prefix := string(controller) + "\x00"
	v.tallies.ScanFrom(prefix, prefix, func(_ string, t *Tally) bool { return f(t) })
}

// PodsOf calls f for the pods of a controller, in key order.
func (v *View) PodsOf(controller types.UID, f func(key string, pod *corev1.Pod) bool) {
	prefix := string(controller) + "\x00" + Pods + "/"
	v.dependents.ScanFrom(prefix, prefix, func(at string, d Dependent) bool {
		if !d.Controller {
			return true
		}
		key := at[len(prefix):]
		pod, ok := v.Pods.Get(key)
		return !ok || f(key, pod)
	})
}

// Dependents calls f for every object that names a UID as an owner, from the
// one after `after` on ("" for the first), in a fixed order. at is what to go on
// after.
func (v *View) Dependents(owner types.UID, after string, f func(at string, ref ObjectRef, d Dependent) bool) {
	prefix := string(owner) + "\x00"
	from := prefix
	if after != "" {
		from = after + "\x00"
	}
	v.dependents.ScanFrom(prefix, from, func(at string, d Dependent) bool {
		ref, ok := v.refOf(at[len(prefix):])
		return !ok || f(at, ref, d)
	})
}

// ScanDependents calls f for every object that has owners, once for each of
// them, from the one after `after` on.
func (v *View) ScanDependents(after string, f func(at string, ref ObjectRef) bool) {
	from := after
	if after != "" {
		from = after + "\x00"
	}
	v.dependents.ScanFrom("", from, func(at string, _ Dependent) bool {
		_, key, _ := strings.Cut(at, "\x00")
		ref, ok := v.refOf(key)
		return !ok || f(at, ref)
	})
}

// Orphans calls f for the active pods of a namespace that have no controller.
func (v *View) Orphans(namespace string, f func(key string, pod *corev1.Pod) bool) {
	prefix := namespace + "/"
	v.orphans.ScanFrom(prefix, prefix, func(key string, _ struct{}) bool {
		pod, ok := v.Pods.Get(key)
		return !ok || f(key, pod)
	})
}

// Orphan says whether the pod under a key is active and has no controller.
func (v *View) Orphan(key string) bool {
	_, ok := v.orphans.Get(key)
	return ok
}

// refOf names the object that is under "resource/namespace/name" now.
func (v *View) refOf(key string) (ObjectRef, bool) {
	resource, rest, _ := strings.Cut(key, "/")
	namespace, name, _ := strings.Cut(rest, "/")
	ref := ObjectRef{Resource: resource, Namespace: namespace, Name: name}
	o, ok := v.owned(ref)
	if ok {
		ref.UID = string(o.GetUID())
	}
	return ref, ok
}

// owned is the pod, budget or plain object that a reference names, whatever its
// UID.
func (v *View) owned(ref ObjectRef) (metav1.Object, bool) {
	switch ref.Resource {
	case Pods:
		pod, ok := v.Pods.Get(PodKey(ref.Namespace, ref.Name))
		return pod, ok
	case DisruptionBudgets:
		b, ok := v.Budgets.Get(PodKey(ref.Namespace, ref.Name))
		return b, ok
	}
	o, ok := v.Objects.Get(ObjectKey(ref.Resource, ref.Namespace, ref.Name))
	if !ok {
		return nil, false
	}
	return o.Value, true
}

// indexPodOwners keeps the owner indexes in step with the pods. Most changes of
// a pod are none of what is counted here, and cost next to nothing.
func indexPodOwners(v *live, key string, old, new *corev1.Pod) {
	was, is := standingOf(old), standingOf(new)
	if !sameReferences(was.owners, is.owners) {
		v.indexDependents(Pods+"/"+key, was.owners, is.owners)
	}
	if was.orphan() != is.orphan() {
		if is.orphan() {
			v.orphans.Set(key, struct{}{})
		} else {
			v.orphans.Delete(key)
		}
	}
	if was.controller == "" && is.controller == "" ||
		was.counts == is.counts && was.controller == is.controller && maps.Equal(old.Labels, new.Labels) {
		return
	}
	v.tally(was.controller, old, was.counts, -1)
	v.tally(is.controller, new, is.counts, 1)
}

// standing is what the owner indexes know of a pod.
type standing struct {
	owners     []metav1.OwnerReference
	controller types.UID
	counts     [4]bool // is there, active, ready, terminating
}

func (s *standing) orphan() bool { return s.counts[1] && s.controller == "" }

func standingOf(pod *corev1.Pod) standing {
	if pod == nil {
		return standing{}
	}
	s := standing{owners: pod.OwnerReferences}
	if c := ControllerOf(pod); c != nil {
		s.controller = c.UID
	}
	active := Active(pod)
	s.counts = [4]bool{true, active, active && Ready(pod), model.Terminating(pod) && !model.Terminal(pod)}
	return s
}

// Active says whether a pod counts for its controller: it has not ended and is
// not ending (WC4).
func Active(pod *corev1.Pod) bool { return !model.Terminal(pod) && !model.Terminating(pod) }

// Ready says whether a pod's condition Ready is true.
func Ready(pod *corev1.Pod) bool { return model.Ready(pod) }

// ControllerOf is the reference to an object's controller, or nil. It must not
// be changed.
func ControllerOf(o metav1.Object) *metav1.OwnerReference {
	refs := o.GetOwnerReferences()
	for i := range refs {
		if refs[i].Controller != nil && *refs[i].Controller {
			return &refs[i]
		}
	}
	return nil
}

func (v *live) tally(controller types.UID, pod *corev1.Pod, counts [4]bool, sign int32) {
	if controller == "" {
		return
	}
	key := string(controller) + "\x00" + labels.Set(pod.Labels).String()
	next := Tally{Labels: pod.Labels}
	if t, ok := v.tallies.Get(key); ok {
		next = *t
	}
	one := Tally{}
	for i, n := range []*int32{&one.Pods, &one.Active, &one.Ready, &one.Terminating} {
		if counts[i] {
			*n = 1
		}
	}
	next.add(&one, sign)
	if next.Pods == 0 {
		v.tallies.Delete(key)
		return
	}
	v.tallies.Set(key, &next)
}

func (t *Tally) add(o *Tally, sign int32) {
	t.Pods += sign * o.Pods
	t.Active += sign * o.Active
	t.Ready += sign * o.Ready
	t.Terminating += sign * o.Terminating
}

// indexObjectOwners is the index function of the plain objects.
func indexObjectOwners(v *live, key string, old, new *Object, hadOld, hasNew bool) {
	var was, is []metav1.OwnerReference
	var before, now types.UID
	if hadOld {
		was, before = old.Value.GetOwnerReferences(), old.Value.GetUID()
	}
	if hasNew {
		is, now = new.Value.GetOwnerReferences(), new.Value.GetUID()
	}
	if !sameReferences(was, is) {
		v.indexDependents(key, was, is)
	}
	if before != now {
		if before != "" {
			v.owners.Delete(string(before))
		}
		if now != "" {
			v.owners.Set(string(now), key)
		}
	}
}

func (v *live) indexDependents(key string, was, is []metav1.OwnerReference) {
	for i := range was {
		v.dependents.Delete(string(was[i].UID) + "\x00" + key)
	}
	for i := range is {
		v.dependents.Set(string(is[i].UID)+"\x00"+key, Dependent{
			Controller: is[i].Controller != nil && *is[i].Controller,
			Blocks:     is[i].BlockOwnerDeletion != nil && *is[i].BlockOwnerDeletion,
		})
	}
}

// sameReferences: references are immutable and shared by the states of an
// object, so one slice means that nothing has changed.
func sameReferences(a, b []metav1.OwnerReference) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0])
}
