package sched

import (
	"cmp"
	"encoding/binary"
	"math/bits"
	"slices"

	"github.com/berth-dev/berth/model"
)

// solution is a choice of victims.
type solution struct {
	victims []*pod // most important first
	cost    cost
	// minimal: it was proven that no other choice costs less. Otherwise the search's limit was reached.
	minimal bool
	// known is a bound of the cost of every choice, where the solution is not minimal.
	known cost
	// pending are pods that are in the way and leaving already.
	pending []*pod
}

// solve finds the cheapest choice. The greedy one is where it begins, so the outcome is never worse. least is the
// problem's bound: a choice that costs no more is the cheapest. false: nobody's leaving helps within the rules.
//
// The cost is compared violations first, then the highest priority, then the rest. So the pairs of these two are tried
// in their order, and for each the tree of choices is searched that stays within the pair: the first pair that has a
// choice has the cheapest one.
func (p *problem) solve(least cost) (solution, bool) {
	best, found := p.greedy()
	if found && !least.less(&best.cost) {
		best.minimal = true
		return best, true
	}
	if p.limit == 0 || len(p.movable) > maxSearched {
		best.known = least
		return best, found
	}
	s := &p.try
	s.begin(p)
	most := p.mostViolations()
	if found {
		most = best.cost.violations - p.base.violations
	}
	for extra := least.violations - p.base.violations; extra <= most; extra++ {
		for from := p.levelBelow(len(p.movable)); from >= 0; from = p.levelBelow(from) {
			within := cost{violations: p.base.violations + extra, highest: max(p.movable[from].priority, p.base.highest)}
			switch {
			case from > 0 && p.movable[from-1].priority <= p.base.highest: // one level with the next
				continue
			case within.highest < least.highest && within.violations == least.violations:
				continue
			}
			if s.weigh(); s.steps > p.limit {
				s.exhausted = true
			} else if !p.relaxed(extra, from) {
				continue
			}
			known := best.cost
			if !found || within.violations < known.violations || within.highest < known.highest {
				known = impossible
			}
			if !s.exhausted && s.within(from, extra, within.highest, known) {
				best, found = s.collect(), true
			}
			switch {
			case s.exhausted:
				best.known = within
				best.known.start = model.NeverStarted
				return best, found
			case found && best.cost.violations == within.violations && best.cost.highest <= within.highest:
				best.minimal = true
				return best, true
			}
		}
	}
	p.blocked = p.hardest()
	if !found {
		best.known = impossible
	}
	return best, found
}

// maxSearched is among how many pods of a node victims are searched for; where there are more they are chosen by reprieve.
const maxSearched = 2048

// weigh counts a question about all of the movable pods as steps of the search, if there are so many that it takes long.
func (s *search) weigh() {
	n := len(s.p.movable) * len(s.p.need) * (1 + len(s.p.rules))
	s.steps += int32(n / 1024)
	s.p.meter.spend(n)
}

// levelBelow is the first movable pod of the next priority above that of the pods from one on: levels come lowest
// first; -1 after the last.
func (p *problem) levelBelow(from int) int {
	if from == 0 {
		return -1
	}
	next := from - 1
	for next > 0 && p.movable[next-1].priority == p.movable[next].priority {
		next--
	}
	return next
}

