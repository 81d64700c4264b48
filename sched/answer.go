package sched

import (
	"slices"

	"github.com/berth-dev/berth/model"
)

// Required affinity can be kept in two ways: somebody whom the class needs stays, or all of them go, everywhere, and the
// class, which matches its own terms, is the first of its kind (AF2). No list of rules says "or", so these are two
// problems, and the cheaper answer counts.

// maxKin bounds the pods that are evicted so that a class is the first of its kind.
const maxKin = 64

// ask fills the problem for a node and returns a bound of what preempting there costs.
func (p *problem) ask(n *node, budgets Budgets) (cost, verdict) {
	least, v := p.fillAndBound(n, budgets)
	if p.others == nil || !p.others.mayBeFirst() {
		return least, v
	}
	fails, blocked := p.fails, p.blocked
	p.others.first = true
	alone, ok := p.fillAndBound(n, budgets)
	p.others.first = false
	switch {
	case ok != verdictCandidate:
		p.fails, p.blocked = fails, blocked
		return least, v
	case v != verdictCandidate || alone.less(&least):
		return alone, ok
	}
	return least, v
}

func (p *problem) fillAndBound(n *node, budgets Budgets) (cost, verdict) {
	v := p.fill(n, budgets)
	if v != verdictCandidate {
		return impossible, v
	}
	least, ok := p.bound()
	if !ok {
		return impossible, verdictBlocked
	}
	return least, v
}

// mayBeFirst says whether it comes into question that all the pods go that the class's required affinity is about.
func (o *surroundings) mayBeFirst() bool {
	kin := o.judge.Kin()
	return len(kin) > 0 && !slices.ContainsFunc(kin, func(b model.Obstacle) bool { return b.Total > maxKin })
}

// answer finds the cheapest choice on a node that the problem was just filled for; least is the bound that ask returned for
// it. false: nobody's leaving helps.
func (p *problem) answer(n *node, budgets Budgets, least cost) (solution, bool) {
	if p.others == nil {
		return p.solve(least)
	}
	best, found := p.answerAround(n, budgets)
	if !p.others.mayBeFirst() {
		return best, found
	}
	blocked := p.blocked
	p.others.first = true
	alone, ok := p.answerAround(n, budgets)
	p.others.first = false
	p.blocked = blocked
	if ok && (!found || alone.cost.less(&best.cost)) {
		alone, best = best, alone
	}
	if !alone.minimal && alone.known.less(&best.cost) { // something cheaper may be hidden in the other problem
		if best.minimal || alone.known.less(&best.known) {
			best.known = alone.known
		}
		best.minimal = false
	}
	return best, ok || found
}

// answerAround is answer for a class with rules about other pods, in one of the ways to keep its required affinity.
func (p *problem) answerAround(n *node, budgets Budgets) (solution, bool) {
	s, ok := p.solveAround(n, budgets)
	if ok && p.leaves(n, &s) {
		return p.atHome(n, budgets, s), true
	}
	if !ok || p.limit == 0 {
		return s, false
	}
	// Evictions on other nodes made a domain of a spread constraint the least one, so that this node has too many.
	p.others.wide = true
	defer func() { p.others.wide = false }()
	known := s.known
	if s.minimal {
		known = s.cost
	}
	if p.fill(n, budgets) != verdictCandidate {
		return solution{known: impossible}, false
	}
	s, ok = p.thorough(n, known)
	return p.noted(s), ok
}

// atHome takes, where the cheapest choice has victims on other nodes that do not have to go in any case, one without them if
// it costs no more.
func (p *problem) atHome(n *node, budgets Budgets, s solution) solution {
	if !s.cost.others || p.base.others {
		return s
	}
	p.others.near = true
	t, ok := p.solveAround(n, budgets)
	p.others.near = false
	s.cost.others = false
	if ok && !s.cost.less(&t.cost) {
		t.minimal, t.known = s.minimal, s.known
		return t
	}
	s.cost.others = true
	return s
}

// solveAround fills and solves, as if a node's rules did not depend on each other.
func (p *problem) solveAround(n *node, budgets Budgets) (solution, bool) {
	least, v := p.fillAndBound(n, budgets)
	if v != verdictCandidate {
		return solution{known: impossible}, false
	}
	s, ok := p.solve(least)
	if p.others.cut {
		s.minimal, s.known = false, least
	}
	return p.noted(s), ok
}

// noted keeps with a solution what the problem forgets when it is filled again.
func (p *problem) noted(s solution) solution {
	s.pending = slices.Clone(p.others.pending)
	return s
}

// leaves says whether a choice leaves the node without a rule between pods that bars the class.
func (p *problem) leaves(n *node, s *solution) bool {
	open := false
	p.others.without(s.victims, func() { open = p.others.judge.Fails(n.name) == 0 })
	return open
}
