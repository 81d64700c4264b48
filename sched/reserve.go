package sched

import (
	"cmp"
	"math"
	"math/bits"
	"slices"

	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/model"
)

// A large pod can wait for ever beside a stream of small ones: whatever becomes free is taken at once, and there is
// never enough of it in one place. When the first of the blocked pods has been waiting for room for long, the plan
// reserves the node that will have room for it first: what becomes free there is kept, while the other nodes go on as
// before, and pods that surely end in time use the node until then.

// maxBlocked is how many blocked pods are looked at for one that room can be kept for.
const maxBlocked = 64

// reserve makes the reservation, or renews it when half of its time has passed. It may use a quarter of the step's
// work: the blocked pods that it does not come to are looked at in the next step.
func (s *Scheduler) reserve(p *pass, now int64) {
	if !*s.config.Spec.Reservation.Enabled || s.reserving() || s.replaying && s.reserveOnly == "" {
		return
	}
	all := s.meter.left
	s.meter.left = all / 4
	s.tryReserve(p, now)
	p.reserveBehind, s.behind = s.behind, false
	s.meter.left += all - all/4
}

func (s *Scheduler) tryReserve(p *pass, now int64) {
	if r := p.state.Reservation(); r != nil {
		e, ok := p.state.Queue.Get(r.Key())
		if ok && p.state.MayReserve(e, now) &&
			(r.DeadlineUnixNano-now < fsm.ReservationSeconds*nanosPerSecond/2 || s.timeChanged(r, now)) {
			s.reserveFor(p, e, r.Node, now)
		}
		return
	}
	looked, from := 0, s.reserveFrom
	s.reserveFrom = 0
	p.state.Blocked(func(e *fsm.QueueEntry) bool {
		if looked++; looked <= from {
			return true
		}
		if s.replaying && e.Key() != s.reserveOnly {
			return looked < maxBlocked
		}
		s.meter.take(workNode)
		_, assumed := s.assumptions[e.UID]
		done := !assumed && p.state.MayReserve(e, now) && s.ownNomination(e) == nil && s.reserveFor(p, e, "", now)
		switch {
		case done || p.closed:
			return false
		case s.behind: // this pod goes on in the next step
			s.reserveFrom = looked - 1
			return false
		case s.meter.out() && looked < maxBlocked:
			s.behind, s.reserveFrom = true, looked
			return false
		}
		return looked < maxBlocked
	})
}

const nanosPerSecond = 1_000_000_000

// reserving says whether a plan under way makes or renews a reservation.
func (s *Scheduler) reserving() bool {
	return slices.ContainsFunc(s.plans, func(p *Plan) bool { return len(p.Command.Reservations) > 0 })
}

// reserveFor reserves the best node for a pod, the one that it has if that is one still. It says whether there is one.
func (s *Scheduler) reserveFor(p *pass, e *fsm.QueueEntry, held string, now int64) (done bool) {
	if _, is := s.isAside(e, now); is || p.closed {
		return false
	}
	s.attempt(p, e, now, func() { done = s.reserveRoom(p, e, held, now) })
	return done
}

func (s *Scheduler) reserveRoom(p *pass, e *fsm.QueueEntry, held string, now int64) bool {
	c := e.Class()
	if pod, ok := p.state.Pods.Get(e.Key()); ok {
		s.chargeClaims(pod, p.state)
		c = p.state.EffectiveClass(c, pod)
	}
	if !s.prepare(c) {
		return false
	}
	own := s.ownNomination(e)
	if own != nil {
		aside := s.yielding(own)
		s.hide(aside, 1)
		defer s.hide(aside, -1)
	}
	b := s.boardOf(c)
	if s.behind {
		return false
	}
	s.meter.Spend(b.openCost())
	if b.best(s.view, 0); b.fit > 0 {
		return false // it has room, and only has to be tried
	}
	slot := int32(-1)
	if i, ok := s.view.byName[held]; ok && held != "" && s.canBeFreed(b, i) {
		slot = i
	} else {
		slot = s.soonest(b)
	}
	if slot < 0 {
		return false
	}
	n := &s.view.nodes[slot]
	d := fsm.ReserveDecision{Key: e.Key(), UID: string(e.UID), Node: n.name,
		BackfillSeconds: backfillSeconds(freeAt(n, c, own), now)}
	p.plan.Command.Reservations = append(p.plan.Command.Reservations, d)
	p.reserving = newAssumption(e, assumePreempt, n.name)
	p.reserving.backfill = d.BackfillSeconds
	if own != nil && own.Node == n.name {
		p.reserving.made = own.Made
	}
	return true
}

