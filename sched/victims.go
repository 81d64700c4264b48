package sched

import (
	"math"
	"slices"

	"github.com/berth-dev/berth/api/berthv1"
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
	others     bool // has victims on other nodes: of two that are equal in all else the other one
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
	if c.start != d.start {
		return c.start > d.start
	}
	return !c.others && d.others
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
	case c.others != d.others:
		return "no victims on other nodes"
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
	verdictBlocked              // a budget that must not be violated forbids it (PD13)
)

// victimSet is who has to leave a node.
type victimSet struct {
	verdict verdict
	fails   model.Failures // for verdictStillFails
	blocked []*Budget      // for verdictBlocked
	solution
	// waits are pods that are ending anyway and whose room is needed too. They cost nothing and are not evicted again.
	waits []*pod
	// violating are those of the victims whose eviction a budget does not allow.
	violating []*pod
}

// offset makes every priority positive, so that one victim more always outweighs any difference of priority within
// ordinary values (T3).
const offset = math.MaxInt32 + 1

// preempting is what the configuration says of preemption.
type preempting struct {
	config      *berthv1.PreemptionConfiguration
	searchLimit int32
	otherNodes  int32
}

func preemptingOf(c *berthv1.SchedulerConfiguration) preempting {
	p := &c.Spec.Preemption
	return preempting{config: p, searchLimit: *p.SearchLimit, otherNodes: *p.MaxOtherNodes}
}

// chooseVictims finds who has to leave a node for a pod of the problem's class, at the least cost.
func (p *problem) chooseVictims(n *node, budgets Budgets) victimSet {
	var set victimSet
	least, v := p.ask(n, budgets)
	if set.verdict = v; v != verdictCandidate {
		set.fails, set.blocked = p.fails, p.blocked
		return set
	}
	var ok bool
	if set.solution, ok = p.answer(n, budgets, least); !ok {
		set.verdict, set.blocked = verdictBlocked, p.blocked
		return set
	}
	if set.cost.violations > 0 {
		set.violating = p.violators(set.victims, budgets)
	}
	set.waits = append(set.pending, waitsOn(n, p.class, slices.Concat(set.victims, set.pending))...)
	return set
}

// violators are those of the victims that find a budget used up that may be violated, when they go in this order (PR8).
func (p *problem) violators(victims []*pod, budgets Budgets) []*pod {
	var out []*pod
	spent := map[*Budget]int32{}
	for _, v := range victims {
		violates := false
		for _, b := range covering(v, budgets) {
			spent[b]++
			violates = violates || spent[b] > b.Allowed && !p.mustKeep(b)
		}
		if violates {
			out = append(out, v)
		}
	}
	return out
}

// waitsOn returns the pods of lower priority that are leaving the node already and whose room is needed beside that of
// those who go anyway.
func waitsOn(n *node, c *model.Class, gone []*pod) []*pod {
	lower := lowerOn(n, c.Priority)
	var scratch model.Usage
	u := *n.usageFor(c.Priority, &scratch)
	leaving := false
	for _, v := range lower {
		if going := slices.Contains(gone, v); going || v.isLeaving() {
			u = u.Without(v.class)
			leaving = leaving || !going
		}
	}
	if !leaving {
		return nil
	}
	var waits []*pod
	for _, v := range lower {
		if !v.isLeaving() || slices.Contains(gone, v) {
			continue
		}
		with := u.With(v.class)
		if model.UsageFailures(c, &n.alloc, &with) != 0 {
			waits = append(waits, v)
		} else {
			u = with
		}
	}
	return waits
}

func costOf(victims []*pod, violated int32) cost {
	// Where nobody has to be evicted, nothing is lost.
	c := cost{violations: violated, highest: math.MinInt32, start: model.NeverStarted}
	for _, v := range victims {
		c = c.with(v)
	}
	return c
}

// with is the cost with one more victim, no rule looked at.
func (c cost) with(v *pod) cost {
	switch {
	case v.priority > c.highest:
		c.highest, c.start = v.priority, v.start
	case v.priority == c.highest:
		c.start = min(c.start, v.start)
	}
	c.sum += weight(v)
	c.count++
	return c
}