// greedy is kube-scheduler's choice (PR9): with all of them gone, those whose eviction would violate a budget are
// reprieved first, then the others, the most important first. Where a budget must not be violated those whose eviction
// would are not touched at all.
func (p *problem) greedy() (solution, bool) {
	p.amounts = p.amounts[:0]
	for d, need := range p.need {
		spare := -need
		for i := range p.movable {
			spare += p.of(i)[d]
		}
		p.amounts = append(p.amounts, spare)
	}
	spare := p.amounts
	reprieve := func(i int) bool {
		for d, f := range p.of(i) {
			if f > spare[d] {
				return false
			}
		}
		for d, f := range p.of(i) {
			spare[d] -= f
		}
		return true
	}
	violating, forbidden := p.violating()
	goes := make([]bool, len(p.movable))
	for i := range p.movable {
		if forbidden.has(i) && !reprieve(i) {
			return solution{}, false
		}
	}
	for i := range p.movable {
		if violating.has(i) && !forbidden.has(i) {
			goes[i] = !reprieve(i)
		}
	}
	for i := range p.movable {
		if !forbidden.has(i) && !violating.has(i) {
			goes[i] = !reprieve(i)
		}
	}
	s := p.solution(goes)
	return s, p.roam < 0 || elsewhereOf(p.slot, s.victims) <= p.others.most
}

// picks is a set of positions in a list of pods; nil is empty.
type picks []bool

func (p picks) has(i int) bool { return p != nil && p[i] }

// violating says which of the movable pods would find a budget used up, and which of them one that must not be. The first
// is kube-scheduler's question (PR8), of all who may go, in the order of importance. For the second the forced pods have
// gone before, or nobody could be evicted where one may be.
func (p *problem) violating() (soft, hard picks) {
	if len(p.rules) == 0 {
		return nil, nil
	}
	soft, hard = make(picks, len(p.movable)), make(picks, len(p.movable))
	spent := make([]int32, len(p.rules))
	forced := 0
	for i, under := range p.spends {
		for ; forced < len(p.forces) && moreImportant(p.forced[forced], p.movable[i]) < 0; forced++ {
			for also := p.forces[forced]; also != 0; also &= also - 1 {
				if r := bits.TrailingZeros64(also); !p.rules[r].hard {
					spent[r]++
				}
			}
		}
		for ; under != 0; under &= under - 1 {
			r := bits.TrailingZeros64(under)
			spent[r]++
			soft[i] = soft[i] || !p.rules[r].hard && spent[r] > p.rules[r].before
			hard[i] = hard[i] || p.rules[r].hard && spent[r] > p.rules[r].allowed
		}
	}
	return soft, hard
}

// solution is the choice of the forced pods and those marked. Its violations are those of the pods that go, and of
// nobody else: every disruption beyond what a budget allows is one.
func (p *problem) solution(goes []bool) solution {
	s, violations := solution{victims: slices.Clone(p.forced)}, p.base.violations
	spent := make([]int32, len(p.rules))
	for i, v := range p.movable {
		if !goes[i] {
			continue
		}
		s.victims = append(s.victims, v)
		for under := p.spending(i); under != 0; under &= under - 1 {
			r := bits.TrailingZeros64(under)
			if spent[r]++; spent[r] > p.rules[r].allowed {
				violations++
			}
		}
	}
	if len(p.forced) > 0 {
		slices.SortFunc(s.victims, moreImportant) // T4: the first is the highest
	}
	s.cost = costOf(s.victims, violations)
	s.cost.others = elsewhereOf(p.slot, s.victims) > 0
	return s
}

