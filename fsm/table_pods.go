package fsm

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/model"
)

var podTable = protoTable("pods", indexPod)

// indexPod keeps the pods by node and what they use there. Pods that have
// ended are still on their node but use nothing.
func indexPod(v *View, key string, old, new *corev1.Pod, hadOld, hasNew bool) {
	if hasNew && !hadOld {
		v.cache.intern(new)
	}
	from, to := usedNode(old), usedNode(new)
	if from != to {
		if from != "" {
			u := v.Usage(from).Without(v.cache.class(old))
			v.usage.Set(from, &u)
		}
		if to != "" {
			u := v.Usage(to).With(v.cache.class(new))
			v.usage.Set(to, &u)
		}
	}
	if hadOld && model.Terminal(old) && !hasNew {
		v.ended.Delete(key)
	}
	if hasNew && model.Terminal(new) {
		v.ended.Set(key, new)
	}
	if hadOld && old.Spec.NodeName != "" && (!hasNew || new.Spec.NodeName != old.Spec.NodeName) {
		v.podsByNode.Delete(old.Spec.NodeName + "/" + key)
	}
	if hasNew && new.Spec.NodeName != "" {
		v.podsByNode.Set(new.Spec.NodeName+"/"+key, new)
	}
}

// usedNode is the node on which the pod occupies resources, or "".
func usedNode(pod *corev1.Pod) string {
	if pod == nil || model.Terminal(pod) {
		return ""
	}
	return pod.Spec.NodeName
}

// PodKey is the key of a pod in the tables.
func PodKey(namespace, name string) string { return namespace + "/" + name }
