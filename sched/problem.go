package sched

import (
	"slices"

	"github.com/berth-dev/berth/model"
)

// problem is the question who has to leave for a pod of a class: pods that may go, what has to come free, and what
// must not be done. Everything that keeps the pod off a node and that others' leaving can end is an amount that has to
// come free in some dimension (a resource), or a pod that has to go in any case (it holds a port). What limits the
// choice is a rule: so many of these pods may go, and more only at a cost or not at all.
//
// It is filled for one node at a time and used again for the next, so that looking at a node allocates nothing.
type problem struct {
	class *model.Class
	meter *meter // nil: the work is not counted
	// strict: no budget may be violated, whatever the budget itself says.
	strict bool
	// limit bounds the search, in nodes of its tree; 0: victims are chosen by reprieve alone.
	limit int32
	wants []dimension // what the class asks for

	movable []*pod   // who may go and does not have to, most important first
	need    []int64  // what has to come free, by dimension, all above 0
	frees   []int64  // what movable[i] frees is frees[i*len(need):][:len(need)]
	rules   []rule   // those that could be broken
	spends  []uint64 // by pod: the rules that it counts under
	forces  []uint64 // the same by forced pod, where there are rules

	slot   int32         // of the node
	others *surroundings // nil where no rule between pods is about the class
	// roam is on how many other nodes than those of the forced pods victims may be; negative where no choice could have
	// them on more.
	roam int32

	forced []*pod // who has to go in any case, most important first
	base   cost   // of the forced ones

	fails   model.Failures // why nothing helps, for verdictStillFails
	blocked []*Budget      // what forbids it, for verdictBlocked

	used    []int64 // by wants
	active  []int   // wants in which something has to come free
	ofNode  []rule  // before those that cannot be broken are left out
	amounts []int64
	levels  []int // where priorities begin among the movable pods, the lowest first
	try     search
}

// rule says how many of the pods that count under it may go.
type rule struct {
	budget  *Budget
	allowed int32 // beside the forced pods
	before  int32 // with these still to go
	members int32 // of the movable pods
	pods    int32 // of all that may go or have to, whether they spend anything or not
	hard    bool  // more must not go; otherwise each further one is a violation
}

// maxRules is how many rules a problem can have: they are bits of a word. Pods under further ones do not move.
const maxRules = 64

// dimension is a resource that a class asks for.
type dimension struct {
	kind dimensionKind
	name string // of a scalar
	want int64
}

type dimensionKind uint8

const (
	dimensionPods dimensionKind = iota
	dimensionCPU
	dimensionMemory
	dimensionStorage
	dimensionScalar
)

func (d *dimension) of(r *model.Resources) int64 {
	switch d.kind {
	case dimensionPods:
		return r.Pods
	case dimensionCPU:
		return r.MilliCPU
	case dimensionMemory:
		return r.MemoryBytes
	case dimensionStorage:
		return r.EphemeralStorageBytes
	}
	return r.Get(d.name)
}

// newProblem returns an empty problem for the class.
func newProblem(c *model.Class, how preempting) *problem {
	p := &problem{class: c, strict: model.StrictFor(how.config, c), limit: how.searchLimit}
	add := func(kind dimensionKind, name string, want int64) {
		if want > 0 { // what a pod does not ask for cannot keep it off
			p.wants = append(p.wants, dimension{kind, name, want})
		}
	}
	add(dimensionPods, "", c.Request.Pods)
	add(dimensionCPU, "", c.Request.MilliCPU)
	add(dimensionMemory, "", c.Request.MemoryBytes)
	add(dimensionStorage, "", c.Request.EphemeralStorageBytes)
	for _, s := range c.Request.Scalars {
		add(dimensionScalar, s.Name, s.Value)
	}
	p.used = make([]int64, len(p.wants))
	return p
}

// lowerOn returns the pods of a node whose priority is below a limit (PR6: strictly), most important first.
func lowerOn(n *node, priority int32) []*pod {
	from, _ := slices.BinarySearchFunc(n.pods, priority, func(p *pod, priority int32) int {
		if p.priority < priority {
			return 1
		}
		return -1
	})
	return n.pods[from:]
}

