package fsm

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/model"
	"github.com/berth-dev/berth/quotas"
)

// SinceResize is the version of the rules by which pods are resized where they run. By earlier ones a pod is charged for
// what its spec asks for, whatever its status says, and workers have four conditions.
const SinceResize = 19

// SinceRestarting is the version of the rules by which workers say that all containers of a pod are started anew.
const SinceRestarting = 23

// resizes says whether what pods are charged for depends on their status.
func (v *View) resizes() bool { return v.Version() >= SinceResize }

// isResizing says whether a pod is charged for something else than its spec.
func (v *View) isResizing(pod *corev1.Pod) bool { return v.resizes() && model.Resizing(pod) }

// Charged is a pod with the requests that it is charged for as those of its spec; see model.Charged.
func (v *View) Charged(pod *corev1.Pod) *corev1.Pod {
	if !v.isResizing(pod) {
		return pod
	}
	return model.Charged(pod)
}

// compile is the class of a pod, by what it is charged for.
func (v *live) compile(pod *corev1.Pod) *model.Class {
	if !v.isResizing(pod) {
		return v.cache.class(pod)
	}
	return v.cache.compile(model.Charged(pod))
}

// workerConditions are the conditions that workers alone say.
func (v *View) workerConditions() []corev1.PodConditionType {
	own := model.WorkerConditions()
	if v.Version() < SinceRestarting {
		own = slices.DeleteFunc(own, func(t corev1.PodConditionType) bool { return t == corev1.AllContainersRestarting })
	}
	if v.resizes() {
		return own
	}
	return slices.DeleteFunc(own, model.IsResizeCondition)
}

// beginResizing charges pods by their status from now on: it is called when the rules become those that do.
func (v *live) beginResizing() {
	v.Pods.Scan("", func(key string, pod *corev1.Pod) bool {
		if model.Resizing(pod) {
			was, is := v.usage.ClassOf(pod), v.compile(pod)
			v.usage.PutPod(pod, pod, was, is)
			v.countPod(pod, pod, was, is)
			v.quotas.PutPod(pod.Namespace, quotas.PodOf(pod, quotas.ChargeOf(pod)), v.podUse(pod))
		}
		return true
	})
}
