package explain

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/util/uuid"

	"github.com/berth-dev/berth/api/berthv1"
	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/sched/whatif"
)

// Plan answers what would become of pods that are created after setup was
// carried out. A pod without a UID or a name is given one. mayRead tells of
// which namespaces the asker may read the pods (PR20).
func Plan(
	ctx context.Context, view *fsm.View, by whatif.Asker, mayRead func(namespace string) bool,
	setup []fsm.Command, pods []*corev1.Pod,
) (*berthv1.PlanStatus, error) {
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
	seen, err := whatif.Foresee(ctx, view, by, setup, asked)
	if err != nil {
		return nil, err
	}
	shown := planView{seen, mayRead}
	out := &berthv1.PlanStatus{
		Revision: view.Revision(), Budgets: budgetsTouched(seen), CascadeDepth: int32(seen.Depth), CascadeCut: seen.Cut,
	}
	bars := whoBars{after: seen.After, mayRead: mayRead, known: map[string]map[string]string{}}
	for i := range seen.Placements {
		p := &seen.Placements[i]
		reasons := p.Diagnosis.API()
		if p.Node == "" && p.NominatedNode == "" {
			if err := bars.tell(ctx, p.Key, reasons); err != nil {
				return nil, err
			}
		}
		out.Placements = append(out.Placements, berthv1.PlanPlacement{
			Pod:  berthv1.PodReference{Namespace: asked[i].Namespace, Name: asked[i].Name, Priority: p.Priority},
			Node: p.Node, NominatedNode: p.NominatedNode, Victims: shown.victims(p), Message: p.Message, Reasons: reasons,
		})
	}
	for i := range seen.Successors {
		s := &seen.Successors[i]
		ref := berthv1.PodReference{UID: s.Of.UID, Priority: s.Of.Priority}
		ref.Namespace, ref.Name = shown.name(s.Of.Key)
		out.Replacements = append(out.Replacements, berthv1.PlanReplacement{
			Of: ref, Round: int32(s.Round), Node: s.Node, NominatedNode: s.NominatedNode,
			Victims: shown.victims(&s.Placement), Message: s.Message,
		})
	}
	return out, nil
}

// planView shows a what-if to who asked for it.
type planView struct {
	*whatif.Foresight
	mayRead func(namespace string) bool
}

// name is a pod's, unless the asker may not know it (PR20).
func (p *planView) name(key string) (namespace, name string) {
	namespace, name, _ = strings.Cut(key, "/")
	if !p.mayRead(namespace) {
		return "", ""
	}
	return namespace, name
}

func (p *planView) victims(of *whatif.Placement) []berthv1.Victim {
	var out []berthv1.Victim
	for _, v := range of.Victims {
		shown := berthv1.Victim{
			UID: v.UID, Priority: v.Priority, Node: v.Node, ViolatesBudget: v.ViolatesBudget, WaitedFor: v.WaitedFor,
		}
		shown.Namespace, shown.Name = p.name(v.Key)
		out = append(out, shown)
	}
	return out
}

// budgetsTouched are the budgets that allow fewer disruptions, or are left with
// fewer healthy pods, when the victims were told to end.
func budgetsTouched(seen *whatif.Foresight) []berthv1.PlanBudget {
	var out []berthv1.PlanBudget
	seen.After.Budgets.Scan("", func(key string, after *policyv1.PodDisruptionBudget) bool {
		before, ok := seen.Before.Budgets.Get(key)
		if !ok {
			return true
		}
		a, b := &after.Status, &before.Status
		if a.DisruptionsAllowed < b.DisruptionsAllowed || a.CurrentHealthy < b.CurrentHealthy {
			out = append(out, berthv1.PlanBudget{
				Namespace: after.Namespace, Name: after.Name, AllowedBefore: b.DisruptionsAllowed,
				AllowedAfter: a.DisruptionsAllowed, DesiredHealthy: a.DesiredHealthy, HealthyAfter: a.CurrentHealthy,
			})
		}
		return true
	})
	return out
}