// fill asks the question for one node. Pods that are ending already are neither evicted again nor reprieved: their room
// is on its way, so nobody else is evicted where waiting for them is enough.
func (p *problem) fill(n *node, budgets Budgets) verdict {
	p.movable, p.forced = p.movable[:0], p.forced[:0]
	p.rules, p.spends, p.forces = p.rules[:0], p.spends[:0], p.forces[:0]
	p.fails, p.blocked, p.slot, p.roam = 0, nil, n.slot, -1
	lower := lowerOn(n, p.class.Priority)
	p.meter.spend(len(lower) * workPod * (1 + len(p.wants)/2))
	if len(lower) == 0 && p.others == nil {
		return verdictNoVictims
	}
	for _, v := range lower {
		switch {
		case v.isLeaving():
		case p.holdsPort(v):
			p.forced = append(p.forced, v)
		default:
			p.movable = append(p.movable, v)
		}
	}
	if p.others != nil {
		var ok bool
		if p.fails, ok = p.surround(n); !ok {
			return verdictStillFails
		}
		if len(p.movable)+len(p.forced)+len(p.others.pending) == 0 && len(lower) == 0 {
			return verdictNoVictims
		}
	}
	if !p.measure(n, lower) || len(p.class.Ports) > 0 && portsWithout(n, p.class, lower) {
		p.fails = failsWithout(n, p.class, lower)
		return verdictStillFails
	}
	if !p.count(n, budgets) {
		return verdictBlocked
	}
	if p.others != nil && !p.anchor() {
		return verdictBlocked // PR14
	}
	return verdictCandidate
}

// measure computes what has to come free, with the leaving and the forced pods gone, and what each movable pod frees of
// it. It returns false if not even all of them are enough.
func (p *problem) measure(n *node, lower []*pod) bool {
	p.need, p.active, p.frees = p.need[:0], p.active[:0], p.frees[:0]
	for i := range p.wants {
		p.used[i] = p.wants[i].of(&n.usage.Requested)
	}
	for _, nom := range n.noms {
		if nom.priority >= p.class.Priority { // NM4
			for i := range p.wants {
				p.used[i] += p.wants[i].of(&nom.class.Request)
			}
		}
	}
	for _, v := range lower {
		if v.isLeaving() || len(p.forced) > 0 && slices.Contains(p.forced, v) {
			for i := range p.wants {
				p.used[i] -= p.wants[i].of(&v.class.Request)
			}
		}
	}
	for i := range p.wants {
		w := &p.wants[i]
		if need := w.want - (w.of(&n.alloc) - p.used[i]); need > 0 {
			p.need = append(p.need, need)
			p.active = append(p.active, i)
		}
	}
	if p.others != nil {
		p.measureSpread()
	}
	if len(p.need) == 0 {
		return true
	}
	for _, v := range p.movable {
		for _, i := range p.active {
			freed := int64(0)
			if v.slot == n.slot {
				freed = p.wants[i].of(&v.class.Request)
			}
			p.frees = append(p.frees, freed)
		}
		if p.others != nil {
			p.freeSpread(v)
		}
	}
	return p.enough(0)
}

// enough says whether the movable pods from one on free what is needed, rules aside.
func (p *problem) enough(from int) bool {
	dims := len(p.need)
	for d, need := range p.need {
		for i := from*dims + d; i < len(p.frees) && need > 0; i += dims {
			need -= p.frees[i]
		}
		if need > 0 {
			return false
		}
	}
	return true
}

// of is what a movable pod frees.
func (p *problem) of(i int) []int64 { return p.frees[i*len(p.need):][:len(p.need)] }

// holdsPort says whether a pod has a host port that the class wants.
func (p *problem) holdsPort(v *pod) bool {
	for _, want := range p.class.Ports {
		for _, held := range v.class.Ports {
			if want.Conflicts(held) {
				return true
			}
		}
	}
	return false
}

