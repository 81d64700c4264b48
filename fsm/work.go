package fsm

// What an entry costs is counted, in units of 25 to 100 nanoseconds (measured,
// see docs/benchmarks.md): in what is done and not in time, so that every server
// counts the same. Three ask for it. An entry does only so much to wake others,
// and the next ones go on with it (queue.Work). A plan whose decisions cost too much has the rest of
// them refused, and they are made again. And a leader that finds a kind of
// command dear puts fewer of them into an entry (Result.Work).
const (
	costChange   = 80  // to store a row, with its indexes
	costClass    = 200 // to work out what a pod asks for
	costReorder  = 60  // to give an entry another place in the queue
	costDecision = 150 // to look at a decision, whatever becomes of it
	costObject   = 20  // to look whether an object is garbage
	bytesPerUnit = 50  // of what is only kept

	// countsPerUnit are the steps of model.Topology.Work that cost a unit.
	countsPerUnit = 3

	// MaxPlanWork is what the decisions of one plan may cost.
	MaxPlanWork = 450_000
)

// work is what was done to the state so far.
func (v *live) work() int64 {
	return v.cache.work + v.budgets.Work() + v.countWork()
}

// countWork is what the counters of rules between pods did so far.
func (v *live) countWork() int64 {
	if t := v.cache.topology; t != nil {
		return t.Work() / countsPerUnit
	}
	return 0
}

// spent is what the entry under way has cost so far.
func (tx *Tx) spent() int64 {
	return max(0, tx.view.work()-tx.began) + int64(tx.work.Spent()) - tx.judged
}

// judging calls f, and charges what it has the counters do to the waking.
func (tx *Tx) judging(f func()) {
	before := tx.view.countWork()
	f()
	did := max(0, tx.view.countWork()-before)
	tx.work.Charge(int(did))
	tx.judged += did
}
