package sched

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/model"
)

// Asker is in whose name the pods of a what-if are admitted: who may use which class is part of the answer.
type Asker struct {
	User   string
	Groups []string
}

// Placement is what would become of one pod.
type Placement struct {
	Key string
	// Priority is the pod's, once admitted.
	Priority int32
	// Node is where the pod would be bound at once, NominatedNode where it would be after its victims have gone.
	Node          string
	NominatedNode string
	Victims       []fsm.PlannedVictim
	// Message and Diagnosis say why there is no place; Message alone, why the pod would not be admitted or that it was
	// not reached.
	Message   string
	Diagnosis *fsm.Diagnosis
}

// A what-if decides about the pods that wait before those asked about, as the real scheduler would, but not about
// any number of them.
const (
	whatIfSteps     = 256
	whatIfDecisions = 512
)

// WhatIf tells where pods would go if they were created now, in this order, and who would be evicted for them: the
// same code on a copy of the state. Nothing is changed, and the pods are left as they are.
func WhatIf(state *fsm.View, asker Asker, pods []*corev1.Pod) []Placement {
	fork := state.Fork()
	now := state.TimeUnixNano()
	out := make([]Placement, len(pods))
	open := map[string]*Placement{}
	for i, p := range pods {
		out[i].Key = fsm.PodKey(p.Namespace, p.Name)
		command := &fsm.AdmitPod{Pod: fsm.PodWire{Object: p.DeepCopy()}}
		r := fork.Try(now, fsm.Proposal{User: asker.User, Groups: asker.Groups, Command: command})[0]
		if admitted, ok := r.Object.(*corev1.Pod); ok {
			out[i].Priority = model.Priority(admitted)
		}
		switch {
		case r.Refused():
			out[i].Message = r.Message
		case p.Spec.NodeName != "":
			out[i].Node = p.Spec.NodeName
		default:
			out[i].Message = "waits behind too many other pods"
			if len(p.Spec.SchedulingGates) > 0 {
				out[i].Message = "waits for its scheduling gates"
				continue
			}
			open[out[i].Key] = &out[i]
		}
	}
	s := New(fork)
	for range whatIfSteps {
		if len(open) == 0 {
			break
		}
		plan := s.Step(now, whatIfDecisions)
		if plan == nil {
			break
		}
		fork.Try(now, fsm.Proposal{Command: plan.Command})
		s.Settle(plan)
		note(plan.Command, open)
	}
	return out
}

// note takes down what a plan decided about the pods that are still open. The plan was applied to the state that it was
// made for, so none of it was refused.
func note(c *fsm.ApplyPlan, open map[string]*Placement) {
	for _, d := range c.Bindings {
		if o, ok := open[d.Key]; ok {
			o.Node, o.Message = d.Node, ""
			delete(open, d.Key)
		}
	}
	for _, d := range c.Preemptions {
		if o, ok := open[d.Key]; ok {
			o.NominatedNode, o.Victims, o.Message, o.Diagnosis = d.Node, d.Victims, "", d.Diagnosis
			delete(open, d.Key)
		}
	}
	for _, d := range c.Failures {
		for _, ref := range d.Pods {
			if o, ok := open[ref.Key]; ok {
				o.Message, o.Diagnosis = d.Diagnosis.Message, d.Diagnosis
				delete(open, ref.Key)
			}
		}
	}
}