// portsWithout says whether ports stay taken when the pods given are gone.
func portsWithout(n *node, c *model.Class, gone []*pod) bool {
	only := *c
	only.Request = model.Resources{}
	return failsWithout(n, &only, gone) != 0
}

// failsWithout tells what keeps the class off a node even when all the pods given are gone.
func failsWithout(n *node, c *model.Class, gone []*pod) model.Failures {
	var scratch model.Usage
	u := *n.usageFor(c.Priority, &scratch)
	for _, v := range gone {
		u = u.Without(v.class)
	}
	return model.UsageFailures(c, &n.alloc, &u)
}

// count finds the rules that could be broken: every pod that goes spends one of each budget that covers it (PR8). It
// returns false if the forced pods alone break one that must not be.
func (p *problem) count(n *node, budgets Budgets) bool {
	p.base = costOf(p.forced, 0)
	p.base.others = elsewhereOf(p.slot, p.forced) > 0
	if book, ok := budgets.(*budgetBook); ok && p.others == nil && !book.limits(n) {
		return true
	}
	p.ofNode = p.ofNode[:0]
	for _, v := range p.movable {
		for _, b := range covering(v, budgets) {
			r := p.ruleOf(b)
			r.pods++
			if !r.hard || !b.spares(v.obj) {
				r.members++
			}
		}
	}
	for _, v := range p.forced {
		for _, b := range covering(v, budgets) {
			r := p.ruleOf(b)
			r.pods++
			if r.hard && b.spares(v.obj) {
				continue
			}
			if r.allowed--; r.allowed < 0 {
				if r.hard {
					p.blocked = append(p.blocked, b)
				}
				p.base.violations++
				r.allowed = 0
			}
		}
	}
	for _, r := range p.ofNode {
		r.budget.watch(n.slot, r.pods)
		if r.members > r.allowed {
			p.rules = append(p.rules, r)
		}
	}
	if p.blocked != nil {
		return false
	}
	if len(p.rules) == 0 {
		return true
	}
	for i := 0; i < len(p.movable); i++ {
		under, all := p.under(p.movable[i], budgets)
		if !all {
			p.drop(i)
			i--
			continue
		}
		p.spends = append(p.spends, under)
	}
	for _, v := range p.forced {
		under, _ := p.under(v, budgets)
		p.forces = append(p.forces, under)
	}
	p.rules = p.rules[:min(len(p.rules), maxRules)]
	return true
}

// under returns the rules that a pod counts under; false: there are more that it does.
func (p *problem) under(v *pod, budgets Budgets) (rules uint64, all bool) {
	all = true
	for _, b := range covering(v, budgets) {
		r := slices.IndexFunc(p.rules, func(r rule) bool { return r.budget == b })
		switch {
		case r >= maxRules:
			all = false
		case r >= 0 && (!p.rules[r].hard || !b.spares(v.obj)):
			rules |= 1 << r
		}
	}
	return rules, all
}

// drop takes a pod from those that may go.
func (p *problem) drop(i int) {
	p.movable = slices.Delete(p.movable, i, i+1)
	if dims := len(p.need); dims > 0 {
		p.frees = slices.Delete(p.frees, i*dims, (i+1)*dims)
	}
}

// ruleOf is the rule of a budget for this class.
func (p *problem) ruleOf(b *Budget) *rule {
	for i := range p.ofNode {
		if p.ofNode[i].budget == b {
			return &p.ofNode[i]
		}
	}
	allowed := max(b.Allowed, 0)
	p.ofNode = append(p.ofNode, rule{budget: b, allowed: allowed, before: allowed, hard: p.mustKeep(b)})
	return &p.ofNode[len(p.ofNode)-1]
}

// mustKeep says whether the class's pods must not violate a budget.
func (p *problem) mustKeep(b *Budget) bool { return p.strict || b.protects(p.class.Priority) }

// spending is what a movable pod counts under.
func (p *problem) spending(i int) uint64 {
	if len(p.rules) == 0 {
		return 0
	}
	return p.spends[i]
}
