package sched

import (
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/api/berthv1"
	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/model"
)

// Scheduler makes plans for the pods that wait in a state. It is for one goroutine. Its memory of the state is built on
// the first Step and then follows the change feed.
type Scheduler struct {
	state    *fsm.State
	view     *View
	revision int64 // of the state, up to which the view is right
	book     *budgetBook
	budgets  Budgets // other ones, in tests; nil: those of the book

	boards map[boardKey]*board
	costs  map[boardKey]*evictions
	bytes  int // what they hold together, as they were weighed last
	limit  int // of bytes

	config   *berthv1.SchedulerConfiguration // of which profiles and boards are
	profiles map[string]*profile             // by scheduler name

	plans            []*Plan // unsettled, oldest first
	assumptions      map[types.UID]*assumption
	evicting         map[types.UID]int32
	unsettledSlots   map[int32]struct{}     // slots with unsettled decisions
	unsettledClasses map[*model.Class]int32 // how many unsettled decisions are about pods of a class

	made      int64      // plans so far
	how       preempting // as the configuration has it
	step      uint64
	stepStart uint64 // position of the log when the step began
	meter     meter  // of this step
	stepWork  int64  // what a step may charge it
	heldSince int64  // time of the step since which some failure has been held back; 0: none
	draining  bool
	behind    bool // the last step ended before it was through
	broken    bool // the view was being changed when something panicked

	asides map[string]aside // by Class.Signature
	panics []Panic

	// A replay takes from the log what may have hung on how much work the steps before had done.
	replaying   bool
	given       map[types.UID]*fsm.SetAside // pods that are set aside
	reserveOnly string                      // the pod that room is kept for; "": none
	reserveFrom int                         // blocked pods that were looked at in the steps before this one

	disputes      map[types.UID]dispute
	disagreements []Disagreement
	rereads       []*assumption // decisions that were refused twice
	reload        bool          // one was refused again
	reloadedAt    int64
}

// Plan is what one Step decided. Command is to be proposed; when its outcome is known, or known to stay unknown, the
// plan must be given to Settle. Command must not be changed.
type Plan struct {
	Command *fsm.ApplyPlan
	// Decisions is the number of pods that Command decides about, Weight that of those and their victims (fsm.Weight).
	Decisions, Weight int

	assumptions []*assumption
}

// New returns a scheduler for the pods that wait in a state.
func New(state *fsm.State) *Scheduler {
	return &Scheduler{
		state: state, book: newBudgetBook(), stepWork: stepWork, limit: maxBytes,
		boards: map[boardKey]*board{}, costs: map[boardKey]*evictions{},
		assumptions: map[types.UID]*assumption{}, evicting: map[types.UID]int32{}, unsettledSlots: map[int32]struct{}{},
		unsettledClasses: map[*model.Class]int32{}, asides: map[string]aside{}, disputes: map[types.UID]dispute{},
	}
}

// Unsettled is the number of plans that were made and not settled.
func (s *Scheduler) Unsettled() int { return len(s.plans) }

// Behind says whether the last Step had to stop because of the work that it took: the next one goes on, and is to be
// called at once.
func (s *Scheduler) Behind() bool { return s.behind }

// Settle ends a plan. The state that New was given must have applied the plan's entry before, if it was committed:
// then every decision that was carried out is in the state already, and one that was refused is undone here and its pod
// tried again. A plan that was not committed, or whose fate is unknown, is settled in the same way.
func (s *Scheduler) Settle(p *Plan) {
	i := slices.Index(s.plans, p)
	if i < 0 {
		return
	}
	s.follow()
	s.plans = slices.Delete(s.plans, i, i+1)
	s.broken = true
	for _, f := range p.assumptions {
		s.retract(f)
	}
	s.broken = false
}

// boardKey tells apart the classes that find different things on a node.
type boardKey struct {
	class  string // Class.Shape
	rules  string // model.Judge.Likeness: what the class sees of other pods
	images string // Class.ImageSet where a node holds any of the images
}

// boardOf returns the class's board, up to date unless the step is behind.
func (s *Scheduler) boardOf(c *model.Class) *board {
	p := s.profileOf(c)
	judge := s.view.topo.Judge(c)
	key := boardKey{class: c.Shape, rules: judge.Likeness()}
	if p.images != 0 && s.view.images.anyHeld(c) {
		key.images = c.ImageSet
	}
	b, ok := s.boards[key]
	if !ok {
		b = newBoard(key, c, p)
		if key.rules != "" {
			b.topo = &topoView{class: c, hardWeight: int64(*s.config.Spec.HardPodAffinityWeight)}
		}
		s.boards[key] = b
	}
	if b.topo != nil {
		b.topo.see(s.view.topo, c, key.rules)
	}
	b.used = s.step
	s.refresh(b)
	s.weigh(b)
	return b
}

func (s *Scheduler) refresh(b *board) {
	if s.view.ring.stale {
		s.view.ring.rebuild(s.view.nodes)
	}
	if !b.sync(s.view, &s.meter) {
		s.behind = true
	}
}

// costsOf returns the class's eviction costs, up to date unless the step is behind; b is the class's board.
func (s *Scheduler) costsOf(b *board) *evictions {
	s.book.flush(s.view)
	e, ok := s.costs[b.key]
	if !ok || e.how != s.how {
		e = newEvictions(b.class, s.how)
		s.costs[b.key] = e
	}
	if !e.sync(s.view, b, s.budgetsNow(), &s.meter) {
		s.behind = true
	}
	s.weigh(b)
	return e
}

// budgetsNow are the disruption budgets that count.
func (s *Scheduler) budgetsNow() Budgets {
	if s.budgets != nil {
		return s.budgets
	}
	return s.book
}
