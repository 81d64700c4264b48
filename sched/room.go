package sched

import (
	"cmp"
	"slices"
)

// What the scheduler remembers of classes is bounded by the bytes that it holds. A board and its eviction costs are
// weighed when they have been brought up to date; when all of them hold too much, those that were not asked for longest
// are forgotten, and so are those that nobody has asked for in a long time: their pods are gone. Forgetting costs work
// and changes no decision.

const (
	maxBytes = 192 << 20
	// idleSteps: a board that was not asked for in so many steps is forgotten; sweepSteps is how often they are looked
	// for.
	idleSteps  = 1 << 14
	sweepSteps = 1 << 10

	// Of what there is one of for each board (with the class, its compiled selectors and the judge's part), cell,
	// group, level, entry of the eviction costs, and pod of an obstacle that is remembered.
	boardBytes  = 6 << 10
	cellBytes   = 32
	groupBytes  = 256
	tallyBytes  = 64
	levelBytes  = 128
	costsBytes  = 4 << 10
	entryBytes  = 88
	sightBytes  = 128
	podRefBytes = 8
)

// holds is how many bytes a board holds.
func (b *board) holds() int {
	return boardBytes + cap(b.cells)*cellBytes + len(b.groups)*groupBytes + len(b.hist)*tallyBytes + b.levelBytes +
		cap(b.dirty)*4 + len(b.images.holdings)*(len(b.images.names)*16+64) + b.class.VolumesBytes()
}

// holds is how many bytes eviction costs hold.
func (e *evictions) holds() int {
	blocked := (len(e.open)+len(e.blocked))*sightBytes + e.blockedRefs*podRefBytes
	return costsBytes + cap(e.entries)*entryBytes + cap(e.winner)*4 + cap(e.dirty)*4 + blocked +
		len(e.topo.seen)*sightBytes + e.topo.seenPods*podRefBytes
}

// weigh takes note of what a board and its costs hold, and forgets others if that is too much.
func (s *Scheduler) weigh(b *board) {
	now := b.holds()
	if e, ok := s.costs[b.key]; ok {
		now += e.holds()
	}
	s.bytes += now - b.weight
	b.weight = now
	if s.bytes > s.limit {
		s.forget(func(o *board) bool { return o != b && s.bytes > s.limit/4*3 })
	}
}

// sweep forgets the boards that nobody has asked for in a long time.
func (s *Scheduler) sweep() {
	if s.step%sweepSteps == 0 {
		s.forget(func(o *board) bool { return o.used+idleSteps < s.step })
	}
}

// forget drops boards as long as they may be, those first that were not asked for longest. What the step under way uses
// stays.
func (s *Scheduler) forget(may func(b *board) bool) {
	all := make([]*board, 0, len(s.boards))
	// order does not matter: the boards are sorted below.
	for _, b := range s.boards {
		all = append(all, b)
	}
	slices.SortFunc(all, func(a, b *board) int {
		return cmp.Or(cmp.Compare(a.used, b.used), cmp.Compare(a.key.class, b.key.class),
			cmp.Compare(a.key.rules, b.key.rules), cmp.Compare(a.key.images, b.key.images))
	})
	s.meter.Spend(len(all) * workNode)
	for _, b := range all {
		if may(b) {
			s.drop(b)
		}
	}
}

func (s *Scheduler) drop(b *board) {
	s.bytes -= b.weight
	b.weight = 0
	delete(s.boards, b.key)
	delete(s.costs, b.key)
}

// dropAll forgets all boards.
func (s *Scheduler) dropAll() {
	clear(s.boards)
	clear(s.costs)
	s.bytes = 0
}
