package fsm

import (
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/model"
	"github.com/berth-dev/berth/store"
)

// Nomination holds a node's room for a pod whose victims are ending there
// (NM1, NM2). It is a lease: it ends when the pod is bound or deleted, when
// its deadline passes, when the node is lost, or when a pod of higher priority
// takes the node (NM7).
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
	// Victims are those that have not gone yet.
	Victims []VictimRef `msgpack:"victims,omitempty"`
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

// Key is the nominated pod's key.
func (n *Nomination) Key() string { return PodKey(n.Namespace, n.Name) }

// YieldsTo says whether the nomination is not in the way of another one's pod:
// it was made later, for the same priority, with the other's room left free.
// Without this two pods could wait for each other's victims. For room it
// matters on one node only.
func (n *Nomination) YieldsTo(own *Nomination) bool {
	return n.Priority == own.Priority && n.FirstRevision > own.FirstRevision
}

// Class is what the nominated pod asks for.
func (n *Nomination) Class() *model.Class { return n.class }

var nominationTable = &tableDef[*Nomination]{
	Name:      "nominations",
	Canonical: canonicalRow[*Nomination](asMsgpack),
	Marshal:   func(n *Nomination) ([]byte, error) { return store.Marshal(n) },
	Unmarshal: func(b []byte) (*Nomination, error) {
		n := new(Nomination)
		return n, store.UnmarshalKnown(b, n)
	},
	Revise: func(n *Nomination, revision int64) { n.Revision = revision },
	Size:   nominationBytes,
	Complete: func(v *live, key string, n *Nomination) (err error) {
		n.class, err = v.classOfWaiting(key)
		return err
	},
	Index: func(v *live, key string, old, new *Nomination, hadOld, hasNew bool) {
		if hadOld && v.reserved == key {
			v.reserved = ""
		}
		if hasNew && new.Reserved {
			v.reserved = key
		}
		if hadOld {
			v.countNomination(old, -1)
			v.nominationsByNode.Delete(old.Node + "/" + key)
			for _, vic := range old.Victims {
				v.nominationsByVictim.Delete(string(vic.UID) + "/" + key)
			}
		}
		if hasNew {
			v.countNomination(new, 1)
			v.nominationsByNode.Set(new.Node+"/"+key, new)
			for _, vic := range new.Victims {
				v.nominationsByVictim.Set(string(vic.UID)+"/"+key, new)
			}
		}
	},
}
