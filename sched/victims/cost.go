package victims

import (
	"math"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/model"
)

// Pod is a pod as far as it matters to what its eviction costs.
type Pod struct {
	UID           types.UID
	Priority      int32
	StartUnixNano int64 // model.NeverStarted where it did not
	Slot          int32 // tells its node from others
}

// MoreImportant orders pods for preemption (PR7), negative when a comes first: higher priority first, then the earlier
// start, then the smaller UID.
func MoreImportant(a, b *Pod) int {
	switch {
	case a.Priority != b.Priority:
		if a.Priority > b.Priority {
			return -1
		}
		return 1
	case a.StartUnixNano != b.StartUnixNano:
		if a.StartUnixNano < b.StartUnixNano {
			return -1
		}
		return 1
	case a.UID < b.UID:
		return -1
	case a.UID > b.UID:
		return 1
	}
	return 0
}

// Cost is what preempting on one node would do, in the order in which choices are compared (PR10, T3): fewer budgets
// violated, a lower highest victim, a smaller sum of priorities with 2^31 added to each (which makes it the number of
// victims first), fewer victims, and the latest start among the victims of the highest priority.
type Cost struct {
	Violations    int32
	Highest       int32
	Sum           int64
	Count         int32
	StartUnixNano int64
	// Elsewhere: there are victims on other nodes. Of two costs that are equal in all else the other one is lower.
	Elsewhere bool
}

// Impossible is the cost of a node where preemption does not help. It compares above every other.
var Impossible = Cost{Violations: math.MaxInt32}

// None is the cost of evicting nobody.
var None = Cost{Highest: math.MinInt32, StartUnixNano: model.NeverStarted}

// Possible says whether the cost is that of a choice.
func (c Cost) Possible() bool { return c.Violations != math.MaxInt32 }

// Less says whether the cost is lower than another.
func (c *Cost) Less(d *Cost) bool {
	switch {
	case c.Violations != d.Violations:
		return c.Violations < d.Violations
	case c.Highest != d.Highest:
		return c.Highest < d.Highest
	case c.Sum != d.Sum:
		return c.Sum < d.Sum
	case c.Count != d.Count:
		return c.Count < d.Count
	}
	if c.StartUnixNano != d.StartUnixNano {
		return c.StartUnixNano > d.StartUnixNano
	}
	return !c.Elsewhere && d.Elsewhere
}

// DecidedBy names the criterion that sets two costs apart.
func (c *Cost) DecidedBy(d *Cost) string {
	switch {
	case c.Violations != d.Violations:
		return "fewest budget violations"
	case c.Highest != d.Highest:
		return "lowest highest victim priority"
	case c.Count != d.Count && c.Sum != d.Sum:
		return "fewest victims"
	case c.Sum != d.Sum:
		return "lowest sum of victim priorities"
	case c.StartUnixNano != d.StartUnixNano:
		return "latest start of the highest victims"
	case c.Elsewhere != d.Elsewhere:
		return "no victims on other nodes"
	}
	return "hash, all else being equal"
}

// With is the cost with one more victim; what its eviction violates is for the caller to add.
func (c Cost) With(v *Pod) Cost {
	switch {
	case v.Priority > c.Highest:
		c.Highest, c.StartUnixNano = v.Priority, v.StartUnixNano
	case v.Priority == c.Highest:
		c.StartUnixNano = min(c.StartUnixNano, v.StartUnixNano)
	}
	c.Sum += weight(v)
	c.Count++
	return c
}

// offset makes every priority positive, so that one victim more always outweighs any difference of priority within
// ordinary values (T3).
const offset = math.MaxInt32 + 1

func weight(v *Pod) int64 { return int64(v.Priority) + offset }
