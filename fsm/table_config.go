package fsm

import (
	"encoding/json"

	"github.com/berth-dev/berth/api/berthv1"
	"github.com/berth-dev/berth/codec"
	"github.com/berth-dev/berth/queue"
)

var configTable = &tableDef[*berthv1.SchedulerConfiguration]{
	Name:      "schedulerconfigurations",
	Canonical: codec.Canonical[*berthv1.SchedulerConfiguration](codec.JSON),
	Marshal:   func(c *berthv1.SchedulerConfiguration) ([]byte, error) { return json.Marshal(c) },
	Unmarshal: func(b []byte) (*berthv1.SchedulerConfiguration, error) {
		c := new(berthv1.SchedulerConfiguration)
		err := codec.UnmarshalJSON(b, c)
		c.SetDefaults() // it may come from a version that knew fewer fields
		return c, err
	},
	Revise: reviseObject[*berthv1.SchedulerConfiguration],
	Size:   configBytes,
	Bytes:  whole(configBytes),
	Index:  indexConfig,
}

// indexConfig has the queue go over to another order when its order changes (QU1,
// QU2), or goes on with that in a state that is restored.
func indexConfig(v *live, _ string, _, now *berthv1.SchedulerConfiguration, _, hasNow bool) {
	config := defaultConfig
	if hasNow {
		config = now
	}
	order := queue.OrderOf(&config.Spec)
	if p, ok := v.pending.Get(queue.PendingOrder); ok && v.cache.restored != nil && p.Order != nil {
		v.queue.Resume(*p.Order, order, p.From)
		return
	}
	v.queue.Reorder(order)
}
