package raftnode

import (
	"reflect"
	"sync"

	"github.com/berth-dev/berth/fsm"
)

// pace says how many commands an entry takes, by what they cost: nobody waits for
// an entry that is applied for long. A command tells itself how many things it is
// about (fsm.Weight); what such a thing costs was counted when the last of its kind were
// applied (fsm.Result.Work), and some carry what may be dear (fsm.MostWork).
type pace struct {
	mu   sync.Mutex
	each map[reflect.Type]Cost
}

// Cost is what one of the things costs that a command is about (fsm.Weight), in
// units of work, as far as is known. It rises at once and falls slowly.
type Cost int64

const (
	// UsualCost is the one as long as nothing is known.
	UsualCost Cost = 250
	// leastCost is what it does not fall below, however many were cheap: the next
	// of the kind may be dear.
	leastCost Cost = 150
)

// After is the cost when so many things have cost so much.
func (c Cost) After(weight int, work int64) Cost {
	found := max(leastCost, Cost(work/int64(max(weight, 1))))
	if found < c {
		return c - (c-found+forget-1)/forget
	}
	return found
}

const (
	// entryWork is what the commands of an entry may cost, in units of 25 to
	// 100 nanoseconds. A single command may cost more.
	entryWork = 250_000
	// forget is by which part the cost of a kind falls towards what was found.
	forget = 8
)

func newPace() *pace { return &pace{each: map[reflect.Type]Cost{}} }

// load is what a command is about to cost.
type load struct {
	kind   reflect.Type
	weight int64
	most   int64 // by what it carries
}

func loadOf(c fsm.Command) load {
	return load{reflect.TypeOf(c), int64(fsm.Weight(c)), fsm.MostWork(c)}
}

// expect is what commands will cost, as far as is known.
func (p *pace) expect(ls ...load) (work int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, l := range ls {
		work += max(l.weight*int64(p.of(l.kind)), l.most)
	}
	return work
}

func (p *pace) of(kind reflect.Type) Cost {
	if each, ok := p.each[kind]; ok {
		return each
	}
	return UsualCost
}

// learn is told what came of a command. What a plan did not look at cost nothing, and a
// command that was refused says nothing of those that will not be.
func (p *pace) learn(l load, r fsm.Result) {
	if r.Refused() && r.Work < l.weight*int64(UsualCost) {
		return
	}
	weight := int(l.weight)
	if r.Plan != nil {
		weight = r.Plan.Weight
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.each[l.kind] = p.of(l.kind).After(weight, r.Work)
}