// search is branch and bound over kinds of pods that are alike in all that the problem asks about but their start. It
// chooses how many of each kind go; which ones, the cost decides: those that started last.
type search struct {
	p         *problem
	kinds     []kind
	byName    map[string]int // by what makes a kind, where there are many pods
	name      []byte
	steps     int32
	exhausted bool

	// Of one search:
	violations int32 // that may be added
	highest    int32
	from       int // the movable pods before this one stay
	known      cost
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
func (s *search) begin(p *problem) {
	s.p, s.steps, s.exhausted = p, 0, false
	s.kinds = s.kinds[:0]
	p.meter.spend(len(p.movable) * workPod)
	clear(s.byName)
	for i := len(p.movable) - 1; i >= 0; i-- {
		v := p.movable[i]
		own := kind{frees: p.of(i), weight: weight(v), spends: p.spending(i), other: p.opens(v)}
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
	p.meter.spend(len(s.kinds) * len(s.kinds))
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
	if len(s.p.movable) <= maxPicked {
		return slices.IndexFunc(s.kinds, func(k kind) bool {
			return k.other == own.other && k.weight == own.weight && k.spends == own.spends && slices.Equal(k.frees, own.frees)
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
func (p *problem) usefulness(i int) int64 {
	var sum int64
	for d, f := range p.of(i) {
		if f = min(f, p.need[d]); f > 0 {
			hi, lo := bits.Mul64(uint64(f), 1024)
			q, _ := bits.Div64(hi, lo, uint64(p.need[d]))
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
func (s *search) within(from int, violations, highest int32, known cost) bool {
	p := s.p
	s.violations, s.highest, s.from, s.known, s.found = violations, highest, from, known, false
	n, dims := len(s.kinds), len(p.need)
	s.taken, s.best = append(s.taken[:0], make([]int32, n)...), append(s.best[:0], make([]int32, n)...)
	s.left = append(s.left[:0], p.need...)
	s.spent = append(s.spent[:0], make([]int32, len(p.rules))...)
	s.opened = nil
	if p.roam >= 0 {
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
			if p.movable[kd.first].priority == highest {
				s.latest[k] = max(s.latest[k], p.movable[kd.members[0]].start)
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
		slices.SortStableFunc(s.byAmount[d], func(a, b int32) int { return descending(s.kinds[a].frees[d], s.kinds[b].frees[d]) })
	}
	start := model.NeverStarted
	if p.base.highest == highest {
		start = p.base.start
	}
	s.descend(0, cost{violations: p.base.violations, highest: highest, sum: p.base.sum, count: p.base.count, start: start}, 0, p.base.highest == highest)
	return s.found
}

// collect is the best choice that was found.
func (s *search) collect() solution {
	goes := make([]bool, len(s.p.movable))
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
	s.p.meter.spend(workStep + len(s.kinds))
}

// descend decides about the kinds from k on. so is the cost of what was taken before, extra the violations that it
// adds; counted says whether one of the highest priority is among it.
func (s *search) descend(k int, so cost, extra int32, counted bool) {
	if s.step(); s.steps > s.p.limit {
		s.exhausted = true
		return
	}
	done := true
	for _, left := range s.left {
		done = done && left <= 0
	}
	if done {
		so.violations += extra
		if so.less(&s.known) {
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
	top := s.p.movable[kd.first].priority == s.highest
	for n := s.mostOf(k, top); n >= 0 && !s.exhausted; n-- {
		added, ok := s.take(kd, n)
		if ok && extra+added <= s.violations {
			next := so
			next.sum += int64(n) * kd.weight
			next.count += n
			if n > 0 && top {
				next.start = min(next.start, s.p.movable[kd.members[n-1]].start)
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
		ok = len(s.opened) <= int(s.p.roam)
	}
	for under := kd.spends; under != 0; under &= under - 1 {
		r := bits.TrailingZeros64(under)
		rule := &s.p.rules[r]
		before := s.spent[r]
		s.spent[r] += n
		if over := s.spent[r] - rule.allowed; over > 0 {
			ok = ok && !rule.hard
			added += over - max(before-rule.allowed, 0)
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
		out := s.p.movable[other.members[s.taken[j]]].start
		for n > 0 && s.p.movable[kd.members[n-1]].start <= out {
			n--
		}
	}
	return n
}

// canWin says whether the kinds from k on can make up what is left so that the choice costs less than the known one.
func (s *search) canWin(k int, so cost, extra int32, counted bool) bool {
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
	so.violations += extra
	so.count += most
	for _, j := range s.byWeight {
		if most == 0 {
			break
		}
		if int(j) >= k {
			m := min(most, int32(len(s.kinds[j].members)))
			so.sum += int64(m) * s.kinds[j].weight
			most -= m
		}
	}
	if !counted {
		so.start = min(so.start, s.latest[k])
	}
	return so.less(&s.known)
}
