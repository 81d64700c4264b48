package controller

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/fsm"
)

// Namespaces empties the namespaces that are being deleted: first what is in
// them is deleted, pods with their grace period, and when nothing is left the
// namespace itself.
func Namespaces(v *fsm.View) []fsm.Command {
	var out []fsm.Command
	v.Namespaces.Scan("", func(name string, ns *corev1.Namespace) bool {
		if ns.DeletionTimestamp == nil {
			return true
		}
		before, waiting := len(out), false
		v.Pods.Scan(name+"/", func(key string, pod *corev1.Pod) bool {
			waiting = true
			if pod.DeletionTimestamp == nil {
				out = append(out, &fsm.DeletePod{Key: key, Precondition: fsm.Precondition{UID: string(pod.UID)}})
			}
			return len(out) < Batch
		})
		v.NamespaceObjects(name, func(o *fsm.Object) bool {
			waiting = true
			if len(out) < Batch {
				out = append(out, &fsm.DeleteObject{Resource: o.Resource, Namespace: name, Name: o.Value.GetName()})
			}
			return len(out) < Batch
		})
		if len(out) == before && !waiting {
			out = append(out, emptied(v, name)...)
		}
		return len(out) < Batch
	})
	return out
}

// emptied deletes the events of an otherwise empty namespace, then the
// namespace.
func emptied(v *fsm.View, name string) []fsm.Command {
	var out []fsm.Command
	v.Events.Scan(name+"/", func(key string, _ *corev1.Event) bool {
		out = append(out, &fsm.DeleteEvents{Key: key})
		return len(out) < Batch
	})
	if len(out) == 0 {
		out = append(out, &fsm.DeleteNamespace{Name: name})
	}
	return out
}
