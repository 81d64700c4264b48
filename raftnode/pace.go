package raftnode

import (
	"reflect"
	"sync"

	"github.com/berth-dev/berth/fsm"
)

// pace says how many commands an entry takes, by what they cost: nobody waits for
// an entry that is applied for long. A command tells itself how many things it is
// about (fsm.Weight); what such a thing costs was counted when the last of its kind were
// applied (fsm.Result.Work). It rises at once and falls slowly.
type pace struct {
	mu   sync.Mutex
	each map[reflect.Type]int64 // units for one thing
}

const (
	// entryWork is what the commands of an entry may cost, in units of 25 to
	// 100 nanoseconds. A single command may cost more.
	entryWork = 250_000
	// usualWork is what one thing costs as long as nothing is known of its kind.
	usualWork = 250
	// forget is by which part the cost of a kind falls towards what was found.
	forget = 8
)

func newPace() *pace { return &pace{each: map[reflect.Type]int64{}} }

// load is what a command is about to cost.
type load struct {
	kind   reflect.Type
	weight int64
}

func loadOf(c fsm.Command) load { return load{reflect.TypeOf(c), int64(fsm.Weight(c))} }

// expect is what commands will cost, as far as is known.
func (p *pace) expect(ls ...load) (work int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, l := range ls {
		work += l.weight * p.of(l.kind)
	}
	return work
}

func (p *pace) of(kind reflect.Type) int64 {
	if each, ok := p.each[kind]; ok {
		return each
	}
	return usualWork
}

// learn is told what a command has cost.
func (p *pace) learn(l load, work int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	each, found := p.of(l.kind), work/l.weight
	if found < each {
		found = each - (each-found+forget-1)/forget
	}
	p.each[l.kind] = found
}
