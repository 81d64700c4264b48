package usage

import (
	"cmp"
	"encoding/binary"
	"slices"
	"sort"

	"github.com/berth-dev/berth/model"
	"github.com/berth-dev/berth/store"
)

// nodeSums are what the running pods of each node have requested: in all, and by
// priority, so that what a pod could not evict there is known without a walk
// over the pods. A pod that comes or goes costs the same however many
// priorities there are on its node.
type nodeSums struct {
	total  store.Tree[nodeSum]      // node; none without a pod
	levels store.Tree[*model.Usage] // levelKey: the pods of one priority; none without a pod, or where all are of one
}

// nodeSum is what the running pods of one node have requested.
type nodeSum struct {
	all    *model.Usage
	levels int32 // priorities of these pods
	only   int32 // where there is one: which
}

func (x *nodeSums) fork() nodeSums { return nodeSums{total: x.total.Fork(), levels: x.levels.Fork()} }

// levelKey sorts the priorities of a node, the highest first.
func levelKey(node string, priority int32) string {
	b := make([]byte, 0, 64) // of a fixed size, so that only the key is allocated
	return string(binary.BigEndian.AppendUint32(append(append(b, node...), '/'), ^(uint32(priority) ^ 1<<31)))
}

func priorityInLevel(key string) int32 {
	return int32(^binary.BigEndian.Uint32([]byte(key[len(key)-4:])) ^ 1<<31)
}

// add counts one more pod on a node.
func (x *nodeSums) add(node string, c *model.Class) {
	was, some := x.total.Get(node)
	if !some {
		was = nodeSum{all: noUse, levels: 1, only: c.Priority}
	}
	next := was.all.With(c)
	is := nodeSum{&next, was.levels, was.only}
	if was.levels > 1 || was.only != c.Priority {
		is.levels, is.only = x.addToLevel(node, c, was), 0
	}
	x.total.Set(node, is)
}

// addToLevel counts one more pod of a priority on a node where there are others, and says how many priorities there are then.
func (x *nodeSums) addToLevel(node string, c *model.Class, was nodeSum) (levels int32) {
	if was.levels == 1 {
		x.levels.Set(levelKey(node, was.only), was.all)
	}
	key := levelKey(node, c.Priority)
	ofLevel, has := x.levels.Get(key)
	if !has {
		ofLevel, was.levels = noUse, was.levels+1
	}
	next := ofLevel.With(c)
	x.levels.Set(key, &next)
	return was.levels
}

// remove counts one pod less.
func (x *nodeSums) remove(node string, c *model.Class) {
	was, some := x.total.Get(node)
	if !some {
		panic("usage: a pod leaves a node that does not count it")
	}
	next := was.all.Without(c)
	is := nodeSum{&next, was.levels, was.only}
	switch {
	case next.Requested.Pods == 0:
		x.total.Delete(node)
		return
	case was.levels > 1:
		is.levels, is.only = x.removeFromLevel(node, c, was)
	}
	x.total.Set(node, is)
}

// removeFromLevel counts one pod of a priority less on a node where there are others, and says how many priorities there
// are then, and which it is if there is one.
func (x *nodeSums) removeFromLevel(node string, c *model.Class, was nodeSum) (levels, only int32) {
	key := levelKey(node, c.Priority)
	ofLevel, has := x.levels.Get(key)
	if !has {
		panic("usage: a pod leaves a node that does not count one of its priority")
	}
	next := ofLevel.Without(c)
	if next.Requested.Pods > 0 {
		x.levels.Set(key, &next)
		return was.levels, 0
	}
	x.levels.Delete(key)
	if was.levels > 2 {
		return was.levels - 1, 0
	}
	x.levels.Scan(node+"/", func(key string, _ *model.Usage) bool {
		only = priorityInLevel(key)
		return false
	})
	x.levels.Delete(levelKey(node, only))
	return 1, only
}

// renew makes what is used of a node another object.
func (x *nodeSums) renew(node string) {
	s, _ := x.total.Get(node)
	u := *s.all
	s.all = &u
	x.total.Set(node, s)
}

// noUse is never changed.
var noUse = &model.Usage{}

func (x *nodeSums) of(node string) *model.Usage {
	if s, ok := x.total.Get(node); ok {
		return s.all
	}
	return noUse
}

// eachLevel calls f for what the pods of each priority on a node use, the
// highest first, until f returns false.
func (x *nodeSums) eachLevel(node string, f func(priority int32, u *model.Usage) bool) {
	switch s, ok := x.total.Get(node); {
	case !ok:
	case s.levels == 1:
		f(s.only, s.all)
	default:
		x.levels.Scan(node+"/", func(key string, u *model.Usage) bool { return f(priorityInLevel(key), u) })
	}
}

// from is what the pods of at least a priority use.
func (x *nodeSums) from(node string, priority int32) (sum model.Usage) {
	x.eachLevel(node, func(level int32, u *model.Usage) bool {
		if level >= priority {
			sum = sum.Plus(*u)
		}
		return level >= priority
	})
	return sum
}

// Sums answers TakenFrom for any priority on one node, as it was when they were
// made, for one bound of a pod's time and with all nominations somebody else's.
// They cost the priorities that there are.
type Sums []levelSum // the highest first

// levelSum is what the pods and nominations of at least a priority use.
type levelSum struct {
	priority int32
	usage    model.Usage
}

// Sums are those of a node.
func (x *Index) Sums(node string, runsAtMostSeconds int64) Sums {
	var s Sums
	x.used.eachLevel(node, func(priority int32, u *model.Usage) bool {
		s = append(s, levelSum{priority, *u})
		return true
	})
	pods := len(s)
	x.NominationsOn(node, func(n *Nomination) bool {
		if n.TakesFrom(n.Priority, runsAtMostSeconds) {
			s = append(s, levelSum{n.Priority, model.Usage{}.With(n.class)})
		}
		return true
	})
	if len(s) > pods {
		slices.SortStableFunc(s, func(a, b levelSum) int { return cmp.Compare(b.priority, a.priority) })
	}
	for i := 1; i < len(s); i++ {
		s[i].usage = s[i-1].usage.Plus(s[i].usage)
	}
	return s
}

// From is what is taken of the node from a pod of a priority. It must not be
// changed.
func (s Sums) From(priority int32) *model.Usage {
	below := sort.Search(len(s), func(i int) bool { return s[i].priority < priority })
	if below == 0 {
		return noUse
	}
	return &s[below-1].usage
}
