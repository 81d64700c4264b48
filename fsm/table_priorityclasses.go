package fsm

import (
	"encoding/binary"

	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"

	"github.com/berth-dev/berth/model"
)

var priorityClassTable = protoTable("priorityclasses", indexPriorityClass)

func indexPriorityClass(v *live, key string, old, now *schedulingv1.PriorityClass, hadOld, hasNow bool) {
	if hadOld && old.GlobalDefault {
		v.defaultClasses.Delete(defaultClassKey(old))
	}
	if hasNow && now.GlobalDefault {
		v.defaultClasses.Set(defaultClassKey(now), now.Name)
	}
}

func defaultClassKey(c *schedulingv1.PriorityClass) string {
	var b [4]byte
	binary.BigEndian.PutUint32(b[:], uint32(c.Value)^1<<31)
	return string(b[:]) + c.Name
}

// DefaultPriorityClass is the global default class, if there is one. Were there
// several, the one with the lowest value would hold (PC4).
func (v *View) DefaultPriorityClass() (*schedulingv1.PriorityClass, bool) {
	_, name, ok := v.defaultClasses.Min()
	if !ok {
		return nil, false
	}
	return v.PriorityClasses.Get(name)
}

// PodsApartFromClass calls f for every pod whose priority is not that of the
// class it names, as the class is now; class is nil if there is none of that
// name any more (PC16). It walks over all pods.
func (v *View) PodsApartFromClass(f func(pod *corev1.Pod, class *schedulingv1.PriorityClass) bool) {
	v.Pods.Scan("", func(_ string, pod *corev1.Pod) bool {
		if pod.Spec.PriorityClassName == "" {
			return true
		}
		class, ok := v.PriorityClasses.Get(pod.Spec.PriorityClassName)
		if ok && class.Value == model.Priority(pod) {
			return true
		}
		return f(pod, class)
	})
}
