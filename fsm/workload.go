package fsm

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/berth-dev/berth/owners"
)

// workload is an object that keeps pods by commands, as one of them meets it.
type workload struct {
	ref    ObjectRef
	kind   ObjectKind
	object *Object
}

func (w *workload) resource() resource { return resource{w.kind.Group, w.kind.Resource, w.kind.Kind} }

// workload finds the workload that a command is for; nil and a refusal if it
// is not there.
func (tx *Tx) workload(ref ObjectRef) (*workload, Result) {
	kind, ok := objectKinds[ref.Resource]
	if !ok || kind.Workload == nil || kind.Workload.WithStatus == nil {
		return nil, refuseBadRequest(fmt.Sprintf("%q is no kind of workload", ref.Resource))
	}
	w := &workload{ref: ref, kind: kind}
	if w.object, ok = tx.view.Objects.Get(ObjectKey(ref.Resource, ref.Namespace, ref.Name)); !ok {
		return nil, refuseNotFound(w.resource().groupResource(), ref.Name)
	}
	if r, ok := (Precondition{UID: ref.UID}).check(w.object.Value, w.resource()); !ok {
		return nil, r
	}
	return w, Result{}
}

// takes: new pods of a template can be the workload's. They get it as their
// controller.
func (w *workload) takes(template *corev1.Pod, generation int64) (Result, bool) {
	o := w.object.Value
	conflict := func(why string) (Result, bool) {
		return refuseConflict(w.resource().groupResource(), w.ref.Name, why), false
	}
	switch {
	case o.GetNamespace() != template.Namespace:
		return refuseBadRequest("a workload's pods are in its own namespace"), false
	case o.GetDeletionTimestamp() != nil:
		return conflict("it is being deleted")
	case generation != 0 && generation != o.GetGeneration():
		return conflict(modifiedMessage)
	}
	template.OwnerReferences = []metav1.OwnerReference{w.reference()}
	return Result{}, true
}

// reference is the controller reference of the workload's pods.
func (w *workload) reference() metav1.OwnerReference {
	yes := true
	return metav1.OwnerReference{
		APIVersion: w.kind.apiVersion(), Kind: w.kind.Kind, Name: w.ref.Name, UID: w.object.Value.GetUID(),
		Controller: &yes, BlockOwnerDeletion: &yes,
	}
}

// missing is how many pods the workload lacks; below zero, how many it has too
// many.
func (w *workload) missing(v *View) int32 {
	return w.kind.Workload.Replicas(w.object.Value) - v.TallyOf(owners.IDOf(w.object.Value)).Active
}

// selector: which pods can be the workload's.
func (w *workload) selector() labels.Selector {
	s, err := metav1.LabelSelectorAsSelector(w.kind.Workload.Selector(w.object.Value))
	if err != nil || s.Empty() {
		return labels.Nothing()
	}
	return s
}

func (w *workload) about() corev1.ObjectReference {
	o := w.object.Value
	return corev1.ObjectReference{
		APIVersion: w.kind.apiVersion(), Kind: w.kind.Kind, Namespace: w.ref.Namespace, Name: w.ref.Name,
		UID: o.GetUID(), ResourceVersion: o.GetResourceVersion(),
	}
}

// names tells in an event which pods it is about: one event says it of all that
// one command made or deleted.
type names struct {
	count       int
	first, last string
}

func (n *names) add(name string) {
	if n.count == 0 {
		n.first = name
	}
	n.last = name
	n.count++
}

func (n *names) String() string {
	if n.count == 1 {
		return "pod: " + n.first
	}
	return fmt.Sprintf("%d pods: %s … %s", n.count, n.first, n.last)
}
