package server

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"

	"github.com/berth-dev/berth/api/berthv1"
	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/model"
	"github.com/berth-dev/berth/sched"
)

// planner answers what would become of pods (apiserver.Planner).
type planner struct{}

// Plan implements apiserver.Planner.
func (planner) Plan(_ context.Context, view *fsm.View, user string, groups []string, pods []*corev1.Pod) (*berthv1.PlanStatus, error) {
	asked := make([]*corev1.Pod, len(pods))
	for i, pod := range pods {
		pod = pod.DeepCopy()
		if pod.UID == "" {
			pod.UID = uuid.NewUUID()
		}
		if pod.Name == "" {
			pod.Name = fmt.Sprintf("%splan-%d", pod.GenerateName, i)
		}
		asked[i] = pod
	}
	out := &berthv1.PlanStatus{Revision: view.Revision()}
	for i, p := range sched.WhatIf(view, sched.Asker{User: user, Groups: groups}, asked) {
		placement := berthv1.PlanPlacement{
			Pod:  berthv1.PodReference{Namespace: asked[i].Namespace, Name: asked[i].Name, Priority: p.Priority},
			Node: p.Node, NominatedNode: p.NominatedNode, Message: p.Message, Reasons: p.Diagnosis.API(),
		}
		for _, victim := range p.Victims {
			placement.Victims = append(placement.Victims, victimOf(view, victim, p.NominatedNode))
		}
		out.Placements = append(out.Placements, placement)
	}
	return out, nil
}

func victimOf(view *fsm.View, v fsm.PlannedVictim, node string) berthv1.Victim {
	out := berthv1.Victim{UID: types.UID(v.UID), Node: node, ViolatesBudget: v.ViolatesBudget}
	if pod, ok := view.Pods.Get(v.Key); ok {
		out.Namespace, out.Name, out.Priority = pod.Namespace, pod.Name, model.Priority(pod)
	}
	return out
}
