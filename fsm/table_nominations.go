package fsm

import (
	"github.com/berth-dev/berth/codec"
	"github.com/berth-dev/berth/usage"
)

// Nomination holds a node's room for a pod.
type Nomination = usage.Nomination

// VictimRef names a pod that was evicted for another.
type VictimRef = usage.VictimRef

var nominationTable = &tableDef[*Nomination]{
	Name:      "nominations",
	Canonical: codec.Canonical[*Nomination](codec.Msgpack),
	Marshal:   packRow[Nomination],
	Unmarshal: unpackRow[Nomination],
	Revise:    func(n *Nomination, revision int64) { n.Revision = revision },
	Size:      func(before, _ *Nomination, _ bool) int { return before.Bytes() },
	Bytes:     func(_ *live, n *Nomination) int { return n.Bytes() },
	Complete: func(v *live, key string, n *Nomination) error {
		class, err := v.classOfWaiting(key)
		n.SetClass(class)
		return err
	},
	Index: func(v *live, _ string, old, now *Nomination, _, _ bool) {
		v.usage.PutNomination(old, now)
		v.countNomination(old, now)
	},
}
