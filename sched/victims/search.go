package victims

import (
	"cmp"
	"encoding/binary"
	"math/bits"
	"slices"

	"github.com/berth-dev/berth/model"
)

// Solve finds the cheapest choice. Reprieve's is where it begins, so the outcome is never worse. least is the problem's
// bound: a choice that costs no more is the cheapest. false: none was found; there is none if what is known is
// Impossible.
func (p *Problem) Solve(least Cost) (Solution, bool) {
	best, found := p.Reprieve()
	if found && !least.Less(&best.Cost) {
		best.Minimal = true
		return best, true
	}
	if p.Limit == 0 || len(p.Movable) > maxSearched {
		best.Known = least
		return best, found
	}
	s := &p.try
	s.begin(p)
	best, found = s.run(best, found, least)
	best.Steps = s.steps
	return best, found
}

// run goes on from a choice, if one was found.
//
// The cost is compared violations first, then the highest priority, then the rest. So the pairs of these two are tried
// in their order, and for each the tree of choices is searched that stays within the pair: the first pair that has a
// choice has the cheapest one.
func (s *search) run(best Solution, found bool, least Cost) (Solution, bool) {
	p := s.p
	most := p.mostViolations()
	if found {
		most = best.Cost.Violations - p.Base.Violations
	}
	for extra := least.Violations - p.Base.Violations; extra <= most; extra++ {
		for from := p.levelBelow(len(p.Movable)); from >= 0; from = p.levelBelow(from) {
			within := Cost{Violations: p.Base.Violations + extra,
				Highest: max(p.Movable[from].Priority, p.Base.Highest)}
			switch {
			case from > 0 && p.Movable[from-1].Priority <= p.Base.Highest: // one level with the next
				continue
			case within.Highest < least.Highest && within.Violations == least.Violations:
				continue
			}
			if s.weigh(); s.steps > p.Limit {
				s.exhausted = true
			} else if !p.relaxed(extra, from) {
				continue
			}
			known := best.Cost
			if !found || within.Violations < known.Violations || within.Highest < known.Highest {
				known = Impossible
			}
			if !s.exhausted && s.within(from, extra, within.Highest, known) {
				best, found = s.collect(), true
			}
			switch {
			case s.exhausted:
				best.Known = within
				best.Known.StartUnixNano = model.NeverStarted
				return best, found
			case found && best.Cost.Violations == within.Violations && best.Cost.Highest <= within.Highest:
				best.Minimal = true
				return best, true
			}
		}
	}
	if !found {
		best.Known = Impossible
	}
	return best, found
}

// maxSearched is among how many pods of a node victims are searched for; where there are more they are chosen by
// reprieve.
const maxSearched = 2048

// weigh counts a question about all of the movable pods as steps of the search, if there are so many that it takes
// long.
func (s *search) weigh() {
	n := len(s.p.Movable) * len(s.p.Need) * (1 + len(s.p.Rules))
	s.steps += int32(n / 1024)
	s.p.spend(n)
}

// levelBelow is the first movable pod of the next priority above that of the pods from one on: levels come lowest
// first; -1 after the last.
func (p *Problem) levelBelow(from int) int {
	if from == 0 {
		return -1
	}
	next := from - 1
	for next > 0 && p.Movable[next-1].Priority == p.Movable[next].Priority {
		next--
	}
	return next
}

// search is branch and bound over kinds of pods that are alike in all that the problem asks about but their start. It
// chooses how many of each kind go; which ones, the cost decides: those that started last.
type search struct {
	p         *Problem
	kinds     []kind
	byName    map[string]int // by what makes a kind, where there are many pods
	name      []byte
	steps     int32
	exhausted bool

	// Of one search:
	violations int32 // that may be added
	highest    int32
	from       int // the movable pods before this one stay
	known      Cost
	found      bool
	taken      []int32
	best       []int32
	left       []int64
	spent      []int32
	opened     map[int32]int32 // other nodes: how many go there
	suffix     []int64         // by kind and dimension: what it and all after it free
	latest     []int64         // by kind: the latest start among it and all after it of the highest priority
	byAmount   [][]int32
	byWeight   []int32
}

// kind is a set of pods that are alike.
type kind struct {
	frees   []int64
	weight  int64
	spends  uint64
	members []int32 // the latest start first
	first   int     // the most important member
	useful  int64
	other   int32 // the other node that its pods are on, where these are counted; or -1
	// above are kinds, earlier in the order, of which one pod is at least as good to evict as one of these.
	above []int32
}

