package explain

import (
	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"

	"github.com/berth-dev/berth/api/operator"
	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/model"
)

// maxDrift bounds how many pods one answer lists.
const maxDrift = 1000

// ClassDrift lists the pods that keep a priority which their class no longer
// has (PC16).
func ClassDrift(view *fsm.View) *operator.ClassDrift {
	out := &operator.ClassDrift{Revision: view.Revision(), Pods: []operator.DriftPod{}}
	view.PodsApartFromClass(func(pod *corev1.Pod, class *schedulingv1.PriorityClass) bool {
		if len(out.Pods) == maxDrift {
			out.More = true
			return false
		}
		p := operator.DriftPod{
			Namespace: pod.Namespace, Name: pod.Name, Class: pod.Spec.PriorityClassName, Priority: model.Priority(pod),
		}
		if class != nil {
			p.ClassValue = &class.Value
		}
		out.Pods = append(out.Pods, p)
		return true
	})
	return out
}
