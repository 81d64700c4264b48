// Package whatif tells what placing pods would do: where they would go, who would have to leave for them, and what would
// become of those. It is the scheduler itself, on a copy of the state; nothing is decided otherwise here than there.
//
// Like the scheduler it must never read a clock (the copy's time is the state's), draw a random number, start a goroutine
// or do I/O; nor does it change what it is asked about.
package whatif

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/model"
)

// maxRounds bounds how far a cascade is followed, and maxSuccessors how many pods are followed in one round.
const (
	maxRounds     = 5
	maxSuccessors = 1000
)

// Foresight is what a what-if found, and what would come of it.
type Foresight struct {
	Placements []Placement
	// Successors are the pods that the victims' controllers would make in their place, and what would become of those.
	Successors []Successor
	// Depth is how many rounds of evictions there would be; Cut says that it was not followed to its end.
	Depth int
	Cut   bool
	// Before and After are the states before anything was decided and when the victims were told to end.
	Before, After *fsm.View
}

// Successor is the pod that a victim's controller makes in its place.
type Successor struct {
	Placement
	// Of is the victim, Round the round of evictions that it fell to, from 1.
	Of    Victim
	Round int
}

// Victim is a pod that would have to go.
type Victim struct {
	Key            string
	UID            types.UID
	Priority       int32
	Node           string
	ViolatesBudget bool
	// WaitedFor: it is ending already, and nobody would evict it.
	WaitedFor bool

	pod *corev1.Pod
}

// victimsIn are the victims of a preemption as a state has them.
func victimsIn(v *fsm.View, planned []fsm.PlannedVictim) []Victim {
	out := make([]Victim, 0, len(planned))
	for _, p := range planned {
		if pod, ok := v.Pods.Get(p.Key); ok && string(pod.UID) == p.UID {
			out = append(out, Victim{
				Key: p.Key, UID: pod.UID, Priority: model.Priority(pod), Node: pod.Spec.NodeName,
				ViolatesBudget: p.ViolatesBudget, WaitedFor: model.Terminating(pod), pod: pod,
			})
		}
	}
	return out
}

// Foresee tells where pods would go if they were created now, in this order, and who would be evicted for them: the
// same code on a copy of the state. Nothing is changed, and the pods are left as they are. It also follows the
// evictions: on the same copy the victims go, their controllers make new pods like them, and those are decided in their
// turn. The commands of setup are carried out first; the first refusal of one is the error. So is the end of ctx, for
// which it looks between bounded pieces of work (nobody waits for the answer then), and what Asker.GoOn says.
func Foresee(
	ctx context.Context, state *fsm.View, asker Asker, setup []fsm.Command, pods []*corev1.Pod,
) (*Foresight, error) {
	goOn := ctx.Err
	if asker.GoOn != nil {
		goOn = func() error {
			if err := ctx.Err(); err != nil {
				return err
			}
			return asker.GoOn()
		}
	}
	t := newTrial(goOn, state)
	for _, c := range setup {
		if t.over() {
			break
		}
		asked := fsm.Proposal{User: asker.User, Groups: asker.Groups, Command: c}
		if err := t.state.Try(t.now, asked)[0].Err(); err != nil {
			return nil, err
		}
	}
	out := &Foresight{Before: t.state.View()}
	out.Placements = t.place(asker, pods)
	if t.ended != nil {
		return nil, fmt.Errorf("the plan was not finished: %w", t.ended)
	}
	out.After = t.state.View()
	victims := victimsOf(out.Placements)
	for slices.ContainsFunc(victims, func(v Victim) bool { return !v.WaitedFor }) {
		if out.Depth++; out.Depth > maxRounds {
			out.Depth, out.Cut = maxRounds, true
			break
		}
		successors, cut := t.replace(victims, out.Depth)
		if t.ended != nil {
			return nil, fmt.Errorf("the plan was not finished: %w", t.ended)
		}
		out.Successors = append(out.Successors, successors...)
		out.Cut = out.Cut || cut
		next := make([]Placement, len(successors))
		for i := range successors {
			next[i] = successors[i].Placement
		}
		victims = victimsOf(next)
	}
	return out, nil
}

// victimsOf are all whom placements evict or wait for, each once.
func victimsOf(placements []Placement) []Victim {
	var out []Victim
	seen := map[types.UID]bool{}
	for i := range placements {
		for _, v := range placements[i].Victims {
			if !seen[v.UID] {
				seen[v.UID] = true
				out = append(out, v)
			}
		}
	}
	return out
}

// replace lets victims go and their controllers make pods in their place.
func (t *trial) replace(victims []Victim, round int) (out []Successor, cut bool) {
	var pods []*corev1.Pod
	zero := int64(0)
	for _, v := range victims {
		if t.over() {
			break
		}
		// Whoever is gone already, for want of a grace period, is replaced all the same.
		t.state.Try(t.now, fsm.Proposal{Command: &fsm.DeletePod{Key: v.Key,
			Precondition: fsm.Precondition{UID: string(v.UID)}, GraceSeconds: &zero}})
		if v.WaitedFor || metav1.GetControllerOf(v.pod) == nil {
			continue // it was replaced when its end began, or nobody makes it anew
		}
		if len(pods) == maxSuccessors {
			cut = true
			continue
		}
		pods = append(pods, successorOf(v.pod, round))
		out = append(out, Successor{Round: round, Of: v})
	}
	// They are the system's: who asks may not be allowed to make pods of their class.
	for i, p := range t.place(Asker{User: "system:berth", Groups: []string{"system:masters"}}, pods) {
		out[i].Placement = p
	}
	return out, cut
}

// successorOf is a new pod like one that has to go.
func successorOf(pod *corev1.Pod, round int) *corev1.Pod {
	out := pod.DeepCopy()
	out.Name = fmt.Sprintf("%s.again%d", pod.Name, round)
	out.UID = types.UID(fmt.Sprintf("%s.again%d", pod.UID, round))
	out.ResourceVersion, out.Generation, out.Finalizers, out.ManagedFields = "", 1, nil, nil
	out.DeletionTimestamp, out.DeletionGracePeriodSeconds = nil, nil
	out.Spec.NodeName = ""
	out.Status = corev1.PodStatus{Phase: corev1.PodPending, QOSClass: pod.Status.QOSClass}
	return out
}
