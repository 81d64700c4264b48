package sched

import (
	"slices"

	"github.com/berth-dev/berth/model"
	"github.com/berth-dev/berth/sched/victims"
)

// Required affinity can be kept in two ways: somebody whom the class needs stays, or all of them go, everywhere, and
// the class, which matches its own terms, is the first of its kind (AF2). No list of rules says "or", so these are two
// problems, and the cheaper answer counts.

// maxKin bounds the pods that are evicted so that a class is the first of its kind.
const maxKin = 64

// bound fills the problem for a node and returns a bound of what preempting there costs.
func (p *problem) bound(n *node, budgets Budgets) (victims.Cost, verdict) {
	least, v := p.fillAndBound(n, budgets)
	if p.topo == nil || !p.topo.mayBeFirst() {
		return least, v
	}
	fails, blocked := p.fails, p.blocked
	p.topo.first = true
	alone, ok := p.fillAndBound(n, budgets)
	p.topo.first = false
	switch {
	case ok != verdictCandidate:
		p.fails, p.blocked = fails, blocked
		return least, v
	case v != verdictCandidate || alone.Less(&least):
		return alone, ok
	}
	return least, v
}

func (p *problem) fillAndBound(n *node, budgets Budgets) (victims.Cost, verdict) {
	v := p.fill(n, budgets)
	if v != verdictCandidate {
		return victims.Impossible, v
	}
	least, ok := p.solver.Bound()
	if !ok {
		p.blocked = p.hardest()
		return victims.Impossible, verdictBlocked
	}
	return least, v
}

// mayBeFirst says whether it comes into question that all the pods go that the class's required affinity is about.
func (o *topoProblem) mayBeFirst() bool {
	kin := o.judge.Kin()
	return len(kin) > 0 && !slices.ContainsFunc(kin, func(b model.Obstacle) bool { return b.Total > maxKin })
}

// solve finds the cheapest choice on a node that the problem was just filled for; least is what bound returned for it.
// false: nobody's leaving helps.
func (p *problem) solve(n *node, budgets Budgets, least victims.Cost) (choice, bool) {
	if p.topo == nil {
		return p.solveFilled(least)
	}
	best, found := p.solveOneWay(n, budgets)
	if !p.topo.mayBeFirst() {
		return best, found
	}
	blocked := p.blocked
	p.topo.first = true
	alone, ok := p.solveOneWay(n, budgets)
	p.topo.first = false
	p.blocked = blocked
	if ok && (!found || alone.cost.Less(&best.cost)) {
		alone, best = best, alone
	}
	if !alone.minimal && alone.known.Less(&best.cost) { // something cheaper may be hidden in the other problem
		if best.minimal || alone.known.Less(&best.known) {
			best.known = alone.known
		}
		best.minimal = false
	}
	return best, ok || found
}

// solveFilled finds the cheapest choice for the problem as it is filled.
func (p *problem) solveFilled(least victims.Cost) (choice, bool) {
	s, ok := p.solver.Solve(least)
	if !ok && s.Known == victims.Impossible {
		p.blocked = p.hardest()
	}
	return p.chosen(&s), ok
}

// solveOneWay is solve for a class with rules about other pods, in one of the ways to keep its required affinity.
func (p *problem) solveOneWay(n *node, budgets Budgets) (choice, bool) {
	s, ok := p.solveAround(n, budgets)
	if ok && p.leaves(n, &s) {
		return p.atHome(n, budgets, s), true
	}
	if !ok || p.solver.Limit == 0 {
		return s, false
	}
	// Evictions on other nodes made a domain of a spread constraint the least one, so that this node has too many.
	p.topo.wide = true
	defer func() { p.topo.wide = false }()
	known := s.known
	if s.minimal {
		known = s.cost
	}
	if p.fill(n, budgets) != verdictCandidate {
		return choice{known: victims.Impossible}, false
	}
	s, ok = p.tryAll(n, known)
	return p.noted(s), ok
}

// atHome takes, where the cheapest choice has victims on other nodes that do not have to go in any case, one without
// them if it costs no more.
func (p *problem) atHome(n *node, budgets Budgets, s choice) choice {
	if !s.cost.Elsewhere || p.solver.Base.Elsewhere {
		return s
	}
	p.topo.near = true
	t, ok := p.solveAround(n, budgets)
	p.topo.near = false
	s.cost.Elsewhere = false
	if ok && !s.cost.Less(&t.cost) {
		t.minimal, t.known = s.minimal, s.known
		return t
	}
	s.cost.Elsewhere = true
	return s
}

// solveAround fills and solves, as if a node's rules did not depend on each other.
func (p *problem) solveAround(n *node, budgets Budgets) (choice, bool) {
	least, v := p.fillAndBound(n, budgets)
	if v != verdictCandidate {
		return choice{known: victims.Impossible}, false
	}
	s, ok := p.solveFilled(least)
	if p.topo.cut {
		s.minimal, s.known = false, least
	}
	return p.noted(s), ok
}

// noted keeps with a solution what the problem forgets when it is filled again.
func (p *problem) noted(s choice) choice {
	s.pending = slices.Clone(p.topo.pending)
	return s
}

// leaves says whether a choice leaves the node without a rule between pods that bars the class.
func (p *problem) leaves(n *node, s *choice) bool {
	open := false
	p.topo.without(s.victims, func() { open = p.topo.judge.Fails(n.name) == 0 })
	return open
}

// tryAll asks about the choices on a node one by one; known is a bound of all of them.
func (p *problem) tryAll(n *node, known victims.Cost) (choice, bool) {
	var s victims.Solution
	var ok bool
	p.topo.without(p.forced, func() { s, ok = p.solver.Try(&trial{p, n}, known) })
	if p.topo.cut {
		s.Minimal, s.Known = false, known
	}
	return p.chosen(&s), ok
}

// trial lets pods go, and come back, as far as rules between pods see it.
type trial struct {
	p *problem
	n *node
}

func (t *trial) Leave(i int)  { t.p.topo.view.removeRules(t.p.movable[i]) }
func (t *trial) Return(i int) { t.p.topo.view.addRules(t.p.movable[i]) }
func (t *trial) Open() bool   { return t.p.topo.judge.Fails(t.n.name) == 0 }
