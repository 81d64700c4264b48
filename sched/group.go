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

// below is the highest usageScore in the group under a given one, or -1.
func (g *group) below(score int) int {
	w := score >> 6
	for rest := g.filled[w] & (1<<(score&63) - 1); ; rest = g.filled[w] {
		if rest != 0 {
			return w<<6 + 63 - bits.LeadingZeros64(rest)
		}
		if w--; w < 0 {
			return -1
		}
	}
}

// choice is the node that a decision takes, and the one that came next.
type choice struct {
	slot     int32
	runnerUp int32 // -1 where no other node fits
}

// ranked is a node with its score: in what order a decision would take them. No score is below 0.
type ranked struct {
	score int64
	rank  int32
}

var unranked = ranked{score: -1}

func (r *ring) before(start int32, a, b ranked) bool {
	return a.score > b.score || a.score == b.score && r.distance(start, a.rank) < r.distance(start, b.rank)
}

// best returns the node with the highest score, ties broken on the ring from start on, and the next one in the same order;
// false when no node fits.
func (b *board) best(v *View, start int32) (choice, bool) {
	open := b.open(v)
	if len(open) == 0 {
		return choice{}, false
	}
	first, second := unranked, unranked
	var from *group
	for _, g := range open {
		top := g.top()
		if g.score+int64(top)*b.profile.step < second.score {
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
	out := choice{slot: v.ring.slots[first.rank], runnerUp: -1}
	if second != unranked {
		out.runnerUp = v.ring.slots[second.rank]
	}
	return out, true
}

// at is the node of a group that comes first among those of a usageScore.
func (b *board) at(g *group, score int, start int32) ranked {
	return ranked{g.score + int64(score)*b.profile.step, g.buckets[score].nextOnRing(start)}
}

// after is the node of a group that comes after its first.
func (b *board) after(g *group, first ranked, start int32) ranked {
	top := g.top()
	if g.buckets[top].n > 1 {
		return ranked{first.score, g.buckets[top].nextOnRing(first.rank + 1)}
	}
	if score := g.below(top); score >= 0 {
		return b.at(g, score, start)
	}
	return unranked
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
