package sched

import "math/bits"

// groupKey is what the nodes of a group have in common.
type groupKey struct {
	affinity int64 // raw score of NodeAffinity
	taints   int64 // raw score of TaintToleration
	images   int32 // which of the class's images they hold, see imageTaste
	topo     int32 // what the class sees of the pods around them, see topoView
}

// group holds the nodes of one key that do not fail the class by themselves, by usageScore.
type group struct {
	groupKey
	n       int32
	at      int32      // place in board.filled while it holds nodes
	buckets []*rankSet // by usageScore
	filled  []uint64   // bit i set: buckets[i] is not empty

	score int64 // of the decision under way, without usage
}

func (g *group) add(score, rank int32, ranks int) {
	for int(score) >= len(g.buckets) {
		g.buckets = append(g.buckets, nil)
	}
	for int(score>>6) >= len(g.filled) {
		g.filled = append(g.filled, 0)
	}
	if g.buckets[score] == nil {
		g.buckets[score] = newRankSet(ranks)
	}
	g.buckets[score].add(rank)
	g.filled[score>>6] |= 1 << (score & 63)
	g.n++
}

func (g *group) remove(score, rank int32) {
	set := g.buckets[score]
	set.remove(rank)
	if set.n == 0 {
		g.filled[score>>6] &^= 1 << (score & 63)
	}
	g.n--
}

// top is the highest usageScore in the group, which must not be empty.
func (g *group) top() int {
	for w := len(g.filled) - 1; w >= 0; w-- {
		if g.filled[w] != 0 {
			return w<<6 + 63 - bits.LeadingZeros64(g.filled[w])
		}
	}
	return 0
}

// best returns the slot of the node with the highest score, ties broken on the ring from start on; false when no node
// fits.
func (b *board) best(v *View, start int32) (int32, bool) {
	open := b.open(v)
	if len(open) == 0 {
		return 0, false
	}
	var score int64 = -1
	var rank int32
	for _, g := range open {
		top := g.top()
		s := g.score + int64(top)*b.profile.step
		if s < score {
			continue
		}
		r := g.buckets[top].nextOnRing(start)
		if s > score || v.ring.distance(start, r) < v.ring.distance(start, rank) {
			score, rank = s, r
		}
	}
	return v.ring.slots[rank], true
}

// scoreOf is the score of a node that fits, as the last call of open or best found it.
func (b *board) scoreOf(slot int32) int64 {
	c := &b.cells[slot]
	return b.groups[c.group].score + int64(c.score)*b.profile.step
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
