package sched

import (
	"slices"

	"github.com/berth-dev/berth/api/berthv1"
	"github.com/berth-dev/berth/model"
	"github.com/berth-dev/berth/sched/victims"
)

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
	choice
	// waits are pods that are ending anyway and whose room is needed too. They cost nothing and are not evicted again.
	waits []*pod
	// violating are those of the victims whose eviction a budget does not allow.
	violating []*pod
}

// choice is a choice of victims.
type choice struct {
	victims []*pod // most important first
	cost    victims.Cost
	// minimal and known are as in victims.Solution.
	minimal bool
	known   victims.Cost
	// pending are pods that are in the way and leaving already.
	pending []*pod
}

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
	least, v := p.bound(n, budgets)
	if set.verdict = v; v != verdictCandidate {
		set.fails, set.blocked = p.fails, p.blocked
		return set
	}
	var ok bool
	if set.choice, ok = p.solve(n, budgets, least); !ok {
		set.verdict, set.blocked = verdictBlocked, p.blocked
		return set
	}
	if set.cost.Violations > 0 {
		set.violating = p.violators(set.victims, budgets)
	}
	set.waits = append(set.pending, waitsOn(n, p.class, slices.Concat(set.victims, set.pending))...)
	return set
}

// violators are those of the victims that find a budget used up that may be violated, when they go in this order (PR8).
func (p *problem) violators(gone []*pod, budgets Budgets) []*pod {
	var out []*pod
	spent := map[*Budget]int32{}
	for _, v := range gone {
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
	u := n.usageFor(c.Priority, &scratch).Toward(c)
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
		if c.HeldBy(string(v.UID)) || model.UsageFailures(c, &n.alloc, &with) != 0 {
			waits = append(waits, v)
		} else {
			u = with
		}
	}
	return waits
}
