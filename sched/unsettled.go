package sched

import (
	"slices"

	"github.com/berth-dev/berth/model"
)

// hang remembers whether the outcome for a class hangs on decisions that are not settled.
type hang struct {
	does      bool
	step      uint64 // in which it was asked
	clearedAt uint64 // position in the view's log up to which it does not
	topo      uint64 // the Topology's version for which it does not
}

// failureHangs says whether a pod of the class, for which no node has room as things will be if every unsettled decision
// holds, could find room if some of those in earlier plans were refused. (Those of the same plan do not matter: when one
// of them is refused, so are the plan's failures.) It errs on the side of yes.
func (s *Scheduler) failureHangs(b *board, preempt bool) bool {
	return s.hangs(b, &b.failure, false, preempt)
}

// preemptionHangs says whether a pod of the class, for which somebody would have to go as things will be if every
// unsettled decision holds, could find room for which nobody has to go if some of those in earlier plans were refused. It
// errs on the side of yes.
func (s *Scheduler) preemptionHangs(b *board) bool {
	return s.hangs(b, &b.preemption, true, false)
}

// hangs asks about everything once, and then only about nodes that changed since the last time when the answer was no:
// only nodes with unsettled decisions can make the difference, and, for a class that has rules about other pods or about
// which others have, decisions about such pods. Where asPlaced is set it is asked for room for which nobody has to go:
// then such decisions alone are not enough. preempt says whether others may go for it.
func (s *Scheduler) hangs(b *board, h *hang, asPlaced, preempt bool) bool {
	if h.step == s.step {
		return h.does
	}
	matter := b.topo != nil && s.unsettledMatterTo(b)
	does := matter && (!asPlaced || b.openButForRules())
	byNode := func(slot int32) bool { return s.couldTake(slot, b, preempt, asPlaced && matter) }
	switch topo := s.view.topo.Version(); {
	case does:
	case h.does || h.step == 0 || b.topo != nil && h.topo != topo:
		s.meter.Spend(len(s.unsettledSlots) * workNode)
		// order does not matter: any one of them is enough.
		for slot := range s.unsettledSlots {
			does = does || byNode(slot)
		}
		h.topo = topo
	default:
		s.view.since(h.clearedAt, func(slot int32) {
			does = does || s.view.nodes[slot].unsettled > 0 && byNode(slot)
		})
	}
	h.does, h.step, h.clearedAt = does, s.step, s.stepStart
	return does
}

// openButForRules says whether rules between pods alone keep the class off some node.
func (b *board) openButForRules() bool {
	return slices.ContainsFunc(b.hist, func(t tally) bool { return t.fails == 0 && t.nodes > 0 })
}

// unsettledMatterTo says whether a rule of the class about other pods, or one of theirs about the class, is about a pod
// that an unsettled decision places, nominates or evicts.
func (s *Scheduler) unsettledMatterTo(b *board) bool {
	matter := false
	s.meter.Spend(len(s.unsettledClasses) * b.terms() * workTerm)
	// order does not matter: any one of them is enough.
	for c := range s.unsettledClasses {
		matter = matter || b.topo.judge.Minds(c)
	}
	return matter
}

// couldTake says whether the node would take a pod of the class without the decisions laid over it: without the pods
// assumed there, without nominations, and, if the class may preempt, without pods of lower priority. What rules between
// pods say is as it is (see unsettledMatterTo), unless they are left aside, but that a class that may preempt may be
// helped by evictions.
func (s *Scheduler) couldTake(slot int32, b *board, preempt, rulesAside bool) bool {
	n, c := &s.view.nodes[slot], b.class
	preempt = preempt && !c.NeverPreempts && s.view.topo.LowestPriority() < c.Priority
	if n.obj == nil || b.cells[slot].static != 0 {
		return false
	}
	fails := b.topo.fails(b.groups[b.cells[slot].group].topo)
	if fails != 0 && !rulesAside && !(preempt && fails.Resolvable()) {
		return false
	}
	u := n.usage.Toward(c)
	s.meter.Spend(len(n.pods) * workPod)
	for _, p := range n.pods {
		if p.obj == nil || preempt && p.Priority < c.Priority {
			u = u.Without(p.class)
		}
	}
	return model.UsageFailures(c, &n.alloc, &u) == 0
}
