package sched

import "github.com/berth-dev/berth/model"

// failsWithout returns everything that would keep the board's class off a node if some pods were not there, on whatever
// nodes they are: the node's own filters, and the rules about other pods both ways. Nominations stay (NM4). Where the class
// requires pods near it, those may be among the ones taken away; then the node fails by that (PR14).
func (s *Scheduler) failsWithout(b *board, slot int32, gone []*pod) model.Failures {
	v, c := s.view, b.class
	n := &v.nodes[slot]
	if n.obj == nil {
		return b.cells[slot].fails
	}
	var scratch model.Usage
	u := *n.usageFor(c.Priority, &scratch)
	for _, p := range gone {
		if p.slot == slot {
			u = u.Without(p.class)
		}
	}
	fails := b.cells[slot].static | model.UsageFailures(c, &n.alloc, &u)
	if b.topo == nil {
		return fails
	}
	v.topo.Peek(func() {
		for _, p := range gone {
			v.topo.RemovePod(v.nodes[p.slot].name, p.class, p.isLeaving())
		}
		fails |= b.topo.judge.Fails(n.name)
		for _, p := range gone {
			v.topo.AddPod(v.nodes[p.slot].name, p.class, p.isLeaving())
		}
	})
	return fails
}
