// Package victims chooses who has to leave a node so that a pod finds room there: the choice that costs least in
// Kubernetes' own order, with a proof that there is none that costs less, or without one where the search reaches its
// limit.
//
// A Problem is numbers alone: amounts that have to come free, what each pod that may go frees of them, and rules that
// say how many may go. What the numbers stand for (resources, budgets, topology domains) is the scheduler's affair.
// Three ways lead to an answer, each more expensive than the one before: Bound, a cost that no choice is below;
// Reprieve, kube-scheduler's own choice; and Solve, which searches between the two. Try is for problems whose rules
// depend on each other.
//
// The package must never know a node, a budget or a clock; it counts its work and tells a Meter.
package victims

import (
	"math/bits"
	"slices"
)

// Problem is the question who has to leave a node. Whoever asks fills the fields; the methods only read them. It can be
// used again for another question, which then allocates nothing.
type Problem struct {
	// Movable are the pods that may go and do not have to, most important first.
	Movable []Pod
	// Forced are those that have to go in any case, most important first; Base is what that costs.
	Forced []Pod
	Base   Cost
	// Need is what has to come free, by dimension, all above 0.
	Need []int64
	// Frees is what the movable pods free: by pod, and of each by dimension.
	Frees []int64
	// Rules are those that a choice could break, MaxRules at most.
	Rules []Rule
	// Spends and Forces say for each movable and each forced pod by a bit under which rules it counts. They are empty
	// where there are no rules.
	Spends, Forces []uint64

	// Slot is the node's. Elsewhere are the slots of other nodes that forced pods are on.
	Slot      int32
	Elsewhere []int32
	// Most is on how many other nodes victims may be. Roam is how many of these are left for movable pods; negative
	// where no choice could have them on more.
	Most, Roam int32

	// Limit bounds the search, in nodes of its tree; 0: victims are chosen by reprieve alone.
	Limit int32
	// Meter is told of the work; it may be nil.
	Meter Meter

	amounts []int64
	levels  []int // where priorities begin among the movable pods, the lowest first
	try     search
}

// Rule says how many of the pods that count under it may go.
type Rule struct {
	Allowed int32 // beside the forced pods
	Before  int32 // with these still to go
	Members int32 // of the movable pods
	// Hard: more must not go. Otherwise each further one is a violation.
	Hard bool
}

// MaxRules is how many rules a problem can have: they are bits of a word.
const MaxRules = 64

// Meter counts work, in units of about ten nanoseconds.
type Meter interface{ Spend(units int) }

// The units of what is done again and again.
const (
	workPod   = 6   // a pod, looked at
	workStep  = 25  // a step of the search
	workTrial = 100 // a choice that is tried
)

// Solution is a choice of victims: the forced pods and some of the movable ones.
type Solution struct {
	// Goes are the positions of movable pods, ascending.
	Goes []int32
	Cost Cost
	// Minimal: it was proven that no other choice costs less. Otherwise the search's limit was reached.
	Minimal bool
	// Known is a bound of the cost of every choice, where the solution is not minimal.
	Known Cost
	// Steps is how many nodes of its tree the search looked at.
	Steps int32
}

func (p *Problem) spend(units int) {
	if p.Meter != nil {
		p.Meter.Spend(units)
	}
}

// frees is what a movable pod frees.
func (p *Problem) frees(i int) []int64 { return p.Frees[i*len(p.Need):][:len(p.Need)] }

// Enough says whether the movable pods from one on free what is needed, rules aside.
func (p *Problem) Enough(from int) bool {
	dims := len(p.Need)
	for d, need := range p.Need {
		for i := from*dims + d; i < len(p.Frees) && need > 0; i += dims {
			need -= p.Frees[i]
		}
		if need > 0 {
			return false
		}
	}
	return true
}

// spending is what a movable pod counts under.
func (p *Problem) spending(i int) uint64 {
	if len(p.Rules) == 0 {
		return 0
	}
	return p.Spends[i]
}

// solution is the choice of the forced pods and those marked. Its violations are those of the pods that go, and of
// nobody else: every disruption beyond what a budget allows is one.
func (p *Problem) solution(goes []bool) Solution {
	s := Solution{Cost: p.Base}
	spent := make([]int32, len(p.Rules))
	for i := range p.Movable {
		if !goes[i] {
			continue
		}
		v := &p.Movable[i]
		s.Goes = append(s.Goes, int32(i))
		s.Cost = s.Cost.With(v)
		s.Cost.Elsewhere = s.Cost.Elsewhere || v.Slot != p.Slot
		for under := p.spending(i); under != 0; under &= under - 1 {
			r := bits.TrailingZeros64(under)
			if spent[r]++; spent[r] > p.Rules[r].Allowed {
				s.Cost.Violations++
			}
		}
	}
	return s
}

// opens is the other node that a movable pod's eviction takes one of the few of; -1 for none.
func (p *Problem) opens(v *Pod) int32 {
	if p.Roam < 0 || v.Slot == p.Slot || slices.Contains(p.Elsewhere, v.Slot) {
		return -1
	}
	return v.Slot
}

// roams says whether a choice has victims on no more other nodes than it may.
func (p *Problem) roams(s *Solution) bool {
	others := slices.Clone(p.Elsewhere)
	for _, i := range s.Goes {
		if slot := p.Movable[i].Slot; slot != p.Slot && !slices.Contains(others, slot) {
			others = append(others, slot)
		}
	}
	return len(others) <= int(p.Most)
}
