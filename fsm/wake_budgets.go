package fsm

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"

	"github.com/berth-dev/berth/budgets"
	"github.com/berth-dev/berth/model"
	"github.com/berth-dev/berth/queue"
)

// A budget that allows more helps those who may not violate budgets, and of them
// only who can evict one of the pods that it covers: who is of higher priority, and
// has room on a node of one of them were all gone whom it may evict. So a sweep asks
// each group for the few nodes that these pods are on. Where these are many, or the
// group's victims may be on other nodes than its own, the priority alone says it.

// SinceVictimsCovered is the LogVersion from which on a budget that allows more wakes only those who may evict somebody whom
// it covers.
const SinceVictimsCovered = 27

const (
	// maxCoveredWork bounds what holding kinds of pods against one budget's selector may cost, and maxCoveredEntries how long the
	// selector may be for that. Beyond, the budget may cover whomever.
	maxCoveredWork    = 8192
	maxCoveredEntries = 64
)

// budget: what it allowed less of, it may allow now.
func (w *wakes) budget(old, now *policyv1.PodDisruptionBudget) {
	w.Budget(old, now, w.tx.victimsCovered)
}

// victimsCovered are the pods on nodes that a budget covers; whomever, where these
// are not to be known at a small price.
func (tx *Tx) victimsCovered(b *policyv1.PodDisruptionBudget) *queue.Victims {
	v := tx.view
	switch {
	case v.Version() < SinceVictimsCovered:
		return nil
	case v.Queue.Len() == 0, tx.work.Over(): // it means nothing to anybody, or may not cost anything more
		return queue.AnyVictims()
	}
	each, entries := budgets.SelectorCost(&b.Spec)
	if tx.work.Charge(entries); entries > maxCoveredEntries {
		return queue.AnyVictims()
	}
	s, looks, ok := v.topology().Selected(b.Namespace, budgets.Selector(&b.Spec), int64(maxCoveredWork/each), queue.MaxVictimNodes)
	tx.work.Charge(int(looks) * each)
	if !ok {
		return queue.AnyVictims()
	}
	return &queue.Victims{Lowest: s.Lowest, Nodes: s.Nodes}
}

// victimsSpared are the pods on nodes that could go instead of the victims of a
// preemption that was not carried out.
func (tx *Tx) victimsSpared(d *PreemptDecision) *queue.Victims {
	v := tx.view
	if v.Version() < SinceVictimsCovered {
		return nil
	}
	spared, asked := queue.NoVictims(), map[string]bool{}
	for _, victim := range d.Victims {
		pod, ok := tx.findPod(PodRef{victim.Key, victim.UID})
		if !ok || tx.work.Over() {
			return queue.AnyVictims()
		}
		v.BudgetsOf(pod.Namespace, pod.Labels, func(b *policyv1.PodDisruptionBudget) bool {
			if key := b.Namespace + "/" + b.Name; !asked[key] {
				asked[key] = true
				spared = spared.And(tx.victimsCovered(b))
			}
			return true
		})
	}
	return spared
}

// victimOnNode is one pod that is on a node.
func (v *live) victimOnNode(pod *corev1.Pod) *queue.Victims {
	if v.Version() < SinceVictimsCovered {
		return nil
	}
	return &queue.Victims{Lowest: model.Priority(pod), Nodes: []string{pod.Spec.NodeName}}
}

// gainsBy says of groups whether it can help their pods to evict one of the victims.
// When nothing is left to spend on finding out, it can.
func (tx *Tx) gainsBy(victims *queue.Victims) func(g *queue.Group) bool {
	v := tx.view
	var helps []*help
	if victims != nil {
		for _, name := range victims.Nodes {
			if n, ok := v.Nodes.Get(name); ok {
				helps = append(helps, newHelp(v, n))
			}
		}
	}
	return func(g *queue.Group) bool {
		switch {
		case victims == nil:
			return true
		case victims.Lowest >= g.Class.Priority:
			return false
		}
		return len(victims.Nodes) == 0 || tx.evictsElsewhere(g) || slices.ContainsFunc(helps, func(h *help) bool {
			tx.work.Ask()
			return tx.work.Over() || h.room(tx, *g, true) > 0
		})
	}
}

// evictsElsewhere says whether somebody may have to go for a group's pods on other
// nodes than the one that they take, or whether what a node has for them is not all
// that their group can know of it.
func (tx *Tx) evictsElsewhere(g *queue.Group) bool {
	if g.Alike() || g.OfClaims() {
		return true
	}
	// What is kept for one of them is not taken from it, and may be kept for somebody who is about to wait.
	if r := tx.view.Reservation(); r != nil && r.Priority == g.Class.Priority {
		return true
	}
	rules := ruled{}
	tx.waking(func() { rules = tx.view.ruledGroup(g) })
	return rules.class.HasHardTopology()
}
