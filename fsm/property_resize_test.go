package fsm

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/model"
)

// resize has a pod that runs ask for something else, whatever its node has. Before that the node says what it has.
func (r *random) resize() string {
	key := "default/" + r.podName()
	p, ok := r.view().Pods.Get(key)
	if !ok || p.Spec.NodeName == "" || model.Terminal(p) {
		return ""
	}
	if len(p.Status.ContainerStatuses) == 0 {
		cpu := p.Spec.Containers[0].Resources.Requests.Cpu().String()
		r.line(fmt.Sprintf("report %s %s Running has=%s,%s", p.Spec.NodeName, p.Name, cpu, cpu))
	}
	return r.line(fmt.Sprintf("update-pod %s resize cpu=%s", p.Name, r.pick("wanted", "0", "1", "2", "4")))
}

// carryOut is an honest node: it sets aside what a pod wants where there is room, and else says that there is none.
func (r *random) carryOut() string {
	key := "default/" + r.podName()
	p, ok := r.view().Pods.Get(key)
	if !ok || p.Spec.NodeName == "" || model.Terminal(p) || len(p.Status.ContainerStatuses) == 0 {
		return ""
	}
	s := &p.Status.ContainerStatuses[0]
	has, given := s.Resources.Requests.Cpu().String(), s.AllocatedResources.Cpu().String()
	wants := p.Spec.Containers[0].Resources.Requests.Cpu()
	used := setAside(p)
	used.MilliCPU = wants.MilliValue() - used.MilliCPU
	r.view().Pods.Scan("", func(_ string, q *corev1.Pod) bool {
		if q.Spec.NodeName == p.Spec.NodeName && !model.Terminal(q) {
			used.MilliCPU += setAside(q).MilliCPU
		}
		return true
	})
	why := ""
	n, there := r.view().Nodes.Get(p.Spec.NodeName)
	switch pending := findCondition(&p.Status, corev1.PodResizePending); {
	case !there, pending != nil && pending.Reason == corev1.PodReasonInfeasible && pending.ObservedGeneration == p.Generation:
		why = "infeasible" // for good
	case used.MilliCPU > model.Allocatable(n).MilliCPU || wants.Cmp(*s.AllocatedResources.Cpu()) > 0 && r.pick("gives", "yes", "yes", "no") == "no":
		why = r.pick("why not", "deferred", "infeasible")
	default:
		given = wants.String()
	}
	if r.pick("done", "yes", "no") == "yes" {
		has = given
	}
	return r.line(fmt.Sprintf("report %s %s Running has=%s,%s %s", p.Spec.NodeName, p.Name, has, given, why))
}
