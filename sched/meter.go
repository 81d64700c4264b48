package sched

// A step has so much work that it may do, counted and not timed: what is charged is about ten nanoseconds each. What
// does not fit is gone on with in the next step, from where it was left: the structures that it is done in (a board, a
// tree of evictions) keep what they know. So no input makes a step long, and how a pod is decided does not depend on
// where a step ended.
//
// Whoever loops over something that can be long charges it, and stops where out says so if what is left can wait.
type meter struct {
	left int64
	// boundless: a step may take as long as it takes.
	boundless bool
	// charged is called at every charge; tests let it panic.
	charged func()
}

// stepWork is the work of one step: 12 ms by these units, and less than 100 ms where every look misses the processor's
// caches. What cannot be left half done comes on top.
const stepWork = 1_200_000

// The costs of what is done again and again.
const (
	workLook    = 25 // a node's verdict for a class
	workPod     = 6  // a pod that may have to go, looked at
	workTerm    = 2  // a rule between pods, asked for a node or a group
	workGroup   = 2  // a group of nodes, scored
	workNode    = 5  // a node that is passed by
	workBudget  = 2  // a budget of a pod, counted
	workCovered = 60 // a class whose budgets are looked up for the first time
	workReason  = 10 // a reason of a node, counted
	workDecided = 300
	workChange  = 200 // a change of the view
	workCount   = 10  // a count by topology domains (model.Topology.Cost)
	workPort    = 40  // a host port that comes or goes
	workClass   = 50  // a container, when a pod's class is worked out
	workClaims  = 5   // a unit of fsm.View.ClaimsWork
)

// Spend charges work; a nil meter counts none.
func (m *meter) Spend(units int) {
	if m == nil {
		return
	}
	m.left -= int64(units)
	if m.charged != nil {
		m.charged()
	}
}

// take charges what is no part of a decision.
func (m *meter) take(units int) {
	if m != nil {
		m.left -= int64(units)
	}
}

// out says whether the work of the step is used up.
func (m *meter) out() bool { return m != nil && m.left <= 0 && !m.boundless }
