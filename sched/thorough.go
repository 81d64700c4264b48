package sched

import (
	"math/bits"
	"slices"
)

// trials are choices tried one by one, with the rules between pods asked about each: for nodes where these depend on
// each other: a pod whose eviction makes room in its zone may have kept its host from being the one with the fewest
// pods, so that now there are too many on this node. That is no amount that could be summed up, so the search knows only
// that a choice is never cheaper for having one pod more.
type trials struct {
	p      *problem
	n      *node
	goes   []bool
	left   []int64 // of the need
	suffix []int64 // by pod and dimension: what it and all after it free
	steps  int32
	best   solution
	found  bool
}

// thorough finds the cheapest choice, if the limit allows; known is a bound of all of them.
func (p *problem) thorough(n *node, known cost) (solution, bool) {
	t := &trials{p: p, n: n, goes: make([]bool, len(p.movable)), left: slices.Clone(p.need)}
	dims := len(p.need)
	t.suffix = make([]int64, (len(p.movable)+1)*dims)
	for i := len(p.movable) - 1; i >= 0; i-- {
		for d, f := range p.of(i) {
			t.suffix[i*dims+d] = t.suffix[(i+1)*dims+d] + f
		}
	}
	p.others.without(p.forced, func() { t.descend(0, p.base, true) })
	switch all := t.steps <= p.limit && !p.others.cut; {
	case !all:
		t.best.known = known
	case t.found:
		t.best.minimal = true
	default:
		t.best.known = impossible
	}
	return t.best, t.found
}

// descend decides about the movable pods from one on, the most important first, and lets each stay first: so those of low
// priority are tried before any of a high one. so is a bound of the cost of what was decided, fresh whether that is a
// choice that was not looked at before.
func (t *trials) descend(i int, so cost, fresh bool) {
	t.p.meter.spend(workTrial)
	if t.steps++; t.steps > t.p.limit || t.found && !so.less(&t.best.cost) {
		return
	}
	enough := true
	for d, left := range t.left {
		enough = enough && left <= 0
		if left > t.suffix[i*len(t.left)+d] {
			return
		}
	}
	if enough && fresh && t.take() {
		return
	}
	if i == len(t.goes) {
		return
	}
	t.descend(i+1, so, false)
	v := t.p.movable[i]
	t.goes[i] = true
	t.free(i, -1)
	t.p.others.view.removeRules(v)
	t.descend(i+1, so.with(v), true)
	t.p.others.view.addRules(v)
	t.free(i, 1)
	t.goes[i] = false
}

func (t *trials) free(i int, by int64) {
	for d, f := range t.p.of(i) {
		t.left[d] += by * f
	}
}

// take looks at the choice under way, and says whether it is one, whatever it costs.
func (t *trials) take() bool {
	if !t.p.obeyed(t.goes) || t.p.others.judge.Fails(t.n.name) != 0 {
		return false
	}
	s := t.p.solution(t.goes)
	if elsewhereOf(t.p.slot, s.victims) > t.p.others.most {
		return false
	}
	if !t.found || s.cost.less(&t.best.cost) {
		t.best, t.found = s, true
	}
	return true
}

// obeyed says whether a choice keeps the rules that must be kept.
func (p *problem) obeyed(goes []bool) bool {
	spent := make([]int32, len(p.rules))
	for i := range goes {
		if !goes[i] {
			continue
		}
		for under := p.spending(i); under != 0; under &= under - 1 {
			r := bits.TrailingZeros64(under)
			if spent[r]++; p.rules[r].hard && spent[r] > p.rules[r].allowed {
				return false
			}
		}
	}
	return true
}
