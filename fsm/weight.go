package fsm

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/model"
)

// Weight is how many things a command is about, at least 1: pods, nodes, objects,
// decisions. What it costs grows with that, as far as a command alone can tell.
func Weight(c Command) int {
	n := 1
	switch c := c.(type) {
	case *AdmitPods:
		n = int(c.Count)
	case *ApplyPlan:
		n = c.Decisions()
		for i := range c.Preemptions {
			n += len(c.Preemptions[i].Victims)
		}
	case *ReportPods:
		n = len(c.Reports)
	case *SetNodeHealth:
		n = len(c.Nodes)
	case *ScaleIn:
		n = len(c.Victims)
	case *ClaimPods:
		n = len(c.Adopt) + len(c.Release)
	case *CollectGarbage:
		n = len(c.Objects)
	case *ReleaseNominations:
		n = len(c.Pods)
	case *DeleteEvents:
		n = int(c.Limit)
	}
	return max(n, 1)
}

// MaxHostPorts is how many host ports the API lets a pod have.
const MaxHostPorts = 128

// MostWork is what a command may cost by what it carries, where others of its kind that
// cost little say nothing of it: a pod's kind, which may have to be worked out, and host
// ports, on a node that has as many as can be. Of others it is 0.
func MostWork(c Command) int64 {
	switch c := c.(type) {
	case *AdmitPod:
		return classWork(c.Pod.Object) + portWork(c.Pod.Object)
	case *AdmitPods:
		return classWork(c.Template.Object) + int64(c.Count)*portWork(c.Template.Object)
	case *UpdatePod: // it may be of another kind from now on
		return classWork(c.Pod.Object) + 2*portWork(c.Pod.Object)
	}
	return 0
}

// classWork is what it costs to work out a pod's class.
func classWork(pod *corev1.Pod) int64 {
	if pod == nil {
		return 0
	}
	return workOfClass(model.AsksOf(pod.Spec.Affinity), model.AsksOfPods(pod.Spec.Affinity, pod.Spec.TopologySpreadConstraints), len(pod.Labels))
}

func portWork(pod *corev1.Pod) int64 {
	if pod == nil || pod.Spec.NodeName == "" {
		return 0
	}
	ports := int64(len(model.HostPorts(pod)))
	return ports * (costPort + model.MaxPodsPerNode*MaxHostPorts/portsPerUnit)
}
