package usage

import (
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/model"
)

// Nomination holds a node's room for a pod whose victims are ending there
// (NM1, NM2). It is a lease: it ends when the pod is bound or deleted, when
// its deadline passes, when the node is lost, or when a pod of higher priority
// takes the node (NM7). One that is stored must not be changed.
type Nomination struct {
	Namespace string    `msgpack:"namespace"`
	Name      string    `msgpack:"name"`
	UID       types.UID `msgpack:"uid"`
	Revision  int64     `msgpack:"revision"`

	// FirstRevision is that at which the nomination was made: of two of equal
	// priority on a node the earlier one has its room first.
	FirstRevision int64 `msgpack:"first_revision"`

	Node     string `msgpack:"node"`
	Priority int32  `msgpack:"priority"`
	// Victims are those that have not gone yet; where there are more than GoneTogether, with those of Gone.
	Victims []VictimRef `msgpack:"victims,omitempty"`
	// Gone are the victims of many that have gone and are not struck yet: they are struck GoneTogether at a time.
	Gone []GoneVictim `msgpack:"gone,omitempty"`
	// DeadlineUnixNano is when the lease ends if the victims are still there.
	DeadlineUnixNano int64 `msgpack:"deadline_unix_nano"`
	// Preemption is the key of the record in Preemptions.
	Preemption string `msgpack:"preemption"`
	// Reserved: nobody was evicted; what becomes free on the node is kept.
	Reserved bool `msgpack:"reserved,omitempty"`
	// BackfillSeconds: pods that surely end within so many seconds of their
	// start are not in a reservation's way; 0 means none.
	BackfillSeconds int64 `msgpack:"backfill_seconds,omitempty"`

	class *model.Class
}

// VictimRef names a pod that was evicted for another.
type VictimRef struct {
	Key string    `msgpack:"key"`
	UID types.UID `msgpack:"uid"`
	// Node is where it is, if not on the node of the nomination.
	Node string `msgpack:"node,omitempty"`
}

// GoneTogether is how many victims are struck from a nomination at once where there are more: to strike each would
// take as long as there are others, for every one of thousands.
const GoneTogether = 64

// GoneVictim is a victim that has gone, and when.
type GoneVictim struct {
	UID        types.UID `msgpack:"uid"`
	AtUnixNano int64     `msgpack:"at_unix_nano"`
}

// Waits says whether there are victims that have not gone yet.
func (n *Nomination) Waits() bool { return len(n.Victims) > len(n.Gone) }

// Strike is the nomination after a victim has gone, and those who are struck from it with that one: none of many until
// there are enough, or none is left.
func (n *Nomination) Strike(gone GoneVictim, together bool) (left *Nomination, struck []GoneVictim) {
	next := *n
	struck = append(slices.Clip(n.Gone), gone)
	if together && len(n.Victims) > GoneTogether && len(struck) < GoneTogether {
		next.Gone = struck
		return &next, nil
	}
	uids := make(map[types.UID]bool, len(struck))
	for _, g := range struck {
		uids[g.UID] = true
	}
	next.Gone = nil
	next.Victims = slices.DeleteFunc(slices.Clone(n.Victims), func(r VictimRef) bool { return uids[r.UID] })
	return &next, struck
}

// Key is the nominated pod's key.
func (n *Nomination) Key() string { return n.Namespace + "/" + n.Name }

// Class is what the nominated pod asks for.
func (n *Nomination) Class() *model.Class { return n.class }

// SetClass says what the pod asks for, of a nomination that is not stored yet.
func (n *Nomination) SetClass(c *model.Class) { n.class = c }

// Claim is what the nomination takes away from others.
func (n *Nomination) Claim() Claim {
	return Claim{
		UID: n.UID, Key: n.Key(), Node: n.Node, Class: n.class, Priority: n.Priority,
		Made: n.FirstRevision, Reserved: n.Reserved, BackfillSeconds: n.BackfillSeconds,
	}
}

// Claim is all of a nomination that a decision can see: who keeps room where.
type Claim struct {
	UID             types.UID
	Key             string // of the pod
	Node            string
	Class           *model.Class
	Priority        int32
	Made            int64 // the revision at which it was made
	Reserved        bool  // nobody was evicted for it
	BackfillSeconds int64 // see Nomination.BackfillSeconds
}

// Same says whether two claims differ in nothing. Classes are compared by what
// they ask for.
func (c Claim) Same(o Claim) bool {
	if c.Class.Signature == o.Class.Signature {
		c.Class = o.Class
	}
	return c == o
}

// TakesFrom says whether the claim takes room away from a pod of a priority that
// runs for so many seconds at most (0: there is no bound): not from one of
// higher priority (NM4), nor from one that surely leaves a reservation's room
// before it is needed.
func (c *Claim) TakesFrom(priority int32, runsAtMostSeconds int64) bool {
	return takesFrom(c.Priority, c.BackfillSeconds, priority, runsAtMostSeconds)
}

// YieldsTo is Nomination.YieldsTo.
func (c *Claim) YieldsTo(own *Claim) bool { return yields(c.Priority, c.Made, own.Priority, own.Made) }

// TakesFrom is Claim.TakesFrom.
func (n *Nomination) TakesFrom(priority int32, runsAtMostSeconds int64) bool {
	return takesFrom(n.Priority, n.BackfillSeconds, priority, runsAtMostSeconds)
}

// YieldsTo says whether the nomination is not in the way of another one's pod:
// it was made later, for the same priority, with the other's room left free.
// Without this two pods could wait for each other's victims. For room it
// matters on one node only.
func (n *Nomination) YieldsTo(own *Nomination) bool {
	return yields(n.Priority, n.FirstRevision, own.Priority, own.FirstRevision)
}

func takesFrom(claimed int32, backfillSeconds int64, priority int32, runsAtMostSeconds int64) bool {
	return claimed >= priority && !model.EndsWithin(runsAtMostSeconds, backfillSeconds)
}

func yields(priority int32, made int64, ownPriority int32, ownMade int64) bool {
	return priority == ownPriority && made > ownMade
}

// Bytes is about what memory the nomination holds alone.
func (n *Nomination) Bytes() int { return 512 + 128*len(n.Victims) + 64*len(n.Gone) }
