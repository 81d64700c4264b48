package sched

import "github.com/berth-dev/berth/model"

// dependsOnUnsettled says whether a pod of the class, for which no node has room as things will be if every unsettled
// decision holds, could find room if some of those in earlier plans were refused. (Those of the same plan do not matter:
// when one of them is refused, so are the plan's failures.) It errs on the side of yes. Only nodes with unsettled
// decisions can make the difference, and of those only the ones that changed since the last time they did not.
func (s *Scheduler) dependsOnUnsettled(b *board, preempt bool) bool {
	if b.waitsStep == s.step {
		return b.waitsFor
	}
	could := false
	if b.waitsFor || b.waitsStep == 0 {
		// order does not matter: any one of them is enough.
		for slot := range s.anchors {
			could = could || s.couldTake(slot, b, preempt)
		}
	} else {
		s.view.since(b.clearedAt, func(slot int32) {
			could = could || s.view.nodes[slot].unsettled > 0 && s.couldTake(slot, b, preempt)
		})
	}
	b.waitsFor, b.waitsStep, b.clearedAt = could, s.step, s.stepStart
	return could
}

// couldTake says whether the node would take a pod of the class without the decisions laid over it: without the pods
// assumed there, without nominations, and, if the class may preempt, without pods of lower priority.
func (s *Scheduler) couldTake(slot int32, b *board, preempt bool) bool {
	n, c := &s.view.nodes[slot], b.class
	if n.obj == nil || b.cells[slot].static != 0 {
		return false
	}
	preempt = preempt && !c.NeverPreempts
	u := n.usage
	for _, p := range n.pods {
		if p.obj == nil || preempt && p.priority < c.Priority {
			u = u.Without(p.class)
		}
	}
	return model.UsageFailures(c, &n.alloc, &u) == 0
}
