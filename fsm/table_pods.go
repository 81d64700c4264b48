package fsm

import (
	"maps"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/model"
)

var podTable = func() *tableDef[*corev1.Pod] {
	def := protoTable("pods", indexPod)
	def.Size = podBytes
	def.Restore = func(v *live, b []byte) (*corev1.Pod, error) { return v.cache.restore(b) }
	return def
}()

// placed is a pod on its node, with what it asks for.
type placed struct {
	pod   *corev1.Pod
	class *model.Class
}

// indexPod keeps the pods by node, what they use there, and those that have
// ended. Ended pods are still on their node but use nothing.
func indexPod(v *live, key string, old, new *corev1.Pod, hadOld, hasNew bool) {
	v.cache.specs.follow(old, new)
	indexUnclaimed(v, key, old, new, hadOld, hasNew)
	var was, is placed
	if hadOld && old.Spec.NodeName != "" {
		was, _ = v.podsByNode.Get(old.Spec.NodeName + "/" + key)
	}
	if hasNew && new.Spec.NodeName != "" {
		is = placed{new, v.placedClass(key, old, new, was)}
	}
	from, to := usedNode(old), usedNode(new)
	if from != to || from != "" && was.class != is.class {
		if from != "" {
			v.setUse(from, v.use(from).without(was.class))
		}
		if to != "" {
			v.setUse(to, v.use(to).with(is.class))
		}
	}
	v.countPod(from, to, old, new, was.class, is.class)
	if was.pod != nil && (is.pod == nil || is.pod.Spec.NodeName != was.pod.Spec.NodeName) {
		v.podsByNode.Delete(was.pod.Spec.NodeName + "/" + key)
	}
	if is.pod != nil {
		v.podsByNode.Set(is.pod.Spec.NodeName+"/"+key, is)
	}
	if hasNew && model.Terminal(new) {
		v.ended.Set(key, new)
	} else if hadOld && model.Terminal(old) {
		v.ended.Delete(key)
	}
	v.budgets.PutPod(v.budgetState(), old, new)
	v.owners.PutPod(old, new)
}

// placedClass is the class of a pod on a node, from where it is known already:
// most changes of a pod leave alone what it asks for.
func (v *live) placedClass(key string, old, new *corev1.Pod, was placed) *model.Class {
	if old != nil && asksTheSame(old, new) {
		if was.class != nil {
			return was.class
		}
		if e, ok := v.Queue.Get(key); ok && e.UID == new.UID {
			return e.Class() // it is being bound
		}
	}
	return v.cache.class(new)
}

// classOn is the class of a pod that is bound to a node.
func (v *View) classOn(pod *corev1.Pod) *model.Class {
	p, _ := v.podsByNode.Get(pod.Spec.NodeName + "/" + PodKey(pod.Namespace, pod.Name))
	return p.class
}

// asksTheSame says whether two states of a pod surely have one class. Specs
// are immutable and shared, so one slice of containers means one spec, but for
// the node.
func asksTheSame(a, b *corev1.Pod) bool {
	return sameSpec(&a.Spec, &b.Spec) && maps.Equal(a.Labels, b.Labels) && model.DemandsStrictBudgets(a) == model.DemandsStrictBudgets(b)
}

func sameSpec(a, b *corev1.PodSpec) bool {
	return len(a.Containers) > 0 && len(a.Containers) == len(b.Containers) && &a.Containers[0] == &b.Containers[0]
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
