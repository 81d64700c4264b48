package whatif

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/model"
	"github.com/berth-dev/berth/sched"
)

// Asker is in whose name the pods of a what-if are admitted: who may use which class is part of the answer.
type Asker struct {
	User   string
	Groups []string
	// GoOn is asked between bounded pieces of work, and may take its time to let others work. An error ends the what-if. nil: it goes on
	// as long as its context lasts.
	GoOn func() error
}

// Placement is what would become of one pod.
type Placement struct {
	Key string
	// Priority is the pod's, once admitted.
	Priority int32
	// Node is where the pod would be bound at once, NominatedNode where it would be after its victims have gone.
	Node          string
	NominatedNode string
	Victims       []Victim
	// Message and Diagnosis say why there is no place; Message alone, why the pod would not be admitted or that it was
	// not reached.
	Message   string
	Diagnosis *fsm.Diagnosis
}

// A what-if decides about the pods that wait before those asked about, as the real scheduler would, but not about
// any number of them.
const (
	maxSteps   = 256
	planWeight = 512
)

// trial is a copy of a state with a scheduler of its own.
type trial struct {
	goOn  func() error
	ended error // why it does not go on
	state *fsm.State
	sched *sched.Scheduler
	now   int64
}

func newTrial(goOn func() error, state *fsm.View) *trial {
	fork := state.Fork()
	return &trial{goOn: goOn, state: fork, sched: sched.New(fork), now: state.TimeUnixNano()}
}

// over says whether nobody waits for the answer any more.
func (t *trial) over() bool {
	if t.ended == nil {
		t.ended = t.goOn()
	}
	return t.ended != nil
}

// place admits pods and decides until it is known what becomes of them, or the bound is reached.
func (t *trial) place(asker Asker, pods []*corev1.Pod) []Placement {
	out := make([]Placement, len(pods))
	open := map[string]*Placement{}
	for i, p := range pods {
		if t.over() {
			return out
		}
		out[i].Key = fsm.PodKey(p.Namespace, p.Name)
		command := &fsm.AdmitPod{Pod: fsm.PodWire{Object: p.DeepCopy()}}
		r := t.state.Try(t.now, fsm.Proposal{User: asker.User, Groups: asker.Groups, Command: command})[0]
		if admitted, ok := r.Object.(*corev1.Pod); ok {
			out[i].Priority = model.Priority(admitted)
		}
		switch {
		case r.Refused():
			out[i].Message = r.Message
		case p.Spec.NodeName != "":
			out[i].Node = p.Spec.NodeName
			if _, ok := t.state.View().Nodes.Get(p.Spec.NodeName); !ok {
				out[i].Node, out[i].Message = "", fmt.Sprintf("names node %s, which is not there", p.Spec.NodeName)
			}
		case t.state.View().SchedulerConfig().Spec.Profile(p.Spec.SchedulerName) == nil:
			out[i].Message = fmt.Sprintf("is left to scheduler %q: no profile of the scheduler configuration is for it",
				p.Spec.SchedulerName)
		default:
			out[i].Message = "waits behind too many other pods"
			if len(p.Spec.SchedulingGates) > 0 {
				out[i].Message = "waits for its scheduling gates"
				continue
			}
			open[out[i].Key] = &out[i]
		}
	}
	for steps := 0; steps < maxSteps && len(open) > 0 && !t.over(); {
		plan := t.sched.Step(t.now, planWeight)
		if plan == nil && t.sched.Behind() {
			continue
		} else if plan == nil {
			break
		}
		steps++
		before := t.state.View()
		applied := t.state.Try(t.now, fsm.Proposal{Command: plan.Command})[0]
		t.sched.Settle(plan)
		note(plan.Command, applied.Plan, before, open)
	}
	return out
}

// note takes down what a plan decided about the pods that are still open. What was refused is decided again. The
// victims are looked up in the state before: one without a grace period is gone already in the state after.
func note(c *fsm.ApplyPlan, result *fsm.PlanResult, before *fsm.View, open map[string]*Placement) {
	refused := map[string]bool{}
	for _, r := range result.Refused {
		refused[r.Key] = true
	}
	settle := func(key string, answer func(*Placement)) {
		if o, ok := open[key]; ok && !refused[key] {
			o.Message = ""
			answer(o)
			delete(open, key)
		}
	}
	for _, d := range c.Bindings {
		settle(d.Key, func(o *Placement) { o.Node = d.Node })
	}
	for _, d := range c.Preemptions {
		settle(d.Key, func(o *Placement) {
			o.NominatedNode, o.Victims, o.Diagnosis = d.Node, victimsIn(before, d.Victims), d.Diagnosis
		})
	}
	for _, d := range c.Failures {
		message := ""
		if d.SetAside != nil {
			message = "the scheduler failed at this pod: " + d.SetAside.Message
		} else {
			message = d.Diagnosis.Message
		}
		for _, ref := range d.Pods {
			settle(ref.Key, func(o *Placement) { o.Message, o.Diagnosis = message, d.Diagnosis })
		}
	}
}
