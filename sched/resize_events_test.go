package sched

import (
	corev1 "k8s.io/api/core/v1"
	apiresource "k8s.io/apimachinery/pkg/api/resource"

	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/model"
)

// resizesInPlace has a pod that runs ask for another amount of processor, whatever its node has.
func (w *world) resizesInPlace() {
	key, ok := w.someBoundPod()
	if !ok {
		return
	}
	old, _ := w.State.View().Pods.Get(key)
	p := old.DeepCopy()
	p.Generation++
	list := corev1.ResourceList{corev1.ResourceCPU: apiresource.MustParse(w.pick("cpu wanted", "100m", "500m", "1", "2", "9"))}
	for name, q := range p.Spec.Containers[0].Resources.Requests {
		if name != corev1.ResourceCPU {
			list[name] = q
		}
	}
	p.Spec.Containers[0].Resources.Requests = list
	w.Must(&fsm.UpdatePod{Pod: fsm.PodWire{Object: p}, Resize: true})
}

// carriesOut has a node say how far a pod's resize is.
func (w *world) carriesOut() {
	key, ok := w.somePodThat("resized", func(p *corev1.Pod) bool {
		return p.Spec.NodeName != "" && !model.Terminal(p) && p.Generation > 0
	})
	if !ok {
		return
	}
	p, _ := w.State.View().Pods.Get(key)
	amount := func(label string) corev1.ResourceList {
		if q := w.pick(label, "", "", "100m", "1", "3"); q != "" {
			return corev1.ResourceList{corev1.ResourceCPU: apiresource.MustParse(q)}
		}
		return p.Spec.Containers[0].Resources.Requests
	}
	status := p.Status.DeepCopy()
	status.ContainerStatuses = []corev1.ContainerStatus{{Name: p.Spec.Containers[0].Name, AllocatedResources: amount("set aside"),
		Resources: &corev1.ResourceRequirements{Requests: amount("has")}}}
	var others []corev1.PodCondition
	for _, c := range status.Conditions {
		if !model.IsResizeCondition(c.Type) {
			others = append(others, c)
		}
	}
	status.Conditions = others
	if reason := w.pick("why not", "", "", corev1.PodReasonDeferred, corev1.PodReasonInfeasible); reason != "" {
		status.Conditions = append(status.Conditions, corev1.PodCondition{Type: corev1.PodResizePending, Status: corev1.ConditionTrue,
			Reason: reason, ObservedGeneration: p.Generation})
	}
	w.Must(&fsm.ReportPods{Node: p.Spec.NodeName, Reports: []fsm.PodReport{
		{Key: key, UID: string(p.UID), Status: fsm.PodStatusWire{Object: status}}}})
}
