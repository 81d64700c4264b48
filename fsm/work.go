package fsm

import "github.com/berth-dev/berth/model"

// What an entry costs is counted, in units of work of 25 to 100 nanoseconds each
// (measured, see docs/benchmarks.md): in what is done and not in time. Three ask for it, in
// two ways. What an entry does is a rule, and all servers must stop at the same
// place, so that is counted from the tables alone: an entry does only so much to
// wake others, and the next ones go on with it (queue.Work); a plan whose decisions
// cost too much has the rest of them refused, and they are made again (billed).
// And a leader that finds a kind of command dear puts fewer of them into an entry
// (Result.Work): that is what was really done, and differs between servers.
const (
	costChange   = 60  // to store a row, with its indexes
	costClass    = 200 // to work out what a pod asks for
	costAsked    = 40  // and for each condition that it has for a node object
	costOther    = 20  // and for each that it has for other pods
	costLabel    = 12  // and for each of its labels, by which it is looked for, too
	costJoin     = 200 // to let a pod into the queue
	costLeave    = 200 // to let one out, and once more to take back what was promised to it
	costDecision = 120 // to look at a decision, whatever becomes of it
	costWithout  = 200 // to see what would be without a pod
	costLooked   = 1   // to look whether a nomination is minded
	costYield    = 20  // to see what would be without one
	costName     = 10  // to find that a name is taken
	costObject   = 20  // to look whether an object is garbage
	costVictim   = 4   // to strike one of the victims of a nomination, for each that it has
	costVolume   = 40  // to work out from which nodes a volume can be reached, for each claim
	costPort     = 2   // to change what is used of a node's host ports by one; and one more for each portsPerUnit of these
	// costForbidding is to say why a budget does not let a pod go.
	costForbidding = 30
	bytesPerUnit   = 50 // of what is only kept
	portsPerUnit   = 8192

	// asksPerUnit are the conditions for a node object that a class has, and the taints
	// that it is compared with, that cost a unit.
	asksPerUnit = 10

	// countsPerUnit are the steps of model.Topology.Cost that cost a unit.
	countsPerUnit = 3

	// MaxPlanWork is what the decisions of one plan may cost.
	MaxPlanWork = 450_000
	// maxManyWork is what a command may cost that does one thing to many pods and is
	// proposed again for those that are left.
	maxManyWork = 250_000
)

// workOfClass is what it costs to work out a class with so many conditions for a node, so many for other pods, and so many labels.
func workOfClass(asks, others, labels int) int64 {
	return int64(costClass + asks*costAsked + others*costOther + labels*costLabel)
}

// work is what was done to the state so far. What is worked out once and kept is
// in it when it is worked out: two servers may count differently, and nothing
// that an entry does may depend on it.
func (v *live) work() int64 {
	return v.cache.work + v.budgets.Work() + v.quotas.Work() + v.countWork()
}

// countWork is what the counters of rules between pods did so far.
func (v *live) countWork() int64 {
	if t := v.cache.counters.topology; t != nil {
		return t.Cost() / countsPerUnit
	}
	return 0
}

// spent is what the entry under way has cost so far, for whoever proposes.
func (tx *Tx) spent() int64 {
	return max(0, tx.view.work()-tx.began) + int64(tx.work.Spent())
}

// bill is what the decisions of the entry under way cost as the tables say it:
// the same on every server, whatever it has worked out before.
type bill struct {
	units  int
	judged map[string]bool // classes, by signature
	lists  map[VolumeList]bool
	// claimsWait: the plan under way has no time for more claims.
	claimsWait bool
}

// billJudge charges that the counters are asked about a class: the first time they
// may have to count whom its rules are about.
func (v *live) billJudge(c *model.Class) {
	b := v.bill
	if b == nil || b.judged[c.Signature] {
		return
	}
	if b.judged == nil {
		b.judged = map[string]bool{}
	}
	b.judged[c.Signature] = true
	b.units += max(0, v.JudgeCost(c))
}

func (v *live) billUnits(units int) {
	if v.bill != nil {
		v.bill.units += units
	}
}

// SinceNomineesCounted is the LogVersion from which on it costs something to look at who is nominated to a node.
const SinceNomineesCounted = 29

// billNominees charges what it costs to find out what those who are nominated to a node take from it.
func (v *live) billNominees(node string) {
	if v.Version() >= SinceNomineesCounted {
		v.billUnits(v.usage.Nominees(node) * costLooked)
	}
}

// taken is what a pod of a class finds taken on a node (usage.Index.Taken), and what that costs.
func (v *live) taken(node string, c *model.Class, self string) model.Usage {
	v.billNominees(node)
	return v.usage.Taken(node, c.Priority, c.RunsAtMostSeconds, self)
}

// billVolumes charges what it may cost to find out what a pod's claims ask, whether it is known or not, by the rules before
// SinceClaimsCounted (billClaims).
func (v *live) billVolumes(r ruled) {
	if v.Version() < SinceClaimsCounted {
		v.billUnits(r.class.VolumesLookedAt() * costVolume)
	}
}

// waking calls f, and charges to the waking what it bills.
func (tx *Tx) waking(f func()) {
	before := tx.bill.units
	f()
	tx.work.Charge(tx.bill.units - before)
	tx.bill.units = before
}

// billed is what the entry has cost as every server counts it.
func (tx *Tx) billed() int {
	return tx.bill.units + len(tx.Changes())*costChange + int(tx.view.budgets.Work()+tx.view.quotas.Work()-tx.beganBudgets) + tx.work.Spent()
}

// enough says, of a command that does one thing to many objects, whether it has
// done as much as one may: whoever proposed it looks again.
func (tx *Tx) enough() bool { return tx.billed()-tx.billedBefore > maxManyWork }

// What it may cost to count for a class, for each of its terms: every node, and
// every kind of pods that the term may be about. Of those with the label that it
// demands the tables do not know how many there are.
const (
	costJudge     = 20
	costTerm      = 20
	costKind      = 2
	nodesPerUnit  = 32
	labelledShare = 32 // one in so many kinds is taken to have the label that is demanded
)

// JudgeCost implements queue.State.
func (v *live) JudgeCost(c *model.Class) int {
	if v.countsParts() {
		own := v.ruleCost(c)
		if own == uncounted {
			return uncounted
		}
		return costJudge + v.guardCost() + own
	}
	labelled, wide := c.CountTerms()
	kinds, _, _ := v.usage.Kinds()
	return costJudge + v.guardCost() + (labelled+wide)*(costTerm+v.Nodes.Len()/nodesPerUnit) +
		labelled*(kinds*costKind/labelledShare) + wide*kinds*costKind
}

// guardCost is what it costs to find the terms that keep a class away.
func (v *live) guardCost() int {
	_, guards, wide := v.usage.Kinds()
	return guards*costKind/labelledShare + wide*costKind
}
