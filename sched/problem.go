package sched

import (
	"slices"

	"github.com/berth-dev/berth/model"
	"github.com/berth-dev/berth/sched/victims"
)

// problem is the question who has to leave for a pod of a class: pods that may go, what has to come free, and what
// must not be done. Everything that keeps the pod off a node and that others' leaving can end is an amount that has to
// come free in some dimension (a resource), or a pod that has to go in any case (it holds a port, or a claim that one pod
// at a time may use). What limits the
// choice is a rule: so many of these pods may go, and more only at a cost or not at all.
//
// It is filled for one node at a time and used again for the next, so that looking at a node allocates nothing.
type problem struct {
	class *model.Class
	meter *meter // nil: the work is not counted
	// strict: no budget may be violated, whatever the budget itself says.
	strict bool
	wants  []dimension // what the class asks for

	movable []*pod // who may go and does not have to, most important first
	forced  []*pod // who has to go in any case, most important first
	// solver is the question in numbers. It is complete when fill has returned verdictCandidate.
	solver  victims.Problem
	budgets []*Budget // of the solver's rules; nil for one of required affinity

	topo *topoProblem // nil where no rule between pods is about the class

	fails   model.Failures // why nothing helps, for verdictStillFails
	blocked []*Budget      // what forbids it, for verdictBlocked

	used   []int64      // by wants
	active []int        // wants in which something has to come free
	ofNode []budgetRule // before those that cannot be broken are left out
}

// budgetRule is what a budget says of a node's pods.
type budgetRule struct {
	victims.Rule
	budget *Budget
	pods   int32 // of all that may go or have to, whether they spend anything or not
	rule   int   // its place among the solver's rules; -1: it is none of them
}

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
	p := &problem{class: c, strict: model.StrictFor(how.config, c)}
	p.solver.Limit = how.searchLimit
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
		if p.Priority < priority {
			return 1
		}
		return -1
	})
	return n.pods[from:]
}

