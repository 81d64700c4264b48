package explain

import (
	appsv1 "k8s.io/api/apps/v1"

	"github.com/berth-dev/berth/api/berthv1"
	"github.com/berth-dev/berth/controller"
	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/model"
)

// ScaleIn answers which pods of a ReplicaSet would go if it had fewer: by the
// code that chooses for the controller.
func ScaleIn(view *fsm.View, rs *appsv1.ReplicaSet, fewer int, nowUnixNano int64) []berthv1.PlanRemoval {
	var out []berthv1.PlanRemoval
	for _, v := range controller.ScaleIn(view, rs, fewer, nowUnixNano) {
		out = append(out, berthv1.PlanRemoval{
			Pod: berthv1.PodReference{
				Namespace: v.Pod.Namespace, Name: v.Pod.Name, UID: v.Pod.UID, Priority: model.Priority(v.Pod),
			},
			Node: v.Pod.Spec.NodeName,
			Rule: string(v.Rule), Reason: v.Rule.Explanation(), Detail: v.Detail,
		})
	}
	return out
}
