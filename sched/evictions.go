package sched

import (
	"math/bits"

	"github.com/berth-dev/berth/model"
	"github.com/berth-dev/berth/sched/victims"
)

// evictions is what preempting for one class would cost on every node: a tournament tree over the ranks, so that the
// cheapest node is found without looking at the others and only changed nodes are computed again. Equal costs are won
// by the lower rank; from a given rank on, the first node of the lowest cost is found by descending once.
//
// A node that changed gets a bound of its cost, which is quick to compute. Its cost itself is computed when the bound
// is the lowest of all: a node whose bound cannot win is never searched, and what was found stays until the node
// changes.
type evictions struct {
	class *model.Class
	how   preempting
	seen  uint64
	epoch uint64
	// stamp is the judge's as of which the entries are right or dirty, where other pods matter; layout and generation
	// are the judge's and the budgets' for which that is so.
	stamp, layout, generation uint64

	dirty    []int32 // slots to be looked at
	unplayed bool    // all matches are to be decided again when nothing is dirty any more
	behind   bool    // the last question was not answered: the step's work is used up
	meter    *meter

	entries []entry // by slot
	size    int32   // leaves of the tree: a power of two, at least the number of ranks
	winner  []int32 // slot of the cheapest below each tree node, -1 for none; leaves from size on, by rank

	candidates int32
	problem    *problem
	topo       topoProblem
	// open holds, for nodes on which the search reached its limit, a bound of every choice there.
	open map[int32]victims.Cost
	// blocked are the budgets that keep a node from being a candidate.
	blocked     map[int32][]*Budget
	blockedRefs int // in all of them
}

type entry struct {
	cost    victims.Cost // or a bound of it
	fails   model.Failures
	verdict verdict
	exact   bool
	dirty   bool // in evictions.dirty
}

func newEvictions(c *model.Class, how preempting) *evictions {
	return &evictions{class: c, how: how, problem: newProblem(c, how), open: map[int32]victims.Cost{},
		blocked: map[int32][]*Budget{}}
}

// sync brings the tree up to date; the board of the same class must be so already. It returns false if there is more to
// look at than the step's work allows: then it goes on the next time.
func (e *evictions) sync(v *View, b *board, budgets Budgets, m *meter) bool {
	e.meter = m
	if e.epoch != v.ring.epoch {
		e.replant(v)
		m.Spend(len(v.nodes) * workNode)
	}
	e.problem.topo, e.problem.meter, e.problem.solver.Meter = nil, m, m
	if b.topo != nil {
		e.topo.view, e.topo.judge, e.topo.most, e.topo.meter = v, b.topo.judge, int(e.how.otherNodes), m
		e.problem.topo = &e.topo
		e.followRules(v, b, budgets)
	}
	v.since(e.seen, e.soil)
	e.seen = v.log.head()
	e.unplayed = e.unplayed || len(e.dirty) > len(v.nodes)/4
	for len(e.dirty) > 0 {
		if m.out() {
			return false
		}
		last := len(e.dirty) - 1
		slot := e.dirty[last]
		e.dirty = e.dirty[:last]
		e.look(v, b, slot, budgets)
		if !e.unplayed {
			e.play(v.nodes[slot].rank)
		}
	}
	if e.unplayed {
		e.playAll()
		e.unplayed = false
		m.Spend(len(v.nodes))
	}
	return true
}

// soil notes that a node is to be looked at.
func (e *evictions) soil(slot int32) {
	if at := &e.entries[slot]; !at.dirty {
		at.dirty = true
		e.dirty = append(e.dirty, slot)
	}
}

// followRules notes the nodes for which what happened on other nodes matters.
func (e *evictions) followRules(v *View, b *board, budgets Budgets) {
	judge, generation := b.topo.judge, uint64(0)
	if book, ok := budgets.(*budgetBook); ok {
		generation = book.generation
	}
	now := judge.Changed()
	switch {
	case e.layout != judge.Layout() || e.generation != generation:
		e.layout, e.generation, e.seen = judge.Layout(), generation, 0
	case now > e.stamp:
		e.meter.Spend(len(v.nodes) * (workNode + b.terms()*workTerm))
		for slot := range v.nodes {
			if judge.ChangedAt(v.nodes[slot].name) > e.stamp {
				e.soil(int32(slot))
			}
		}
	}
	e.stamp = now
}

// replant builds the tree anew after the ring gave the nodes new ranks.
func (e *evictions) replant(v *View) {
	e.epoch = v.ring.epoch
	for len(e.entries) < len(v.nodes) {
		e.entries = append(e.entries, entry{cost: victims.Impossible, verdict: verdictUnresolvable})
	}
	e.size = 1 << bits.Len32(uint32(max(len(v.nodes)-1, 0)))
	e.winner = make([]int32, 2*e.size)
	for i := range e.winner {
		e.winner[i] = -1
	}
	for rank, slot := range v.ring.slots {
		e.winner[e.size+int32(rank)] = slot
	}
	e.playAll()
}

// playAll decides all matches.
func (e *evictions) playAll() {
	for i := e.size - 1; i > 0; i-- {
		e.winner[i] = e.cheaper(e.winner[2*i], e.winner[2*i+1])
	}
}

