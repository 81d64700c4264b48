package victims

import (
	"math/bits"
	"slices"
)

// trials are choices tried one by one, with the rules between pods asked about each: for nodes where these depend on
// each other: a pod whose eviction makes room in its zone may have kept its host from being the one with the fewest
// pods, so that now there are too many on this node. That is no amount that could be summed up, so the search knows
// only that a choice is never cheaper for having one pod more.
type trials struct {
	p      *Problem
	with   Trial
	goes   []bool
	left   []int64 // of the need
	suffix []int64 // by pod and dimension: what it and all after it free
	steps  int32
	best   Solution
	found  bool
}

// Trial is told which movable pods are gone, and asked whether the node takes the pod then.
type Trial interface {
	Leave(i int)
	Return(i int)
	Open() bool
}

// Try finds the cheapest choice if the limit allows, asking about each; known is a bound of all of them.
func (p *Problem) Try(with Trial, known Cost) (Solution, bool) {
	t := &trials{p: p, with: with, goes: make([]bool, len(p.Movable)), left: slices.Clone(p.Need)}
	dims := len(p.Need)
	t.suffix = make([]int64, (len(p.Movable)+1)*dims)
	for i := len(p.Movable) - 1; i >= 0; i-- {
		for d, f := range p.frees(i) {
			t.suffix[i*dims+d] = t.suffix[(i+1)*dims+d] + f
		}
	}
	t.descend(0, p.Base, true)
	switch {
	case t.steps > p.Limit:
		t.best.Known = known
	case t.found:
		t.best.Minimal = true
	default:
		t.best.Known = Impossible
	}
	return t.best, t.found
}

// descend decides about the movable pods from one on, the most important first, and lets each stay first: so those of
// low priority are tried before any of a high one. so is a bound of the cost of what was decided, fresh whether that is
// a choice that was not looked at before.
func (t *trials) descend(i int, so Cost, fresh bool) {
	t.p.spend(workTrial)
	if t.steps++; t.steps > t.p.Limit || t.found && !so.Less(&t.best.Cost) {
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
	t.goes[i] = true
	t.free(i, -1)
	t.with.Leave(i)
	t.descend(i+1, so.With(&t.p.Movable[i]), true)
	t.with.Return(i)
	t.free(i, 1)
	t.goes[i] = false
}

func (t *trials) free(i int, by int64) {
	for d, f := range t.p.frees(i) {
		t.left[d] += by * f
	}
}

// take looks at the choice under way, and says whether it is one, whatever it costs.
func (t *trials) take() bool {
	if !t.p.obeyed(t.goes) || !t.with.Open() {
		return false
	}
	s := t.p.solution(t.goes)
	if !t.p.roams(&s) {
		return false
	}
	if !t.found || s.Cost.Less(&t.best.Cost) {
		t.best, t.found = s, true
	}
	return true
}

// obeyed says whether a choice keeps the rules that must be kept.
func (p *Problem) obeyed(goes []bool) bool {
	spent := make([]int32, len(p.Rules))
	for i := range goes {
		if !goes[i] {
			continue
		}
		for under := p.spending(i); under != 0; under &= under - 1 {
			r := bits.TrailingZeros64(under)
			if spent[r]++; p.Rules[r].Hard && spent[r] > p.Rules[r].Allowed {
				return false
			}
		}
	}
	return true
}
