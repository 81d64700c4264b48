package sched

import (
	"math"
	"slices"

	"github.com/berth-dev/berth/model"
)

// cost is what preempting on one node would do, in the order in which nodes are compared (PR10, T3): fewer budgets
// violated, a lower highest victim, a smaller sum of priorities with 2^31 added to each (which makes it the number of
// victims first), fewer victims, and the latest start among the victims of the highest priority.
type cost struct {
	violations int32
	highest    int32
	sum        int64
	count      int32
	start      int64
}

// impossible is the cost of a node where preemption does not help. It compares above every other.
var impossible = cost{violations: math.MaxInt32}

func (c cost) possible() bool { return c.violations != math.MaxInt32 }

func (c *cost) less(d *cost) bool {
	switch {
	case c.violations != d.violations:
		return c.violations < d.violations
	case c.highest != d.highest:
		return c.highest < d.highest
	case c.sum != d.sum:
		return c.sum < d.sum
	case c.count != d.count:
		return c.count < d.count
	}
	return c.start > d.start
}

// decidedBy names the criterion that sets two costs apart.
func (c *cost) decidedBy(d *cost) string {
	switch {
	case c.violations != d.violations:
		return "fewest budget violations"
	case c.highest != d.highest:
		return "lowest highest victim priority"
	case c.count != d.count && c.sum != d.sum:
		return "fewest victims"
	case c.sum != d.sum:
		return "lowest sum of victim priorities"
	case c.start != d.start:
		return "latest start of the highest victims"
	}
	return "hash, all else being equal"
}

// verdict says why preempting on a node does not help.
type verdict uint8

const (
	verdictCandidate    verdict = iota
	verdictUnresolvable         // PR4: removing pods changes nothing
	verdictNoVictims            // nobody there has a lower priority
	verdictStillFails           // PR6: it does not fit even when all of them are gone
)

// victimSet is the outcome of looking for victims on one node.
type victimSet struct {
	verdict verdict
	fails   model.Failures // for verdictStillFails
	cost    cost
	victims []*pod // most important first
	// waits are pods that are ending anyway and whose room is needed too. They cost nothing and are not evicted again.
	waits []*pod
	// violating are those of the victims whose eviction a budget does not allow.
	violating []*pod
}

// offset makes every priority positive, so that one victim more always outweighs any difference of priority within
// ordinary values (T3).
const offset = math.MaxInt32 + 1

// chooseVictims finds who would have to leave a node for a pod of the class: PR6 to PR9. It is the one place where
// victims are chosen; another search only has to return a set that costs less.
//
// Pods that are ending already are neither evicted again nor reprieved: their room is on its way, so nobody else is
// evicted where waiting for them is enough.
func chooseVictims(n *node, c *model.Class, budgets Budgets, into *victimSet) {
	*into = victimSet{victims: into.victims[:0], waits: into.waits[:0], violating: into.violating[:0], cost: impossible}
	from, _ := slices.BinarySearchFunc(n.pods, c.Priority, func(p *pod, priority int32) int {
		if p.priority < priority {
			return 1
		}
		return -1
	})
	lower := n.pods[from:] // PR6: strictly lower
	if len(lower) == 0 {
		into.verdict = verdictNoVictims
		return
	}
	var scratch model.Usage
	u := *n.usageFor(c.Priority, &scratch)
	for _, p := range lower {
		u = u.Without(p.class)
	}
	if into.fails = model.UsageFailures(c, &n.alloc, &u); into.fails != 0 {
		into.verdict = verdictStillFails
		return
	}
	// PR9: those whose eviction would violate a budget are reprieved first, then the others, the most important first.
	violating := violations(lower, budgets)
	reprieve := func(p *pod) bool {
		with := u.With(p.class)
		if model.UsageFailures(c, &n.alloc, &with) != 0 {
			return false
		}
		u = with
		return true
	}
	for i, p := range lower {
		if violating.has(i) && !p.isLeaving() && !reprieve(p) {
			into.violating = append(into.violating, p)
		}
	}
	into.victims = append(into.victims, into.violating...)
	for i, p := range lower {
		if !violating.has(i) && !p.isLeaving() && !reprieve(p) {
			into.victims = append(into.victims, p)
		}
	}
	for _, p := range lower {
		if p.isLeaving() && !reprieve(p) {
			into.waits = append(into.waits, p)
		}
	}
	if len(into.violating) > 0 {
		slices.SortFunc(into.victims, moreImportant) // T4: the first is the highest again
	}
	into.verdict = verdictCandidate
	into.cost = costOf(into.victims, int32(len(into.violating)))
}

func costOf(victims []*pod, violated int32) cost {
	// Where nobody has to be evicted, nothing is lost.
	c := cost{violations: violated, highest: math.MinInt32, start: model.NeverStarted, count: int32(len(victims))}
	for i, p := range victims {
		if i == 0 {
			c.highest = p.priority
		}
		c.sum += int64(p.priority) + offset
		if p.priority == c.highest {
			c.start = min(c.start, p.start)
		}
	}
	return c
}
