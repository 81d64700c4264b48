package fsm

import (
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/berth-dev/berth/codec"
)

const runtimeClasses = "runtimeclasses"

// runtimeClassKind: a RuntimeClass says what a pod that names it costs beyond
// its containers, and which nodes can run it. Both become the pod's own when it
// is admitted.
func runtimeClassKind() ObjectKind {
	return ObjectKind{
		Group: nodev1.GroupName, Resource: runtimeClasses, Kind: "RuntimeClass", ClusterScoped: true,
		New: func() codec.Object { return new(nodev1.RuntimeClass) },
	}
}

// RuntimeClass finds a class by its name.
func (v *View) RuntimeClass(name string) (*nodev1.RuntimeClass, bool) {
	o, ok := v.Objects.Get(ObjectKey(runtimeClasses, "", name))
	if !ok {
		return nil, false
	}
	return o.Value.(*nodev1.RuntimeClass), true
}

// resolveClasses gives a new pod what follows from the classes that it names,
// if its service account is there.
func (tx *Tx) resolveClasses(w *PodWire, owner *workload) (Result, bool) {
	if r, ok := tx.view.checkServiceAccount(w.Object); !ok {
		return r, false
	}
	if r, ok := tx.resolveRuntimeClass(w); !ok {
		return r, false
	}
	return tx.resolvePriority(w.Object, owner)
}

// resolveRuntimeClass gives a new pod the overhead of its RuntimeClass, and
// sends it to the nodes that the class is for.
func (tx *Tx) resolveRuntimeClass(w *PodWire) (Result, bool) {
	pod := w.Object
	refuse := func(why string) (Result, bool) {
		return refuseForbidden(podResource.groupResource(), givenName(pod), why), false
	}
	var class *nodev1.RuntimeClass
	if name := pod.Spec.RuntimeClassName; name != nil {
		var ok bool
		if class, ok = tx.view.RuntimeClass(*name); !ok {
			return refuse(fmt.Sprintf("pod rejected: RuntimeClass %q not found", *name))
		}
		w.origin = nil // what becomes of the spec depends on more than its bytes
	}
	if class == nil || class.Overhead == nil {
		if pod.Spec.Overhead != nil {
			return refuse("pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead")
		}
	} else {
		overhead := class.Overhead.PodFixed
		if len(pod.Spec.Overhead) > 0 && !equality.Semantic.DeepEqual(pod.Spec.Overhead, overhead) {
			return refuse("pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead")
		}
		pod.Spec.Overhead = overhead
	}
	if class == nil || class.Scheduling == nil {
		return Result{}, true
	}
	selector := maps.Clone(pod.Spec.NodeSelector)
	if selector == nil {
		selector = map[string]string{}
	}
	for _, key := range slices.Sorted(maps.Keys(class.Scheduling.NodeSelector)) {
		value := class.Scheduling.NodeSelector[key]
		if own, ok := selector[key]; ok && own != value {
			return refuse(fmt.Sprintf("conflict: runtimeClass.scheduling.nodeSelector[%s] = %s; pod.spec.nodeSelector[%s] = %s", key, value, key, own))
		}
		selector[key] = value
	}
	if len(selector) > 0 {
		pod.Spec.NodeSelector = selector
	}
	pod.Spec.Tolerations = mergeTolerations(pod.Spec.Tolerations, class.Scheduling.Tolerations)
	return Result{}, true
}

// mergeTolerations adds those that are not there yet, in a new list.
func mergeTolerations(own, more []corev1.Toleration) []corev1.Toleration {
	out := slices.Clone(own)
	for _, t := range more {
		if !slices.ContainsFunc(out, func(o corev1.Toleration) bool { return equality.Semantic.DeepEqual(o, t) }) {
			out = append(out, t)
		}
	}
	return out
}
