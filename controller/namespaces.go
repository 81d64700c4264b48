package controller

import (
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"

	"github.com/berth-dev/berth/fsm"
)

// Namespaces empties the namespaces that are being deleted: first the pods, with
// their grace period, and when they are gone everything else, so that no pod runs
// without what protects it or others; when nothing else is left
// their events are, and then the namespace itself. Pods that end make events,
// so events come last. One that takes its time says what holds it.
//
// Its memory is how far the pods of each were deleted: nothing new comes into
// a namespace that ends, so those who take their time are not walked over
// again and again.
type Namespaces struct {
	done map[string]walk
}

// walk is how far a walk over a namespace's pods has come.
type walk struct {
	from string
	// again is when a walk that has come to its end begins anew, in case a
	// deletion was not carried out.
	again int64
	// tell is when the namespace says again what holds it.
	tell int64
}

const walkAgainSeconds = 10

// Reconcile returns what can be deleted now.
func (n *Namespaces) Reconcile(v *fsm.View, nowUnixNano int64) []fsm.Command {
	before := n.done
	n.done = map[string]walk{}
	var out []fsm.Command
	counted := 0
	v.Namespaces.Scan("", func(name string, ns *corev1.Namespace) bool {
		if ns.DeletionTimestamp == nil {
			return true
		}
		w, ok := before[name]
		if !ok {
			w.tell = nowUnixNano + seconds(tellAfterSeconds)
		}
		if !ok || w.again != 0 && w.again <= nowUnixNano {
			w = walk{from: name + "/", tell: w.tell}
		}
		if w.again == 0 {
			out = append(out, w.pods(v, name, Batch-len(out), nowUnixNano)...)
		}
		if w.tell <= nowUnixNano && counted < remainingBatch && len(out) < Batch {
			w.tell = nowUnixNano + seconds(walkAgainSeconds)
			left := remainingIn(v, name)
			counted += left.counted
			if c := left.tell(ns, nowUnixNano); c != nil {
				out = append(out, c)
			}
		}
		n.done[name] = w
		if !holdsPods(v, name) {
			out = append(out, plainObjects(v, name, Batch-len(out))...)
			out = append(out, budgets(v, name, Batch-len(out))...)
		}
		if len(out) < Batch && holdsNothing(v, name) && len(ns.Finalizers) == 0 {
			out = append(out, lastOf(v, name, Batch-len(out))...)
		}
		return true
	})
	return out
}

// pods deletes the next pods of the walk, at most room.
func (w *walk) pods(v *fsm.View, namespace string, room int, nowUnixNano int64) []fsm.Command {
	var out []fsm.Command
	full := false
	v.Pods.ScanFrom(namespace+"/", w.from, func(key string, pod *corev1.Pod) bool {
		if full = len(out) >= room; full {
			w.from = key
			return false
		}
		if pod.DeletionTimestamp == nil {
			out = append(out, &fsm.DeletePod{Key: key, Precondition: fsm.Precondition{UID: string(pod.UID)}})
		}
		return true
	})
	if !full {
		w.again = nowUnixNano + seconds(walkAgainSeconds)
	}
	return out
}

func plainObjects(v *fsm.View, namespace string, room int) []fsm.Command {
	var out []fsm.Command
	v.NamespaceObjects(namespace, func(o *fsm.Object) bool {
		if len(out) >= room {
			return false
		}
		if o.Value.GetDeletionTimestamp() != nil {
			return true // its finalizers are somebody else's to take away
		}
		out = append(out, &fsm.DeleteObject{Resource: o.Resource, Namespace: namespace, Name: o.Value.GetName(), Precondition: fsm.Precondition{UID: string(o.Value.GetUID())}})
		return true
	})
	return out
}

func budgets(v *fsm.View, namespace string, room int) []fsm.Command {
	var out []fsm.Command
	v.Budgets.Scan(namespace+"/", func(_ string, b *policyv1.PodDisruptionBudget) bool {
		if len(out) >= room {
			return false
		}
		if b.DeletionTimestamp == nil {
			out = append(out, &fsm.DeleteDisruptionBudget{Namespace: namespace, Name: b.Name, Precondition: fsm.Precondition{UID: string(b.UID)}})
		}
		return true
	})
	return out
}

func holdsPods(v *fsm.View, namespace string) bool {
	some := false
	v.Pods.Scan(namespace+"/", func(string, *corev1.Pod) bool {
		some = true
		return false
	})
	return some
}

// holdsNothing says whether nothing but events is left.
func holdsNothing(v *fsm.View, namespace string) bool {
	nothing := !holdsPods(v, namespace)
	v.NamespaceObjects(namespace, func(*fsm.Object) bool {
		nothing = false
		return false
	})
	v.Budgets.Scan(namespace+"/", func(string, *policyv1.PodDisruptionBudget) bool {
		nothing = false
		return false
	})
	return nothing
}

// lastOf deletes the events of an otherwise empty namespace, or the namespace.
func lastOf(v *fsm.View, name string, room int) []fsm.Command {
	var out []fsm.Command
	v.Events.Scan(name+"/", func(key string, _ *corev1.Event) bool {
		out = append(out, &fsm.DeleteEvents{Key: key})
		return len(out) < room
	})
	if len(out) == 0 {
		out = append(out, &fsm.DeleteNamespace{Name: name})
	}
	return out
}
