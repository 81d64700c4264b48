package fsm

import (
	"encoding/json"

	"github.com/berth-dev/berth/api/berthv1"
	"github.com/berth-dev/berth/codec"
	"github.com/berth-dev/berth/store"
)

// maxPreemptions is how many preemptions are remembered, the oldest going
// first.
const maxPreemptions = 10_000

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
	Index: func(v *live, key string, old, new *berthv1.Preemption, hadOld, hasNew bool) {
		if hadOld {
			v.preemptionOrder.Delete(store.RevisionKey(old.Status.Revision))
		}
		if hasNew {
			v.preemptionOrder.Set(store.RevisionKey(new.Status.Revision), key)
		}
	},
}