// begin sorts the movable pods into kinds: the most useful first.
func (s *search) begin(p *Problem) {
	s.p, s.steps, s.exhausted = p, 0, false
	s.kinds = s.kinds[:0]
	p.spend(len(p.Movable) * workPod)
	clear(s.byName)
	for i := len(p.Movable) - 1; i >= 0; i-- {
		v := &p.Movable[i]
		own := kind{frees: p.frees(i), weight: weight(v), spends: p.spending(i), other: p.opens(v)}
		k := s.kindLike(&own)
		if k < 0 {
			own.useful = p.usefulness(i)
			k = len(s.kinds)
			s.kinds = append(s.kinds, own)
		}
		s.kinds[k].members = append(s.kinds[k].members, int32(i))
		s.kinds[k].first = i
	}
	s.kinds = slices.DeleteFunc(s.kinds, func(k kind) bool { return k.useful == 0 })
	slices.SortStableFunc(s.kinds, func(a, b kind) int {
		if c := descending(a.useful, b.useful); c != 0 {
			return c
		}
		return cmp.Compare(a.weight, b.weight)
	})
	if len(s.kinds) > maxCompared {
		return // what could replace what is not known then, and only saves steps
	}
	p.spend(len(s.kinds) * len(s.kinds))
	for i := range s.kinds {
		for j := range i {
			if s.kinds[j].replaces(&s.kinds[i]) {
				s.kinds[i].above = append(s.kinds[i].above, int32(j))
			}
		}
	}
}

// maxCompared is how many kinds are compared with each other.
const maxCompared = 256

// kindLike is the kind that is like another one, or -1: then the other one is to be added.
func (s *search) kindLike(own *kind) int {
	if len(s.p.Movable) <= maxPicked {
		return slices.IndexFunc(s.kinds, func(k kind) bool {
			return k.other == own.other && k.weight == own.weight && k.spends == own.spends &&
				slices.Equal(k.frees, own.frees)
		})
	}
	s.name = binary.AppendVarint(s.name[:0], int64(own.other))
	s.name = binary.AppendVarint(s.name, own.weight)
	s.name = binary.AppendUvarint(s.name, own.spends)
	for _, f := range own.frees {
		s.name = binary.AppendVarint(s.name, f)
	}
	if k, ok := s.byName[string(s.name)]; ok {
		return k
	}
	if s.byName == nil {
		s.byName = map[string]int{}
	}
	s.byName[string(s.name)] = len(s.kinds)
	return -1
}

// usefulness is the sum over the dimensions of how much of the need one pod frees, in 1024ths.
func (p *Problem) usefulness(i int) int64 {
	var sum int64
	for d, f := range p.frees(i) {
		if f = min(f, p.Need[d]); f > 0 {
			hi, lo := bits.Mul64(uint64(f), 1024)
			q, _ := bits.Div64(hi, lo, uint64(p.Need[d]))
			sum += int64(max(q, 1))
		}
	}
	return sum
}

// replaces says whether a pod of this kind can go instead of one of the other: it frees no less, weighs no more, and
// counts under no rule that the other does not count under.
func (k *kind) replaces(other *kind) bool {
	for d, f := range other.frees {
		if k.frees[d] < f {
			return false
		}
	}
	return (k.other < 0 || k.other == other.other) && k.weight <= other.weight && k.spends&^other.spends == 0
}

// within searches for a choice that costs less than the known one, among the movable pods from one on and with no more
// violations than given. It says whether it found one.
func (s *search) within(from int, violations, highest int32, known Cost) bool {
	p := s.p
	s.violations, s.highest, s.from, s.known, s.found = violations, highest, from, known, false
	n, dims := len(s.kinds), len(p.Need)
	s.taken, s.best = append(s.taken[:0], make([]int32, n)...), append(s.best[:0], make([]int32, n)...)
	s.left = append(s.left[:0], p.Need...)
	s.spent = append(s.spent[:0], make([]int32, len(p.Rules))...)
	s.opened = nil
	if p.Roam >= 0 {
		s.opened = map[int32]int32{}
	}
	s.suffix = append(s.suffix[:0], make([]int64, (n+1)*dims)...)
	s.latest = append(s.latest[:0], make([]int64, n+1)...)
	s.byWeight = s.byWeight[:0]
	s.latest[n] = -1 << 63
	for k := n - 1; k >= 0; k-- {
		copy(s.suffix[k*dims:], s.suffix[(k+1)*dims:(k+2)*dims])
		s.latest[k] = s.latest[k+1]
		if kd := &s.kinds[k]; kd.first >= from {
			for d, f := range kd.frees {
				s.suffix[k*dims+d] += f * int64(len(kd.members))
			}
			if p.Movable[kd.first].Priority == highest {
				s.latest[k] = max(s.latest[k], p.Movable[kd.members[0]].StartUnixNano)
			}
			s.byWeight = append(s.byWeight, int32(k))
		}
	}
	slices.SortStableFunc(s.byWeight, func(a, b int32) int { return cmp.Compare(s.kinds[a].weight, s.kinds[b].weight) })
	for len(s.byAmount) < dims {
		s.byAmount = append(s.byAmount, nil)
	}
	for d := range dims {
		s.byAmount[d] = append(s.byAmount[d][:0], s.byWeight...)
		slices.SortStableFunc(s.byAmount[d],
			func(a, b int32) int { return descending(s.kinds[a].frees[d], s.kinds[b].frees[d]) })
	}
	start := model.NeverStarted
	if p.Base.Highest == highest {
		start = p.Base.StartUnixNano
	}
	s.descend(0, Cost{Violations: p.Base.Violations, Highest: highest, Sum: p.Base.Sum, Count: p.Base.Count,
		StartUnixNano: start}, 0, p.Base.Highest == highest)
	return s.found
}

