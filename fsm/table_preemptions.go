package fsm

import (
	"encoding/json"

	"github.com/berth-dev/berth/api/berthv1"
	"github.com/berth-dev/berth/codec"
	"github.com/berth-dev/berth/store"
)

// maxPreemptions is how many preemptions are remembered, the oldest going
// first, and maxPreemptionBytes what they may hold.
const (
	maxPreemptions     = 10_000
	maxPreemptionBytes = 64 << 20
)

// SinceRememberedBytes is the LogVersion from which on what is remembered of
// preemptions and decisions is bounded by what it holds, too.
const SinceRememberedBytes = 18

// remembered is about how many bytes the records hold.
type remembered struct{ preemptions, decisions int }

var preemptionTable = &tableDef[*berthv1.Preemption]{
	Name:      "preemptions",
	Canonical: codec.Canonical[*berthv1.Preemption](codec.JSON),
	Marshal:   func(p *berthv1.Preemption) ([]byte, error) { return json.Marshal(p) },
	Unmarshal: func(b []byte) (*berthv1.Preemption, error) {
		p := new(berthv1.Preemption)
		return p, codec.UnmarshalJSON(b, p)
	},
	Revise: reviseObject[*berthv1.Preemption],
	Size:   preemptionBytes,
	Index: func(v *live, key string, old, now *berthv1.Preemption, hadOld, hasNow bool) {
		if hadOld {
			v.preemptionOrder.Delete(store.RevisionKey(old.Status.Revision))
			v.remembered.preemptions -= preemptionBytes(old, nil, true)
		}
		if hasNow {
			v.preemptionOrder.Set(store.RevisionKey(now.Status.Revision), key)
			v.remembered.preemptions += preemptionBytes(now, nil, true)
		}
	},
}

// trimPreemptions lets the oldest records go that are too many. The newest stays,
// whatever it holds.
func (tx *Tx) trimPreemptions() {
	v := tx.view
	for n := 0; n < maxTrimmed; n++ {
		tooMuch := v.Version() >= SinceRememberedBytes && v.remembered.preemptions > maxPreemptionBytes && v.Preemptions.Len() > 1
		if v.Preemptions.Len() <= maxPreemptions && !tooMuch {
			return
		}
		_, oldest, _ := v.preemptionOrder.Min()
		remove(tx, v.Preemptions, oldest)
	}
}
