package queue

// What an entry of the log does to wake others is bounded, in the units in which
// its cost is counted (fsm/work.go), so that it takes less than ten milliseconds:
// what does not fit is remembered in rows, and done by the entries that follow.
// The scheduler sees to it that there are such.
const (
	maxWork  = 100_000
	costLook = 10  // to look for a group
	costAsk  = 10  // to ask whether a group is helped
	costWake = 200 // to wake a pod
	costSort = 60  // to give an entry its place in another order
	// maxMissedWork bounds what an entry looks for that its decisions missed.
	maxMissedWork = 2 * maxWork
)

// Work is what an entry of the log has spent on waking. Its zero value is
// nothing. Where an entry stops is a rule of the state machine, so that whatever
// is charged must follow from the tables alone: never from what a server has
// worked out before, which one that was restored a moment ago has not.
type Work struct {
	spent   int
	judged  map[string]bool // the groups for whose rules the counters were asked
	granted bool
}

// Grant gives an entry that has spent all a little more, once: what is pending goes on in every entry, whatever else goes on.
func (w *Work) Grant() {
	if w.Over() && !w.granted {
		w.spent, w.granted = maxWork-maxWork/8, true
	}
}

// Over says whether nothing is left to spend.
func (w *Work) Over() bool { return w.spent >= maxWork }

// HalfOver says whether half is spent. What was left to do of changes of the
// configuration and of budgets goes on until then, at the beginning of an entry:
// the rest is for waking.
func (w *Work) HalfOver() bool { return w.spent >= maxWork/2 }

// LeftOfHalf is how much of the half is left.
func (w *Work) LeftOfHalf() int { return max(0, maxWork/2-w.spent) }

// Charge charges what was counted, from the tables alone.
func (w *Work) Charge(units int) { w.spent += units }

// Wake charges the waking of one pod.
func (w *Work) Wake() { w.Charge(costWake) }

// Ask charges a question about one group.
func (w *Work) Ask() { w.Charge(costAsk) }

// Spent is what was charged so far.
func (w *Work) Spent() int { return w.spent }

// Look charges the search for something that is pending.
func (w *Work) Look() { w.Charge(costLook) }

// MayJudge says whether the counters may be asked about a group. The first time
// they may have to count whom its rules are about (cost), and are charged for
// that whether they know it or not. Who may not be asked about counts as helped,
// and so does who can not be asked about yet (a cost below 0).
func (w *Work) MayJudge(group string, cost func() int) bool {
	if w.judged[group] {
		return true
	}
	if w.Over() {
		return false
	}
	units := cost()
	if units < 0 {
		return false
	}
	if w.judged == nil {
		w.judged = map[string]bool{}
	}
	w.judged[group] = true
	w.Charge(units)
	return true
}

// Pending is what an entry of the log had no time for.
type Pending struct {
	// Scope is what a sweep means; nil where a node is to be looked at.
	Scope *Scope `msgpack:"scope,omitempty"`
	// From is the key to go on from: of the groups, or of what is gone through.
	From string `msgpack:"from"`
	// Again: when all from there on is done, it begins once more. Something new was meant while it was under way.
	Again bool `msgpack:"again,omitempty"`
	// Order is the order by which the queue goes until all of it is in another.
	Order *Order `msgpack:"order,omitempty"`
}

// Keys of what is pending.
const (
	PendingSweep = "sweep"
	PendingNodes = "node/" // by name
	// PendingOrder: entries of the queue are given their place in another order;
	// those up to From have it.
	PendingOrder = "order"
	// PendingLeave: those whose scheduler has no profile any more leave the queue;
	// those before From have left. PendingJoin: those whose scheduler has one now
	// enter it.
	PendingLeave = "leave"
	PendingJoin  = "join"
	// PendingBudgets, by key: the pods are counted that a disruption budget covers;
	// those up to From are.
	PendingBudgets = "budget/"
	// PendingCount: pods are counted that rules are about; From is which rules.
	PendingCount = "count"
)

// MaxPending is how many nodes that are pending are looked at in one entry.
const MaxPending = maxWork / costLook