// collect is the best choice that was found.
func (s *search) collect() Solution {
	goes := make([]bool, len(s.p.Movable))
	for k, n := range s.best {
		for _, i := range s.kinds[k].members[:n] {
			goes[i] = true
		}
	}
	return s.p.solution(goes)
}

// step counts a step of the search: of so many kinds that looking at all of them takes long it counts as several.
func (s *search) step() {
	s.steps += 1 + int32(len(s.kinds)/64)
	s.p.spend(workStep + len(s.kinds))
}

// descend decides about the kinds from k on. so is the cost of what was taken before, extra the violations that it
// adds; counted says whether one of the highest priority is among it.
func (s *search) descend(k int, so Cost, extra int32, counted bool) {
	if s.step(); s.steps > s.p.Limit {
		s.exhausted = true
		return
	}
	done := true
	for _, left := range s.left {
		done = done && left <= 0
	}
	if done {
		so.Violations += extra
		if so.Less(&s.known) {
			s.known, s.found = so, true
			copy(s.best, s.taken)
		}
		return
	}
	if k == len(s.kinds) || !s.canWin(k, so, extra, counted) {
		return
	}
	kd := &s.kinds[k]
	if kd.first < s.from {
		s.descend(k+1, so, extra, counted)
		return
	}
	top := s.p.Movable[kd.first].Priority == s.highest
	for n := s.mostOf(k, top); n >= 0 && !s.exhausted; n-- {
		added, ok := s.take(kd, n)
		if ok && extra+added <= s.violations {
			next := so
			next.Sum += int64(n) * kd.weight
			next.Count += n
			if n > 0 && top {
				next.StartUnixNano = min(next.StartUnixNano, s.p.Movable[kd.members[n-1]].StartUnixNano)
			}
			s.taken[k] = n
			s.descend(k+1, next, extra+added, counted || n > 0 && top)
		}
		s.take(kd, -n)
	}
	s.taken[k] = 0
}

// take lets n more pods of a kind go, or takes that back. It returns how many violations that adds and whether the hard
// rules are kept.
func (s *search) take(kd *kind, n int32) (added int32, ok bool) {
	for d, f := range kd.frees {
		s.left[d] -= f * int64(n)
	}
	ok = true
	if kd.other >= 0 && n != 0 {
		if s.opened[kd.other] += n; s.opened[kd.other] == 0 {
			delete(s.opened, kd.other)
		}
		ok = len(s.opened) <= int(s.p.Roam)
	}
	for under := kd.spends; under != 0; under &= under - 1 {
		r := bits.TrailingZeros64(under)
		rule := &s.p.Rules[r]
		before := s.spent[r]
		s.spent[r] += n
		if over := s.spent[r] - rule.Allowed; over > 0 {
			ok = ok && !rule.Hard
			added += over - max(before-rule.Allowed, 0)
		}
	}
	return added, ok
}

// mostOf is the most pods of kind k that it can make sense to take: no more than what is left asks for, and none that a
// pod left out before could replace without making anything worse.
func (s *search) mostOf(k int, top bool) int32 {
	kd := &s.kinds[k]
	var most int64
	for d, f := range kd.frees {
		if left := s.left[d]; left > 0 && f > 0 {
			most = max(most, (left+f-1)/f)
		}
	}
	n := int32(min(most, int64(len(kd.members))))
	for _, j := range kd.above {
		other := &s.kinds[j]
		if other.first < s.from || int(s.taken[j]) == len(other.members) {
			continue
		}
		if !top || other.weight < kd.weight {
			return 0
		}
		out := s.p.Movable[other.members[s.taken[j]]].StartUnixNano
		for n > 0 && s.p.Movable[kd.members[n-1]].StartUnixNano <= out {
			n--
		}
	}
	return n
}

// canWin says whether the kinds from k on can make up what is left so that the choice costs less than the known one.
func (s *search) canWin(k int, so Cost, extra int32, counted bool) bool {
	dims := len(s.left)
	var most int32
	for d, left := range s.left {
		if left <= 0 {
			continue
		}
		if s.suffix[k*dims+d] < left {
			return false
		}
		var n int32
		for _, j := range s.byAmount[d] {
			if kd := &s.kinds[j]; int(j) >= k && kd.frees[d] > 0 {
				m := min((left+kd.frees[d]-1)/kd.frees[d], int64(len(kd.members)))
				n += int32(m)
				if left -= m * kd.frees[d]; left <= 0 {
					break
				}
			}
		}
		most = max(most, n)
	}
	so.Violations += extra
	so.Count += most
	for _, j := range s.byWeight {
		if most == 0 {
			break
		}
		if int(j) >= k {
			m := min(most, int32(len(s.kinds[j].members)))
			so.Sum += int64(m) * s.kinds[j].weight
			most -= m
		}
	}
	if !counted {
		so.StartUnixNano = min(so.StartUnixNano, s.latest[k])
	}
	return so.Less(&s.known)
}
