package usage

import (
	"slices"

	"github.com/berth-dev/berth/model"
)

// nodeUse is what the running pods of one node have requested: in all, and by
// priority, so that what a pod could not evict there is known without a walk
// over the pods. It is immutable.
type nodeUse struct {
	total model.Usage
	// levels has the highest priority first and no priority without a pod.
	levels []priorityUse
}

type priorityUse struct {
	priority int32
	usage    model.Usage
}

var noUse = &nodeUse{}

func (u *nodeUse) level(priority int32) (int, bool) {
	return slices.BinarySearchFunc(u.levels, priority, func(l priorityUse, p int32) int {
		switch {
		case l.priority > p:
			return -1
		case l.priority < p:
			return 1
		}
		return 0
	})
}

func (u *nodeUse) with(c *model.Class) *nodeUse {
	i, found := u.level(c.Priority)
	next := &nodeUse{total: u.total.With(c)}
	if found {
		next.levels = slices.Clone(u.levels)
		next.levels[i].usage = u.levels[i].usage.With(c)
		return next
	}
	next.levels = make([]priorityUse, 0, len(u.levels)+1)
	next.levels = append(next.levels, u.levels[:i]...)
	next.levels = append(next.levels, priorityUse{c.Priority, model.Usage{}.With(c)})
	next.levels = append(next.levels, u.levels[i:]...)
	return next
}

// without takes one pod away; nil when it was the last.
func (u *nodeUse) without(c *model.Class) *nodeUse {
	i, found := u.level(c.Priority)
	if !found {
		panic("usage: a pod leaves a node that does not count it")
	}
	next := &nodeUse{total: u.total.Without(c), levels: slices.Clone(u.levels)}
	next.levels[i].usage = u.levels[i].usage.Without(c)
	if next.levels[i].usage.Requested.Pods == 0 {
		next.levels = slices.Delete(next.levels, i, i+1)
	}
	if len(next.levels) == 0 {
		return nil
	}
	return next
}

// from is what the pods of at least a priority use.
func (u *nodeUse) from(priority int32) model.Usage {
	var sum model.Usage
	for i, l := range u.levels {
		if l.priority < priority {
			return sum
		}
		if i == 0 {
			sum = l.usage
			continue
		}
		sum = sum.Plus(l.usage)
	}
	return u.total
}
