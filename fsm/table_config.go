package fsm

import (
	"encoding/json"

	"github.com/berth-dev/berth/api/berthv1"
	"github.com/berth-dev/berth/store"
)

var configTable = &tableDef[*berthv1.SchedulerConfiguration]{
	Name:    "schedulerconfigurations",
	Marshal: func(c *berthv1.SchedulerConfiguration) ([]byte, error) { return json.Marshal(c) },
	Unmarshal: func(b []byte) (*berthv1.SchedulerConfiguration, error) {
		c := new(berthv1.SchedulerConfiguration)
		err := json.Unmarshal(b, c)
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
	if orderOf(before) == orderOf(after) {
		return
	}
	var entries []*QueueEntry
	for _, m := range []*store.Tree[*QueueEntry]{&v.order, &v.backoffs, &v.waiting} {
		m.Scan("", func(_ string, e *QueueEntry) bool {
			entries = append(entries, e)
			return true
		})
		m.Clear()
	}
	v.blockedPods.Clear()
	for _, e := range entries {
		v.indexOrder(e)
	}
}

// queueOrder is what the order of the queue depends on.
type queueOrder struct {
	fifo            bool
	secondsPerPoint int64
}

func orderOf(c *berthv1.SchedulerConfiguration) queueOrder {
	return queueOrder{fifo: fifo(c), secondsPerPoint: int64(*c.Spec.Aging.SecondsPerPoint)}
}

// fifo: the queue ignores priorities, because it is told to (QU1) or because
// priority as a whole is switched off (PC11).
func fifo(c *berthv1.SchedulerConfiguration) bool {
	return c.Spec.Queue == berthv1.QueueFIFO || !*c.Spec.Preemption.Enabled
}
