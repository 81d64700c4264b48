package sched

import (
	"cmp"
	"math"
	"slices"
)

// groupKey is what the nodes of a group have in common.
type groupKey struct {
	affinity int64 // raw score of NodeAffinity
	taints   int64 // raw score of TaintToleration
	images   int32 // which of the class's images they hold, see imageTaste
	topo     int32 // what the class sees of the pods around them, see topoView
}

// group holds the nodes of one key that do not fail the class by themselves, by usageScore. Whatever a score is, it has
// its level, and no group holds more levels than nodes.
type group struct {
	groupKey
	n      int32
	at     int32    // in board.filled while it holds nodes
	levels []*level // lowest score first, none empty
	spare  *level   // one that became empty
	bytes  int      // what the levels hold

	score int64 // of the decision under way, without usage
}

// level is the nodes of a group with one usageScore.
type level struct {
	score int32
	nodes rankSet
}

// levelAt is where the level of a score is or would be.
func (g *group) levelAt(score int32) (int, bool) {
	return slices.BinarySearchFunc(g.levels, score,
		func(l *level, score int32) int { return cmp.Compare(l.score, score) })
}

func (g *group) add(score, rank int32, ranks int) {
	i, ok := g.levelAt(score)
	if !ok {
		l := g.spare
		if l == nil || l.nodes.size != ranks {
			l = &level{nodes: *newRankSet(ranks)}
		}
		g.spare, l.score = nil, score
		g.levels = slices.Insert(g.levels, i, l)
		g.bytes += levelBytes
	}
	set := &g.levels[i].nodes
	before := set.bytes()
	set.add(rank)
	g.bytes += set.bytes() - before
	g.n++
}

func (g *group) remove(score, rank int32) {
	i, _ := g.levelAt(score)
	l := g.levels[i]
	before := l.nodes.bytes()
	l.nodes.remove(rank)
	g.bytes += l.nodes.bytes() - before
	if l.nodes.n == 0 {
		g.spare, g.levels = l, slices.Delete(g.levels, i, i+1)
		g.bytes -= levelBytes
	}
	g.n--
}

// top is the level of the highest usageScore in the group, which must not be empty.
func (g *group) top() *level { return g.levels[len(g.levels)-1] }

// place is the node that a decision takes, and the one that came next.
type place struct {
	slot     int32
	runnerUp int32 // -1 where no other node fits
}

// ranked is a node with its score: in what order a decision would take them.
type ranked struct {
	score int64
	rank  int32
}

// unranked is no node, after all others.
var unranked = ranked{score: math.MinInt64, rank: -1}

func (r *ring) before(start int32, a, b ranked) bool {
	return a.score > b.score || a.score == b.score && r.distance(start, a.rank) < r.distance(start, b.rank)
}

// best returns the node with the highest score, ties broken on the ring from start on, and the next one in the same
// order; false when no node fits.
func (b *board) best(v *View, start int32) (place, bool) {
	open := b.open(v)
	if len(open) == 0 {
		return place{}, false
	}
	first, second := unranked, unranked
	var from *group
	for _, g := range open {
		top := g.top()
		if b.total(g, top.score) < second.score {
			continue
		}
		head := b.at(g, top, start)
		switch {
		case v.ring.before(start, head, first):
			first, second, from = head, first, g
		case v.ring.before(start, head, second):
			second = head
		}
	}
	if next := b.after(from, first, start); next != unranked && v.ring.before(start, next, second) {
		second = next
	}
	out := place{slot: v.ring.slots[first.rank], runnerUp: -1}
	if second != unranked {
		out.runnerUp = v.ring.slots[second.rank]
	}
	return out, true
}

// total is the score of a group's nodes of a usageScore.
func (b *board) total(g *group, usageScore int32) int64 {
	return g.score + int64(usageScore)*b.profile.step
}

// at is the node of a group that comes first among those of a level.
func (b *board) at(g *group, l *level, start int32) ranked {
	return ranked{b.total(g, l.score), l.nodes.nextOnRing(start)}
}

// after is the node of a group that comes after its first.
func (b *board) after(g *group, first ranked, start int32) ranked {
	if top := g.top(); top.nodes.n > 1 {
		return ranked{first.score, top.nodes.nextOnRing(first.rank + 1)}
	}
	if below := len(g.levels) - 2; below >= 0 {
		return b.at(g, g.levels[below], start)
	}
	return unranked
}

// scoreOf is the score of a node that fits, as the last call of open or best found it.
func (b *board) scoreOf(slot int32) int64 {
	c := &b.cells[slot]
	return b.total(b.groups[c.group], c.score)
}

// open returns the groups whose nodes pass every filter, each with its score. The result holds until the next call.
func (b *board) open(v *View) []*group {
	open := v.openGroups[:0]
	b.fit = 0
	var maxAffinity, maxTaints int64
	for _, i := range b.filled {
		g := b.groups[i]
		if b.topo.fails(g.topo) != 0 {
			continue
		}
		open = append(open, g)
		b.fit += g.n
		maxAffinity, maxTaints = max(maxAffinity, g.affinity), max(maxTaints, g.taints)
	}
	v.openGroups = open
	p := b.profile
	for _, g := range open {
		g.score = p.affinity*share(g.affinity, maxAffinity) + p.taints*(maxNodeScore-share(g.taints, maxTaints))
	}
	if b.images.names != nil {
		b.images.score(v)
		for _, g := range open {
			g.score += p.images * b.images.scores[g.images]
		}
	}
	b.topo.score(open, p)
	return open
}
