package victims

import (
	"math"
	"math/bits"
	"slices"
	"sort"

	"github.com/berth-dev/berth/model"
)

// Bound is a cost that no choice can be below: what the choice would cost if every dimension had to be satisfied for
// itself and every rule bound for itself. It is computed on every node that changed; the search is made only where the
// bound can still win. For pods that are all alike it is exact. false: no choice keeps the rules.
func (p *Problem) Bound() (Cost, bool) {
	c := p.Base
	if len(p.Need) == 0 {
		return c, true
	}
	p.spend(len(p.Movable) * len(p.Need) * (1 + len(p.Rules)))
	extra, ok := p.leastViolations()
	if !ok {
		return Impossible, false
	}
	c.Violations += extra
	from := p.ceiling(extra)
	ceiling := p.Movable[from].Priority
	raised := ceiling > c.Highest
	if raised {
		c.Highest, c.StartUnixNano = ceiling, model.NeverStarted
	}
	count := p.fewest(from, 0)
	c.Count += count
	c.Sum += p.lightest(from, count, raised)
	c.StartUnixNano = min(c.StartUnixNano, p.latestStart(from, c.Highest, raised))
	return c, true
}

// leastViolations is the least number of violations with which relaxed says yes; false if there is none.
func (p *Problem) leastViolations() (int32, bool) {
	if p.relaxed(0, 0) {
		return 0, true
	}
	// With more violations it never says no where it said yes with fewer.
	low, high := int32(0), p.mostViolations()
	if high <= 0 || !p.relaxed(high, 0) {
		return 0, false
	}
	for low+1 < high {
		if half := low + (high-low)/2; p.relaxed(half, 0) {
			high = half
		} else {
			low = half
		}
	}
	return high, true
}

// mostViolations is how many violations there are when everybody goes.
func (p *Problem) mostViolations() int32 {
	var n int32
	for i := range p.Rules {
		if r := &p.Rules[i]; !r.Hard {
			n += max(r.Members-r.Allowed, 0)
		}
	}
	return n
}

// relaxed says whether the movable pods from one on could free what is needed with so many violations, if the
// dimensions and the rules were independent of each other. When it says no, they cannot.
func (p *Problem) relaxed(violations int32, from int) bool {
	if len(p.Rules) == 0 {
		return p.Enough(from)
	}
	for d := range p.Need {
		free := int64(0)
		for i := from; i < len(p.Movable); i++ {
			if p.Spends[i] == 0 {
				free += p.frees(i)[d]
			}
		}
		for r := range p.Rules {
			if free >= p.Need[d] {
				break
			}
			free += p.mostUnder(r, d, from, violations)
		}
		if free < p.Need[d] {
			return false
		}
	}
	return true
}

// mostUnder is the most that the pods whose first rule this is can free together.
func (p *Problem) mostUnder(r, d, from int, violations int32) int64 {
	n := p.Rules[r].Allowed
	if !p.Rules[r].Hard {
		n += violations
	}
	if n == 0 {
		return 0
	}
	p.amounts = p.amounts[:0]
	for i := from; i < len(p.Movable); i++ {
		if p.Spends[i] != 0 && bits.TrailingZeros64(p.Spends[i]) == r {
			p.amounts = append(p.amounts, p.frees(i)[d])
		}
	}
	if int(n) < len(p.amounts) {
		slices.SortFunc(p.amounts, descending)
		p.amounts = p.amounts[:n]
	}
	sum := int64(0)
	for _, a := range p.amounts {
		sum += a
	}
	return sum
}

func descending(a, b int64) int {
	switch {
	case a > b:
		return -1
	case a < b:
		return 1
	}
	return 0
}

// ceiling is the first of the movable pods with the lowest priority that the highest victim can have.
func (p *Problem) ceiling(violations int32) int {
	// With more pods relaxed never says no where it said yes with fewer: so the level is found by halving.
	p.levels = p.levels[:0]
	for from := p.levelBelow(len(p.Movable)); from >= 0; from = p.levelBelow(from) {
		p.levels = append(p.levels, from)
	}
	at := sort.Search(len(p.levels)-1, func(i int) bool { return p.relaxed(violations, p.levels[i]) })
	from := p.levels[at]
	// Up to the priority of those who go in any case nothing becomes worse.
	for from > 0 && p.Movable[from-1].Priority <= p.Base.Highest {
		from--
	}
	return from
}

// fewest is the least number of the movable pods from one on that can free what is needed in every dimension, seen one
// by one, when those from another on (below) are gone for nothing.
func (p *Problem) fewest(from, below int) int32 {
	var most int32
	for d, need := range p.Need {
		p.amounts = p.amounts[:0]
		for i := from; i < len(p.Movable); i++ {
			if below > 0 && i >= below {
				need -= p.frees(i)[d]
			} else {
				p.amounts = append(p.amounts, p.frees(i)[d])
			}
		}
		var n int32
		if len(p.amounts) > maxPicked {
			slices.SortFunc(p.amounts, descending)
			for int(n) < len(p.amounts) && need > 0 && p.amounts[n] > 0 {
				need -= p.amounts[n]
				n++
			}
			if need > 0 {
				return math.MaxInt32
			}
		}
		for need > 0 {
			// There are few victims and few pods: picking the largest again and again is faster than sorting.
			at := -1
			for i, a := range p.amounts {
				if a > 0 && (at < 0 || a > p.amounts[at]) {
					at = i
				}
			}
			if at < 0 {
				return math.MaxInt32
			}
			need -= p.amounts[at]
			p.amounts[at] = 0
			n++
		}
		most = max(most, n)
	}
	return most
}

// maxPicked is among how many pods the largest is picked again and again.
const maxPicked = 32

// lightest is the least sum of so many priorities among the movable pods from one on; one of them is of the highest
// priority there if it must be.
func (p *Problem) lightest(from int, count int32, withHighest bool) int64 {
	var sum int64
	at := len(p.Movable) - 1
	if withHighest && count > 0 {
		sum += weight(&p.Movable[from])
		count--
	}
	for ; count > 0; count-- {
		sum += weight(&p.Movable[at])
		at--
	}
	return sum
}

// latestStart is the latest start that the earliest of the victims of the highest priority can have; one of them is
// among the movable pods if it must be.
func (p *Problem) latestStart(from int, highest int32, oneMust bool) int64 {
	below := from
	for below < len(p.Movable) && p.Movable[below].Priority == highest {
		below++
	}
	if below == from {
		return model.NeverStarted
	}
	// Of one priority the last are the latest to have started.
	n := min(p.fewest(from, below), int32(below-from))
	if n == 0 && oneMust {
		n = 1
	}
	if n == 0 {
		return model.NeverStarted
	}
	return p.Movable[below-int(n)].StartUnixNano
}
