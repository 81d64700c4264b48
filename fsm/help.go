package fsm

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/model"
	"github.com/berth-dev/berth/queue"
	"github.com/berth-dev/berth/usage"
)

// help answers for one node, as it is now, whom it has room for.
type help struct {
	view  *live
	node  *corev1.Node
	offer *model.Resources
	// sums are what the pods and nominations of at least a priority use; made when
	// first asked for.
	sums   usage.Sums
	summed bool
	// before is the node as it was, with what it offered then, where only those
	// are of interest whom a change of the node helps; else nil.
	before      *corev1.Node
	offerBefore *model.Resources
	woken       map[string]bool // groups that need not be asked
}

func newHelp(v *live, n *corev1.Node) *help {
	return &help{view: v, node: n, offer: v.usage.Offer(n.Name)}
}

// room is how many pods of the group the node could take, with or without
// evicting pods of lower priority.
func (h *help) room(tx *Tx, g queue.Group, evicting bool) int {
	n, bars := h.roomBeside(tx, g, evicting)
	if bars != 0 && !(evicting && bars.Resolvable() && h.view.MayEvict(g.Class)) {
		return 0
	}
	return n
}

// roomBeside is room if it were not for the rules between pods, and those that
// keep all of the group off the node.
func (h *help) roomBeside(tx *Tx, g queue.Group, evicting bool) (pods int, bars model.Failures) {
	c, rules := g.Class, ruled{}
	tx.waking(func() { rules = h.view.ruledGroup(&g) })
	u := h.usage(c, evicting)
	tx.work.Charge(2 * h.view.askCost(rules, h.node)) // of the node as it was, too
	if evicting {
		rules = h.beyondHolders(rules)
	}
	if !rules.fits(h.node, h.offer, u) {
		return 0, 0
	}
	n := h.offer.Pods - u.Requested.Pods
	fits := func(asked, has int64) {
		if asked > 0 {
			n = min(n, has/asked)
		}
	}
	fits(c.Request.MilliCPU, h.offer.MilliCPU-u.Requested.MilliCPU)
	fits(c.Request.MemoryBytes, h.offer.MemoryBytes-u.Requested.MemoryBytes)
	n = max(n, 1)
	bars = h.bars(tx, g, rules)
	if rules.class.HasHardTopology() {
		n = 1 // each may be in the next one's way; whoever finds a place wakes the next
	}
	return int(n), bars
}

// bars are the rules between pods that keep all of the group off the node. When
// an entry has asked for the rules of many groups, nobody is barred: those who
// are woken in vain find that out.
func (h *help) bars(tx *Tx, g queue.Group, rules ruled) model.Failures {
	if !rules.class.HasHardTopology() && (!h.view.usage.KeepAway() || !g.Alike()) {
		return 0
	}
	if !tx.work.MayJudge(g.Key, func() int { return h.view.JudgeCost(rules.class) }) {
		return 0
	}
	f := h.view.judge(rules).Fails(h.node.Name)
	if !g.Alike() {
		f = f.ByItself()
	}
	return f
}

// SinceHoldersGiveWay is the LogVersion from which on a claim that one pod at a time may use counts as free for a pod that
// may evict whoever uses it.
const SinceHoldersGiveWay = 24

// beyondHolders is the class as it would be without those whom it may evict from its claims.
func (h *help) beyondHolders(rules ruled) ruled {
	if h.view.Version() < SinceHoldersGiveWay || !h.view.MayEvict(rules.class) {
		return rules
	}
	return ruled{rules.class.WithoutHoldersBelow(rules.class.Priority)}
}

// usage is what a pod of the class must leave alone on the node: everything
// there, or, if it may evict, what has at least its priority.
func (h *help) usage(c *model.Class, evicting bool) *model.Usage {
	if evicting && !c.NeverPreempts && *h.view.SchedulerConfig().Spec.Preemption.Enabled {
		return h.usageFrom(c.Priority)
	}
	u := h.view.taken(h.node.Name, c, "")
	return &u
}

// usageFrom is what the pods and nominations of at least this priority use, for
// the briefest of pods: it only sorts out those who surely have no room.
func (h *help) usageFrom(priority int32) *model.Usage {
	if !h.summed {
		h.sums, h.summed = h.view.usage.Sums(h.node.Name, briefest), true
	}
	return h.sums.From(priority)
}

// briefest is the least bound of a pod's time, in seconds.
const briefest = 1

// hasRoomFor says whether a nominated pod fits its node as things are.
func (h *help) hasRoomFor(n *Nomination) bool {
	h.view.billNominees(n.Node)
	u := h.view.usage.Taken(n.Node, n.Priority, n.Class().RunsAtMostSeconds, n.Key())
	rules := h.view.ruledClassOf(n.Key(), n.Class())
	h.view.billUnits(h.view.askCost(rules, h.node))
	return rules.fits(h.node, h.offer, &u) && len(h.view.barredFrom(rules, n.Node, n.Key(), nil)) == 0
}

// couldEvictFor says whether a nominated pod may fit its node if pods of lower
// priority go.
func (h *help) couldEvictFor(n *Nomination) bool {
	if !h.view.MayEvict(n.Class()) {
		return false
	}
	h.view.billNominees(n.Node)
	u := h.view.usage.TakenFrom(n.Node, n.Priority, n.Class().RunsAtMostSeconds, n.Key())
	rules := h.beyondHolders(h.view.ruledClassOf(n.Key(), n.Class()))
	h.view.billUnits(h.view.askCost(rules, h.node))
	return rules.fits(h.node, h.offer, &u) && !slices.ContainsFunc(h.view.barredFrom(rules, n.Node, n.Key(), nil), func(r model.Reason) bool {
		return !r.Kind.Resolvable()
	})
}

// freeOfOwn are those pods that wait, are nominated to some node, and are kept
// off this one by no rule between pods once their own nominations are left out.
// When nothing is left to spend on finding out it is all of them.
func (h *help) freeOfOwn(tx *Tx, g queue.Group, waiting []*QueueEntry) []*QueueEntry {
	rules := h.view.ruledGroup(&g)
	if !h.view.mayAsk(rules) {
		return waiting
	}
	return slices.DeleteFunc(waiting, func(e *QueueEntry) bool {
		if tx.work.Over() {
			return false
		}
		tx.work.Look()
		barred := false
		tx.waking(func() { barred = len(h.view.barredFrom(rules, h.node.Name, e.Key(), nil)) > 0 })
		return barred
	})
}
