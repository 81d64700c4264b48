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
	total  store.Tree[*model.Usage] // node
	levels store.Tree[*model.Usage] // levelKey: the pods of one priority; none without a pod
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

// add counts one more pod on a node. Where all pods are of one priority, its sum is
// that of the node, and kept once.
func (x *nodeSums) add(node string, c *model.Class) {
	level := levelKey(node, c.Priority)
	was, ofLevel := x.of(node), sumAt(&x.levels, level)
	next := was.With(c)
	x.total.Set(node, &next)
	if ofLevel == was {
		x.levels.Set(level, &next)
		return
	}
	own := ofLevel.With(c)
	x.levels.Set(level, &own)
}

// remove counts one pod less.
func (x *nodeSums) remove(node string, c *model.Class) {
	count := func(t *store.Tree[*model.Usage], key string) {
		u, ok := t.Get(key)
		if !ok {
			panic("usage: a pod leaves a node that does not count it")
		}
		if next := u.Without(c); next.Requested.Pods == 0 {
			t.Delete(key)
		} else {
			t.Set(key, &next)
		}
	}
	count(&x.total, node)
	count(&x.levels, levelKey(node, c.Priority))
}

// renew makes what is used of a node another object.
func (x *nodeSums) renew(node string) {
	u := *x.of(node)
	x.total.Set(node, &u)
}

// noUse is never changed.
var noUse = &model.Usage{}

func (x *nodeSums) of(node string) *model.Usage { return sumAt(&x.total, node) }

func sumAt(t *store.Tree[*model.Usage], key string) *model.Usage {
	if u, ok := t.Get(key); ok {
		return u
	}
	return noUse
}

// eachLevel calls f for what the pods of each priority on a node use, the
// highest first, until f returns false.
func (x *nodeSums) eachLevel(node string, f func(priority int32, u *model.Usage) bool) {
	x.levels.Scan(node+"/", func(key string, u *model.Usage) bool { return f(priorityInLevel(key), u) })
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
