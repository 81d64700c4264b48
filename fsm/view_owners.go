package fsm

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/owners"
)

// What the index of owner references says, with the objects that it names.

// DisruptionBudgets is the resource of disruption budgets where objects of
// several tables are named; that of pods is owners.Pods.
const DisruptionBudgets = "poddisruptionbudgets"

// ObjectRef names one object of the tables that can have owners: a pod, a
// disruption budget, or a plain object.
type ObjectRef struct {
	Resource  string `msgpack:"resource"`
	Namespace string `msgpack:"namespace"`
	Name      string `msgpack:"name"`
	UID       string `msgpack:"uid"`
}

// TallyOf counts all pods of a controller.
func (v *View) TallyOf(controller owners.ID) owners.Tally {
	var sum owners.Tally
	v.Tallies(controller, func(t *owners.Tally) bool {
		sum.Add(t)
		return true
	})
	return sum
}

// Tallies calls f for the counts of a controller's pods, one for each set of
// labels that they have.
func (v *View) Tallies(controller owners.ID, f func(t *owners.Tally) bool) {
	v.owners.Tallies(controller, f)
}

// PodsOf calls f for the pods of a controller, in key order.
func (v *View) PodsOf(controller owners.ID, f func(key string, pod *corev1.Pod) bool) {
	v.owners.Dependents(controller, "", func(_ string, k owners.Key, d owners.Dependent) bool {
		if !d.Controller || k.Resource != owners.Pods {
			return true
		}
		key := PodKey(k.Namespace, k.Name)
		pod, ok := v.Pods.Get(key)
		return !ok || f(key, pod)
	})
}

// Dependents calls f for every object that belongs to an owner, from the one
// after `after` on ("" for the first), in a fixed order. at is what to go on
// after.
func (v *View) Dependents(owner owners.ID, after string, f func(at string, ref ObjectRef, d owners.Dependent) bool) {
	v.owners.Dependents(owner, after, func(at string, k owners.Key, d owners.Dependent) bool {
		ref, ok := v.refOf(k)
		return !ok || f(at, ref, d)
	})
}

// ScanDependents calls f for every object that has owners, once for each of
// them, from the one after `after` on.
func (v *View) ScanDependents(after string, f func(at string, ref ObjectRef) bool) {
	v.owners.Scan(after, func(at string, k owners.Key) bool {
		ref, ok := v.refOf(k)
		return !ok || f(at, ref)
	})
}

// Orphans calls f for the active pods of a namespace that have no controller.
func (v *View) Orphans(namespace string, f func(key string, pod *corev1.Pod) bool) {
	v.owners.Orphans(namespace, func(name string) bool {
		key := PodKey(namespace, name)
		pod, ok := v.Pods.Get(key)
		return !ok || f(key, pod)
	})
}

// Orphan says whether the pod under a key is active and has no controller.
func (v *View) Orphan(key string) bool { return v.owners.Orphan(key) }

// refOf names the object that has a key now.
func (v *View) refOf(k owners.Key) (ObjectRef, bool) {
	ref := ObjectRef{Resource: k.Resource, Namespace: k.Namespace, Name: k.Name}
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
	case owners.Pods:
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