// timeChanged says whether there is more or less time to use the reserved node until it is needed.
func (s *Scheduler) timeChanged(r *fsm.Nomination, now int64) bool {
	slot, ok := s.view.byName[r.Node]
	if !ok {
		return false
	}
	h, ok := s.view.noms[r.UID]
	if !ok || h.placed == nil {
		return false
	}
	return backfillSeconds(freeAt(&s.view.nodes[slot], r.Class(), h.placed), now) != r.BackfillSeconds
}

// backfillMarginSeconds is what a pod that uses the time may take to start and to end, and what a change of leader may
// take.
const backfillMarginSeconds = 10

// backfillSeconds is how long pods may run that use a node until it is free for the pod that it is kept for: a power of
// two, so that it seldom changes; 0 where nobody knows when that will be.
func backfillSeconds(freeAtUnixNano, now int64) int64 {
	left := (freeAtUnixNano-now)/nanosPerSecond - backfillMarginSeconds
	if freeAtUnixNano == math.MaxInt64 || left < 1 {
		return 0
	}
	return 1 << (bits.Len64(uint64(left)) - 1)
}

// canBeFreed says whether nothing but pods that run there keep the class off a node.
func (s *Scheduler) canBeFreed(b *board, slot int32) bool {
	if s.view.nodes[slot].obj == nil {
		return false
	}
	fails := b.failsOn(slot)
	return fails != 0 && fails.Resolvable() && fails&model.TopologyFailures == 0
}

// soonest is the node that will have room for the class first: by the deadlines of the pods there if they have such,
// and else the one where the least is missing; -1 if there is none, which is remembered until a verdict changes: pods
// that no node can ever take may wait for long, and are asked about in every step.
func (s *Scheduler) soonest(b *board) int32 {
	now := b.version(s.view)
	if b.noProspect == now {
		return -1
	}
	s.meter.Spend(len(s.view.nodes) * workLook)
	best, at, missing := int32(-1), int64(math.MaxInt64), int64(math.MaxInt64)
	for slot := range s.view.nodes {
		if !s.canBeFreed(b, int32(slot)) {
			continue
		}
		n := &s.view.nodes[slot]
		s.meter.Spend(len(n.pods) * workPod)
		t, m := freeAt(n, b.class, nil), missingOn(n, b.class)
		if best < 0 || t < at || t == at && (m < missing || m == missing && n.rank < s.view.nodes[best].rank) {
			best, at, missing = int32(slot), t, m
		}
	}
	if best < 0 {
		b.noProspect = now
	}
	return best
}

// freeAt is when the pods on the node that have a deadline have ended and the class fits for it; the end of time if
// their ends are not enough. own is the nomination of the pod that asks, nil if it has none.
func freeAt(n *node, c *model.Class, own *nomination) int64 {
	type end struct {
		at int64
		p  *pod
	}
	var ends []end
	for _, p := range n.pods {
		switch {
		case p.isLeaving():
			ends = append(ends, end{0, p})
		case p.obj != nil && p.obj.Spec.ActiveDeadlineSeconds != nil && p.StartUnixNano != model.NeverStarted:
			ends = append(ends, end{p.StartUnixNano + *p.obj.Spec.ActiveDeadlineSeconds*nanosPerSecond, p})
		}
	}
	if len(ends) == 0 {
		return math.MaxInt64
	}
	slices.SortStableFunc(ends, func(a, b end) int { return cmp.Compare(a.at, b.at) })
	var scratch model.Usage
	u := n.usageFor(c.Priority, &scratch).Toward(c)
	for _, nom := range n.noms {
		if own != nil && (nom == own || nom.YieldsTo(&own.Claim)) {
			u = u.Without(nom.Class)
		}
	}
	for _, e := range ends {
		if u = u.Without(e.p.class); model.UsageFailures(c, &n.alloc, &u) == 0 {
			return e.at
		}
	}
	return math.MaxInt64
}

// missingOn is how much of what the class asks for is missing on a node, in 1024ths of the request, of the resource
// that is the shortest.
func missingOn(n *node, c *model.Class) int64 {
	var scratch model.Usage
	u := n.usageFor(c.Priority, &scratch)
	most := int64(0)
	note := func(want, capacity, used int64) {
		if short := want - (capacity - used); want > 0 && short > 0 {
			most = max(most, model.MulDiv(short, 1024, want))
		}
	}
	note(c.Request.Pods, n.alloc.Pods, u.Requested.Pods)
	note(c.Request.MilliCPU, n.alloc.MilliCPU, u.Requested.MilliCPU)
	note(c.Request.MemoryBytes, n.alloc.MemoryBytes, u.Requested.MemoryBytes)
	note(c.Request.EphemeralStorageBytes, n.alloc.EphemeralStorageBytes, u.Requested.EphemeralStorageBytes)
	for _, r := range c.Request.Scalars {
		note(r.Value, n.alloc.Get(r.Name), u.Requested.Get(r.Name))
	}
	return most
}
