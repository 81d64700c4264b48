package fsm

import (
	"encoding/json"

	"github.com/berth-dev/berth/api/berthv1"
)

// maxPreemptions is how many preemptions are remembered, the oldest going
// first.
const maxPreemptions = 10_000

var preemptionTable = &tableDef[*berthv1.Preemption]{
	name:    "preemptions",
	marshal: func(p *berthv1.Preemption) ([]byte, error) { return json.Marshal(p) },
	unmarshal: func(b []byte) (*berthv1.Preemption, error) {
		p := new(berthv1.Preemption)
		return p, json.Unmarshal(b, p)
	},
	revise: reviseObject[*berthv1.Preemption],
	index: func(v *View, key string, old, new *berthv1.Preemption, hadOld, hasNew bool) {
		if hadOld {
			v.preemptionOrder.Delete(old.Status.Revision)
		}
		if hasNew {
			v.preemptionOrder.Set(new.Status.Revision, key)
		}
	},
}
