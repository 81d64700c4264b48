package server

import (
	appsv1 "k8s.io/api/apps/v1"

	"github.com/berth-dev/berth/api/berthv1"
	"github.com/berth-dev/berth/controller"
	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/model"
)

// ScaleIn implements apiserver.Planner: the code that chooses for the
// controller.
func (p planner) ScaleIn(view *fsm.View, rs *appsv1.ReplicaSet, fewer int) []berthv1.PlanRemoval {
	var out []berthv1.PlanRemoval
	for _, v := range controller.ScaleIn(view, rs, fewer, p.clock.NowUnixNano()) {
		out = append(out, berthv1.PlanRemoval{
			Pod: berthv1.PodReference{Namespace: v.Pod.Namespace, Name: v.Pod.Name, UID: v.Pod.UID, Priority: model.Priority(v.Pod)}, Node: v.Pod.Spec.NodeName,
			Rule: string(v.Rule), Reason: v.Rule.Explanation(), Detail: v.Detail,
		})
	}
	return out
}
