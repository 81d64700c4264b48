package sched

import "github.com/berth-dev/berth/model"

// dependsOnUnsettled says whether a pod of the class, for which no node has room as things will be if every unsettled
// decision holds, could find room if some of those in earlier plans were refused. (Those of the same plan do not
// matter: when one of them is refused, so are the plan's failures.) It errs on the side of yes. Only nodes with
// unsettled decisions can make the difference, and of those only the ones that changed since the last time they did
// not; and, for a class that has rules about other pods or about which others have, decisions about such pods.
func (s *Scheduler) dependsOnUnsettled(b *board, preempt bool) bool {
	if b.waitsStep == s.step {
		return b.waitsFor
	}
	could := b.topo != nil && s.unsettledMatterTo(b)
	switch topo := s.view.topo.Version(); {
	case could:
	case b.waitsFor || b.waitsStep == 0 || b.topo != nil && b.topo.cleared != topo:
		s.meter.Spend(len(s.unsettledSlots) * workNode)
		// order does not matter: any one of them is enough.
		for slot := range s.unsettledSlots {
			could = could || s.couldTake(slot, b, preempt)
		}
		if b.topo != nil {
			b.topo.cleared = topo
		}
	default:
		s.view.since(b.clearedAt, func(slot int32) {
			could = could || s.view.nodes[slot].unsettled > 0 && s.couldTake(slot, b, preempt)
		})
	}
	b.waitsFor, b.waitsStep, b.clearedAt = could, s.step, s.stepStart
	return could
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
// pods say is as it is (see unsettledMatterTo), but that a class that may preempt may be helped by evictions.
func (s *Scheduler) couldTake(slot int32, b *board, preempt bool) bool {
	n, c := &s.view.nodes[slot], b.class
	preempt = preempt && !c.NeverPreempts && s.view.topo.LowestPriority() < c.Priority
	if n.obj == nil || b.cells[slot].static != 0 {
		return false
	}
	if fails := b.topo.fails(b.groups[b.cells[slot].group].topo); fails != 0 && !(preempt && fails.Resolvable()) {
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
