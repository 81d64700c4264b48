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
	seen     glimpse // of the step under way
	view     *View
	revision int64    // of the state, up to which the view is right
	loading  *loading // nil: the view is all there
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
	spoilt    bool // a decision panicked: the view is to be built anew
	lost      bool // the feed does not reach back to the view's revision

	faulty     map[rowName]faulty // rows that made the view panic
	faultyNext int64              // when those are to be looked at; 0: there is nothing
	rebuilds   int                // because of such rows, until then
	// taking is called with every row that the view takes in, and with the class of a pod of which it takes in nothing but the
	// room; tests let it panic.
	taking func(row any)

	asides map[string]aside        // by Class.Signature
	lists  map[fsm.VolumeList]bool // that were charged
	panics []Panic

	// DecideAgain takes from the record what may have hung on how much work the steps before had done.
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

	assumptions []*assumption // not retracted yet
	settled     bool
	settledAt   int64 // the revision that shows the outcome
}

// New returns a scheduler for the pods that wait in a state.
func New(state *fsm.State) *Scheduler {
	s := &Scheduler{
		state: state, stepWork: stepWork, limit: maxBytes,
		boards: map[boardKey]*board{}, costs: map[boardKey]*evictions{},
		assumptions: map[types.UID]*assumption{}, evicting: map[types.UID]int32{}, unsettledSlots: map[int32]struct{}{},
		unsettledClasses: map[*model.Class]int32{}, asides: map[string]aside{}, disputes: map[types.UID]dispute{},
	}
	s.book = newBudgetBook()
	s.book.meter = &s.meter
	return s
}

// Unsettled is the number of plans that were made and not settled.
func (s *Scheduler) Unsettled() int {
	n := 0
	for _, p := range s.plans {
		if !p.settled {
			n++
		}
	}
	return n
}

// Behind says whether the last Step had to stop because of the work that it took: the next one goes on with it, on the
// same state and at the same time, and is to be called at once.
func (s *Scheduler) Behind() bool { return s.behind }

// Settle ends a plan. The state that New was given must have applied the plan's entry before, if it was committed:
// then every decision that was carried out is in the state already, and one that was refused is undone here and its pod
// tried again. A plan that was not committed, or whose fate is unknown, is settled in the same way. The next Step that
// looks at a state of now does so.
func (s *Scheduler) Settle(p *Plan) {
	if !p.settled && slices.Contains(s.plans, p) {
		p.settled, p.settledAt = true, s.state.View().Revision()
	}
}

// boardKey tells apart the classes that find different things on a node.
type boardKey struct {
	class  string // Class.Shape
	rules  string // model.Judge.Likeness: what the class sees of other pods
	images string // Class.ImageSet where a node holds any of the images
}

// prepare makes ready what a class has to know of other pods. It returns false, and the step is behind, if that is more
// than the step's work allows.
func (s *Scheduler) prepare(c *model.Class) bool {
	ready := s.view.topo.Prepare(c, func() bool {
		s.chargeView(0)
		return s.meter.out()
	})
	s.chargeView(0)
	s.behind = s.behind || !ready
	return ready
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
	s.chargeView(0)
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
	if !s.book.flush(s.view) {
		s.behind = true
		return nil
	}
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