func (e *evictions) look(v *View, b *board, slot int32, budgets Budgets) {
	n, at := &v.nodes[slot], &e.entries[slot]
	if at.cost.Possible() {
		e.candidates--
	}
	*at = entry{cost: victims.Impossible, verdict: verdictUnresolvable, exact: true}
	delete(e.open, slot)
	e.block(slot, nil)
	if n.obj == nil {
		return
	}
	if fails := b.failsOn(slot); fails == 0 || !fails.Resolvable() {
		return
	}
	p := e.problem
	e.meter.Spend(workLook + b.terms()*workTerm)
	at.exact = false
	at.cost, at.verdict = p.bound(n, budgets)
	at.fails = p.fails
	if at.verdict == verdictCandidate && e.how.searchLimit == 0 {
		e.settle(at, n, budgets)
	}
	if at.verdict == verdictBlocked {
		e.block(slot, p.blocked)
	}
	if at.cost.Possible() {
		e.candidates++
	}
}

// block notes which budgets keep a node from being a candidate.
func (e *evictions) block(slot int32, by []*Budget) {
	e.blockedRefs += len(by) - len(e.blocked[slot])
	if len(by) == 0 {
		delete(e.blocked, slot)
	} else {
		e.blocked[slot] = by
	}
}

// settle puts a node's cost in the place of its bound; the problem was asked about the node, and is filled for it still
// or again.
func (e *evictions) settle(at *entry, n *node, budgets Budgets) {
	s, ok := e.problem.solve(n, budgets, at.cost)
	slot := n.slot
	at.exact = true
	if !ok {
		at.cost, at.verdict = victims.Impossible, verdictBlocked
		e.block(slot, e.problem.blocked)
	} else {
		at.cost = s.cost
	}
	if !s.minimal && s.known.Possible() {
		e.open[slot] = s.known
	}
}

// search computes the cost of a node that has only a bound.
func (e *evictions) search(v *View, slot int32, budgets Budgets) {
	at := &e.entries[slot]
	e.problem.fill(&v.nodes[slot], budgets)
	e.settle(at, &v.nodes[slot], budgets)
	if !at.cost.Possible() {
		e.candidates--
	}
	e.play(v.nodes[slot].rank)
}

// minimal says whether nobody, on any node, could leave at a lower cost than on the chosen one.
func (e *evictions) minimal(chosen int32) bool {
	// order does not matter: any one of them is enough.
	for _, bound := range e.open {
		if bound.Less(&e.entries[chosen].cost) {
			return false
		}
	}
	return true
}

// cheaper returns the slot of the lower cost, the left one of equals, or -1 if neither is possible.
func (e *evictions) cheaper(left, right int32) int32 {
	if left < 0 || !e.entries[left].cost.Possible() {
		if right >= 0 && e.entries[right].cost.Possible() {
			return right
		}
		return -1
	}
	if right >= 0 && e.entries[right].cost.Less(&e.entries[left].cost) {
		return right
	}
	return left
}

// play decides again the matches on the way from a leaf to the root.
func (e *evictions) play(rank int32) {
	if e.size == 1 {
		return
	}
	for i := (e.size + rank) / 2; i > 0; i /= 2 {
		e.winner[i] = e.cheaper(e.winner[2*i], e.winner[2*i+1])
	}
}

// best returns the slot of the cheapest node, ties broken on the ring from start on; false when preemption helps
// nowhere. The lowest of all bounds is computed exactly until it is a cost: then no other node can be below it.
func (e *evictions) best(v *View, budgets Budgets, start int32) (int32, bool) {
	if len(e.winner) == 0 {
		return 0, false // no node was ever seen
	}
	for e.behind = false; ; {
		root := e.winner[1]
		if root < 0 || !e.entries[root].cost.Possible() {
			return 0, false
		}
		slot := e.first(1, 0, e.size, start, &e.entries[root].cost)
		if slot < 0 {
			slot = root // the leftmost of the equals: the ring goes round
		}
		if e.entries[slot].exact {
			return slot, true
		}
		if e.meter.out() {
			e.behind = true
			return 0, false
		}
		e.search(v, slot, budgets)
	}
}

// first returns the slot of the first leaf at or after rank start whose cost is not above c, or -1. Tree node i covers
// the ranks [low, low+width).
func (e *evictions) first(i, low, width, start int32, c *victims.Cost) int32 {
	w := e.winner[i]
	if low+width <= start || w < 0 || c.Less(&e.entries[w].cost) {
		return -1
	}
	if width == 1 {
		return w
	}
	half := width / 2
	if slot := e.first(2*i, low, half, start, c); slot >= 0 {
		return slot
	}
	return e.first(2*i+1, low+half, half, start, c)
}

// runnerUp returns the node that would be taken if the chosen one were not there.
func (e *evictions) runnerUp(v *View, budgets Budgets, chosen, start int32) (int32, bool) {
	at := &e.entries[chosen]
	kept := at.cost
	at.cost = victims.Impossible
	e.play(v.nodes[chosen].rank)
	slot, ok := e.best(v, budgets, start)
	at.cost = kept
	e.play(v.nodes[chosen].rank)
	return slot, ok
}
