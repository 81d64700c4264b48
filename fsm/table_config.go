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
	Index:  indexConfig,
}

// indexConfig orders the queue anew when its order changes (QU1, QU2), and knows
// who has a scheduler when the profiles change.
func indexConfig(v *live, _ string, old, new *berthv1.SchedulerConfiguration, hadOld, hasNew bool) {
	before, after := defaultConfig, defaultConfig
	if hadOld {
		before = old
	}
	if hasNew {
		after = new
	}
	indexProfiles(v, before, after)
	if queue.OrderOf(&before.Spec) != queue.OrderOf(&after.Spec) {
		v.cache.work += int64(v.Queue.Len()) * costReorder
	}
	v.queue.Reorder(queue.OrderOf(&after.Spec))
}
