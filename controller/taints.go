package controller

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/model"
)

// TaintEviction ends the pods that do not tolerate a NoExecute taint of their
// node, or no longer: their toleration's seconds count from when the taint was
// added, whoever leads (PD12, AF4).
func TaintEviction(v *fsm.View, nowUnixNano int64) []fsm.Command {
	var out []fsm.Command
	v.Nodes.Scan("", func(_ string, n *corev1.Node) bool {
		taints := noExecute(n)
		if len(taints) == 0 {
			return true
		}
		v.PodsOnNode(n.Name, func(pod *corev1.Pod) bool {
			if !model.Terminating(pod) && !model.Terminal(pod) && mustGo(pod, taints, nowUnixNano) {
				out = append(out, &fsm.DeletePod{
					Key:               fsm.PodKey(pod.Namespace, pod.Name),
					Precondition:      fsm.Precondition{UID: string(pod.UID)},
					DisruptionReason:  "DeletionByTaintManager",
					DisruptionMessage: "Taint manager: deleting due to NoExecute taint",
				})
			}
			return len(out) < Batch
		})
		return len(out) < Batch
	})
	return out
}

func noExecute(n *corev1.Node) []*corev1.Taint {
	var out []*corev1.Taint
	for i := range n.Spec.Taints {
		if n.Spec.Taints[i].Effect == corev1.TaintEffectNoExecute {
			out = append(out, &n.Spec.Taints[i])
		}
	}
	return out
}

// mustGo: some taint is not tolerated, or the time that the pod tolerates it
// for is over. Of several tolerations for one taint the first that matches
// holds.
func mustGo(pod *corev1.Pod, taints []*corev1.Taint, nowUnixNano int64) bool {
	for _, taint := range taints {
		toleration := matching(pod.Spec.Tolerations, taint)
		switch {
		case toleration == nil:
			return true
		case toleration.TolerationSeconds == nil || taint.TimeAdded == nil:
			continue
		case taint.TimeAdded.UnixNano()+seconds(max(0, *toleration.TolerationSeconds)) <= nowUnixNano:
			return true
		}
	}
	return false
}

func matching(tolerations []corev1.Toleration, taint *corev1.Taint) *corev1.Toleration {
	for i := range tolerations {
		if model.Tolerates(&tolerations[i], taint) {
			return &tolerations[i]
		}
	}
	return nil
}
