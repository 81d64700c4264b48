package victims

import "math/bits"

// Reprieve is kube-scheduler's choice (PR9): with all of them gone, those whose eviction would violate a budget are
// reprieved first, then the others, the most important first. Where a budget must not be violated those whose eviction
// would are not touched at all. false: that is no choice.
func (p *Problem) Reprieve() (Solution, bool) {
	p.amounts = p.amounts[:0]
	for d, need := range p.Need {
		spare := -need
		for i := range p.Movable {
			spare += p.frees(i)[d]
		}
		p.amounts = append(p.amounts, spare)
	}
	spare := p.amounts
	reprieve := func(i int) bool {
		for d, f := range p.frees(i) {
			if f > spare[d] {
				return false
			}
		}
		for d, f := range p.frees(i) {
			spare[d] -= f
		}
		return true
	}
	violating, forbidden := p.violating()
	goes := make([]bool, len(p.Movable))
	for i := range p.Movable {
		if forbidden.has(i) && !reprieve(i) {
			return Solution{}, false
		}
	}
	for i := range p.Movable {
		if violating.has(i) && !forbidden.has(i) {
			goes[i] = !reprieve(i)
		}
	}
	for i := range p.Movable {
		if !forbidden.has(i) && !violating.has(i) {
			goes[i] = !reprieve(i)
		}
	}
	s := p.solution(goes)
	return s, p.Roam < 0 || p.roams(&s)
}

// picks is a set of positions in a list of pods; nil is empty.
type picks []bool

func (p picks) has(i int) bool { return p != nil && p[i] }

// violating says which of the movable pods would find a budget used up, and which of them one that must not be. The
// first is kube-scheduler's question (PR8), of all who may go, in the order of importance. For the second the forced
// pods have gone before, or nobody could be evicted where one may be.
func (p *Problem) violating() (soft, hard picks) {
	if len(p.Rules) == 0 {
		return nil, nil
	}
	soft, hard = make(picks, len(p.Movable)), make(picks, len(p.Movable))
	spent := make([]int32, len(p.Rules))
	forced := 0
	for i, under := range p.Spends {
		for ; forced < len(p.Forces) && MoreImportant(&p.Forced[forced], &p.Movable[i]) < 0; forced++ {
			for also := p.Forces[forced]; also != 0; also &= also - 1 {
				if r := bits.TrailingZeros64(also); !p.Rules[r].Hard {
					spent[r]++
				}
			}
		}
		for ; under != 0; under &= under - 1 {
			r := bits.TrailingZeros64(under)
			spent[r]++
			soft[i] = soft[i] || !p.Rules[r].Hard && spent[r] > p.Rules[r].Before
			hard[i] = hard[i] || p.Rules[r].Hard && spent[r] > p.Rules[r].Allowed
		}
	}
	return soft, hard
}
