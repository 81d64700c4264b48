package explain

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/util/uuid"

	"github.com/berth-dev/berth/api/berthv1"
	"github.com/berth-dev/berth/budgets"
	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/sched/whatif"
)

// Planner is who asks for a plan.
type Planner struct {
	whatif.Asker
	// MayReadPods and MayReadBudgets tell of which namespaces they may read the
	// pods, and the disruption budgets (PR20); they are asked often, and end the
	// plan's context when they cannot tell: nothing more is asked then.
	MayReadPods, MayReadBudgets func(namespace string) bool
}

// placementsAtATime are told of in one piece.
const placementsAtATime = 64

// Plan answers what would become of pods that are created after setup was
// carried out. A pod without a UID or a name is given one. Who may make the pods,
// and carry out setup, is not asked here.
func Plan(ctx context.Context, view *fsm.View, by Planner, setup []fsm.Command, pods []*corev1.Pod) (*berthv1.PlanStatus, error) {
	asked := make([]*corev1.Pod, len(pods))
	for i, pod := range pods {
		one := *pod // only its name and UID are written
		pod = &one
		if pod.UID == "" {
			pod.UID = uuid.NewUUID()
		}
		if pod.Name == "" {
			pod.Name = fmt.Sprintf("%splan-%d", pod.GenerateName, i)
		}
		asked[i] = pod
	}
	seen, err := whatif.Foresee(ctx, view, by.Asker, setup, asked)
	if err != nil {
		return nil, err
	}
	goOn := by.GoOn
	if goOn == nil {
		goOn = ctx.Err
	}
	shown := planView{seen, by}
	out := &berthv1.PlanStatus{
		Revision: view.Revision(), Budgets: shown.budgetsTouched(ctx), CascadeDepth: int32(seen.Depth), CascadeCut: seen.Cut,
	}
	bars := whoBars{after: seen.After, mayRead: by.MayReadPods, known: map[string]map[string]string{}, goOn: by.GoOn}
	for i := range seen.Placements {
		p := &seen.Placements[i]
		err := ctx.Err()
		if err == nil && i%placementsAtATime == 0 {
			err = goOn()
		}
		if err != nil {
			return nil, fmt.Errorf("the plan was not finished: %w", err)
		}
		reasons := p.Diagnosis.API()
		if p.Node == "" && p.NominatedNode == "" {
			if err := bars.tell(ctx, p.Key, reasons); err != nil {
				return nil, err
			}
		}
		out.Placements = append(out.Placements, berthv1.PlanPlacement{
			Pod:  berthv1.PodReference{Namespace: asked[i].Namespace, Name: asked[i].Name, Priority: p.Priority},
			Node: p.Node, NominatedNode: p.NominatedNode, Victims: shown.victims(p), Message: budgets.Shown(p.Message, by.MayReadBudgets), Reasons: reasons,
		})
	}
	for i := range seen.Successors {
		if err := ctx.Err(); err != nil {
			return nil, fmt.Errorf("the plan was not finished: %w", err)
		}
		s := &seen.Successors[i]
		ref := berthv1.PodReference{UID: s.Of.UID}
		ref.Namespace, ref.Name, ref.Priority = shown.name(s.Of.Key, s.Of.Priority)
		out.Replacements = append(out.Replacements, berthv1.PlanReplacement{
			Of: ref, Round: int32(s.Round), Node: s.Node, NominatedNode: s.NominatedNode,
			Victims: shown.victims(&s.Placement), Message: shown.message(s),
		})
	}
	return out, nil
}

// planView shows a what-if to who asked for it.
type planView struct {
	*whatif.Foresight
	by Planner
}

// name is a pod's, with its priority, unless the asker may not know it (PR20).
func (p *planView) name(key string, of int32) (namespace, name string, priority int32) {
	namespace, name, _ = strings.Cut(key, "/")
	if !p.by.MayReadPods(namespace) {
		return "", "", 0
	}
	return namespace, name, of
}

func (p *planView) victims(of *whatif.Placement) []berthv1.Victim {
	var out []berthv1.Victim
	for _, v := range of.Victims {
		shown := berthv1.Victim{
			UID: v.UID, Node: v.Node, ViolatesBudget: v.ViolatesBudget, WaitedFor: v.WaitedFor,
		}
		shown.Namespace, shown.Name, shown.Priority = p.name(v.Key, v.Priority)
		out = append(out, shown)
	}
	return out
}

// message is why a successor has no place, unless the asker may not know it: a
// quota's refusal, for one, tells what its namespace uses.
func (p *planView) message(s *whatif.Successor) string {
	if namespace, _, _ := strings.Cut(s.Of.Key, "/"); !p.by.MayReadPods(namespace) {
		return ""
	}
	return budgets.Shown(s.Message, p.by.MayReadBudgets)
}

// budgetsTouched are the budgets that allow fewer disruptions, or are left with
// fewer healthy pods, when the victims were told to end. One that the asker may
// not read has no name and no numbers (PR20).
func (p *planView) budgetsTouched(ctx context.Context) []berthv1.PlanBudget {
	var out []berthv1.PlanBudget
	p.After.Budgets.Scan("", func(key string, after *policyv1.PodDisruptionBudget) bool {
		before, ok := p.Before.Budgets.Get(key)
		if !ok {
			return true
		}
		a, b := &after.Status, &before.Status
		switch {
		case a.DisruptionsAllowed >= b.DisruptionsAllowed && a.CurrentHealthy >= b.CurrentHealthy:
		case !p.by.MayReadBudgets(after.Namespace):
			out = append(out, berthv1.PlanBudget{})
		default:
			out = append(out, berthv1.PlanBudget{
				Namespace: after.Namespace, Name: after.Name, AllowedBefore: b.DisruptionsAllowed,
				AllowedAfter: a.DisruptionsAllowed, DesiredHealthy: a.DesiredHealthy, HealthyAfter: a.CurrentHealthy,
			})
		}
		return ctx.Err() == nil
	})
	return out
}