// fill asks the question for one node. Pods that are ending already are neither evicted again nor reprieved: their room
// is on its way, so nobody else is evicted where waiting for them is enough.
func (p *problem) fill(n *node, budgets Budgets) verdict {
	q := &p.solver
	p.movable, p.forced, p.budgets = p.movable[:0], p.forced[:0], p.budgets[:0]
	q.Rules, q.Spends, q.Forces = q.Rules[:0], q.Spends[:0], q.Forces[:0]
	q.Slot, q.Roam, q.Elsewhere = n.slot, -1, nil
	p.fails, p.blocked = 0, nil
	lower := lowerOn(n, p.class.Priority)
	p.meter.Spend(len(lower) * workPod * (1 + len(p.wants)/2))
	if len(lower) == 0 && p.topo == nil {
		return verdictNoVictims
	}
	for _, v := range lower {
		switch {
		case v.isLeaving():
		case p.holdsPort(v), p.class.HeldBy(string(v.UID)):
			p.forced = append(p.forced, v)
		default:
			p.movable = append(p.movable, v)
		}
	}
	if !p.class.ReleasedBy(func(uid string) bool {
		return slices.ContainsFunc(lower, func(v *pod) bool { return string(v.UID) == uid })
	}) {
		p.fails = model.ClaimsInUse
		return verdictStillFails
	}
	if p.topo != nil {
		var ok bool
		if p.fails, ok = p.surround(n); !ok {
			return verdictStillFails
		}
		if len(p.movable)+len(p.forced)+len(p.topo.pending) == 0 && len(lower) == 0 {
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
	if p.topo != nil && !p.keepNeeded() {
		return verdictBlocked // PR14
	}
	q.Movable, q.Forced = numbersOf(q.Movable[:0], p.movable), numbersOf(q.Forced[:0], p.forced)
	return verdictCandidate
}

func numbersOf(out []victims.Pod, pods []*pod) []victims.Pod {
	for _, v := range pods {
		out = append(out, v.Pod)
	}
	return out
}

// chosen is a choice that the solver made.
func (p *problem) chosen(s *victims.Solution) choice {
	out := choice{victims: slices.Clone(p.forced), cost: s.Cost, minimal: s.Minimal, known: s.Known}
	for _, i := range s.Goes {
		out.victims = append(out.victims, p.movable[i])
	}
	if len(p.forced) > 0 {
		slices.SortFunc(out.victims, moreImportant) // T4: the first is the highest
	}
	return out
}

// measure computes what has to come free, with the leaving and the forced pods gone, and what each movable pod frees of
// it. It returns false if not even all of them are enough.
func (p *problem) measure(n *node, lower []*pod) bool {
	q := &p.solver
	q.Need, q.Frees, p.active = q.Need[:0], q.Frees[:0], p.active[:0]
	for i := range p.wants {
		p.used[i] = p.wants[i].of(&n.usage.Requested)
	}
	for _, nom := range n.noms {
		if nom.Priority >= p.class.Priority { // NM4
			for i := range p.wants {
				p.used[i] += p.wants[i].of(&nom.Class.Request)
			}
		}
	}
	for _, v := range lower {
		if v.isLeaving() {
			p.unuse(v)
		}
	}
	for _, v := range p.forced {
		if v.Slot == n.slot {
			p.unuse(v)
		}
	}
	for i := range p.wants {
		w := &p.wants[i]
		if need := w.want - (w.of(&n.alloc) - p.used[i]); need > 0 {
			q.Need = append(q.Need, need)
			p.active = append(p.active, i)
		}
	}
	if p.topo != nil {
		p.measureSpread()
	}
	if len(q.Need) == 0 {
		return true
	}
	for _, v := range p.movable {
		for _, i := range p.active {
			freed := int64(0)
			if v.Slot == n.slot {
				freed = p.wants[i].of(&v.class.Request)
			}
			q.Frees = append(q.Frees, freed)
		}
		if p.topo != nil {
			p.freeSpread(v)
		}
	}
	return q.Enough(0)
}

// unuse takes away what a pod that goes in any case uses.
func (p *problem) unuse(v *pod) {
	for i := range p.wants {
		p.used[i] -= p.wants[i].of(&v.class.Request)
	}
}

// holdsPort says whether a pod has a host port that the class wants.
func (p *problem) holdsPort(v *pod) bool {
	return p.class.TakesPortOf(v.class)
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
	u := n.usageFor(c.Priority, &scratch).Toward(c)
	for _, v := range gone {
		u = u.Without(v.class)
	}
	return model.UsageFailures(c, &n.alloc, &u)
}

// count finds the rules that could be broken: every pod that goes spends one of each budget that covers it (PR8). It
// returns false if the forced pods alone break one that must not be.
func (p *problem) count(n *node, budgets Budgets) bool {
	q := &p.solver
	q.Base = victims.None
	for _, v := range p.forced {
		q.Base = q.Base.With(&v.Pod)
		q.Base.Elsewhere = q.Base.Elsewhere || v.Slot != n.slot
	}
	if book, ok := budgets.(*budgetBook); ok && p.topo == nil && !book.limits(n) {
		return true
	}
	p.ofNode = p.ofNode[:0]
	defer p.forgetRules()
	asked := 0
	for _, v := range p.movable {
		of := covering(v, budgets)
		asked += len(of)
		for _, b := range of {
			r := p.ruleOf(b)
			r.pods++
			if !r.Hard || !b.spares(v.obj) {
				r.Members++
			}
		}
	}
	for _, v := range p.forced {
		for _, b := range covering(v, budgets) {
			r := p.ruleOf(b)
			r.pods++
			if r.Hard && b.spares(v.obj) {
				continue
			}
			if r.Allowed--; r.Allowed < 0 {
				if r.Hard {
					p.blocked = append(p.blocked, b)
				}
				q.Base.Violations++
				r.Allowed = 0
			}
		}
	}
	watched := len(p.ofNode) * min(len(p.ofNode), maxWatches) / 4
	p.meter.Spend((len(p.movable) + len(p.forced) + 2*asked + watched) * workBudget)
	for i := range p.ofNode {
		r := &p.ofNode[i]
		r.budget.watch(n.slot, r.pods)
		if r.Members > r.Allowed {
			r.rule = len(q.Rules)
			p.addRule(r.Rule, r.budget)
		}
	}
	if p.blocked != nil {
		return false
	}
	if len(q.Rules) == 0 {
		return true
	}
	for i := 0; i < len(p.movable); i++ {
		under, all := p.under(p.movable[i], budgets)
		if !all {
			p.drop(i)
			i--
			continue
		}
		q.Spends = append(q.Spends, under)
	}
	for _, v := range p.forced {
		under, _ := p.under(v, budgets)
		q.Forces = append(q.Forces, under)
	}
	most := min(len(q.Rules), victims.MaxRules) // pods under further ones do not move
	q.Rules, p.budgets = q.Rules[:most], p.budgets[:most]
	return true
}

func (p *problem) addRule(r victims.Rule, of *Budget) {
	p.solver.Rules, p.budgets = append(p.solver.Rules, r), append(p.budgets, of)
}

// under returns the rules that a pod counts under; false: there are more that it does.
func (p *problem) under(v *pod, budgets Budgets) (rules uint64, all bool) {
	all = true
	for _, b := range covering(v, budgets) {
		r := p.ruleOf(b).rule
		switch {
		case r >= victims.MaxRules:
			all = false
		case r >= 0 && (!p.solver.Rules[r].Hard || !b.spares(v.obj)):
			rules |= 1 << r
		}
	}
	return rules, all
}

// drop takes a pod from those that may go.
func (p *problem) drop(i int) {
	p.movable = slices.Delete(p.movable, i, i+1)
	if dims := len(p.solver.Need); dims > 0 {
		p.solver.Frees = slices.Delete(p.solver.Frees, i*dims, (i+1)*dims)
	}
}

// ruleOf is the rule of a budget for this class.
func (p *problem) ruleOf(b *Budget) *budgetRule {
	if b.asked == 0 {
		allowed := max(b.Allowed, 0)
		rule := victims.Rule{Allowed: allowed, Before: allowed, Hard: p.mustKeep(b)}
		p.ofNode = append(p.ofNode, budgetRule{budget: b, rule: -1, Rule: rule})
		b.asked = int32(len(p.ofNode))
	}
	return &p.ofNode[b.asked-1]
}

// forgetRules ends that budgets have a place among those of the node.
func (p *problem) forgetRules() {
	for i := range p.ofNode {
		p.ofNode[i].budget.asked = 0
	}
}

// mustKeep says whether the class's pods must not violate a budget.
func (p *problem) mustKeep(b *Budget) bool { return p.strict || b.protects(p.class.Priority) }

// hardest are the budgets to be named when no choice keeps the rules.
func (p *problem) hardest() []*Budget {
	var out []*Budget
	for i, r := range p.solver.Rules {
		if r.Hard && p.budgets[i] != nil {
			out = append(out, p.budgets[i])
		}
	}
	return out
}
