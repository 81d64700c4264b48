package sched

import (
	"math/bits"

	"github.com/berth-dev/berth/model"
)

// board is what one class of pods finds on every node: why it does not fit, or how good the node is. Nodes that fit are
// kept by score, so that the best one is found without looking at the others; after a change only the changed nodes are
// looked at again.
//
// The part of a score that comes from the node object is normalised by the largest raw value among the nodes that fit,
// so it changes for all nodes when that maximum does. Nodes with equal raw values are therefore one group: within a
// group the order depends on usage alone, and the maxima are those of the groups that are not empty.
type board struct {
	class   *model.Class
	anyNode bool

	seen  uint64 // position in the log up to which this board is right
	epoch uint64 // of the ring
	used  uint64 // when it was last asked, for forgetting

	cells     []cell // by slot
	groups    []*group
	byRaw     map[[2]int64]int16
	lastGroup int16 // asked for last
	fit       int   // nodes that fit

	// hist counts the nodes by what keeps the class off them; those that fit are counted too. It changes with changes.
	hist    []tally
	changes uint64

	diagnoses [numDiagnoses]cachedDiagnosis

	// waitsFor remembers whether a failure of this class could be undone by an unsettled decision's refusal; see
	// Scheduler.dependsOnUnsettled.
	waitsFor  bool
	waitsStep uint64
	clearedAt uint64
}

type tally struct {
	fails model.Failures
	nodes int32
}

// cell is one node's verdict.
type cell struct {
	static model.Failures // of the node object
	fails  model.Failures // all
	group  int16
	score  uint8 // usageScore
	known  bool  // static and group are computed
	placed bool  // in a bucket
}

// group holds the fitting nodes with one pair of raw scores, by usageScore.
type group struct {
	affinity, taints int64
	buckets          [maxUsageScore + 1]*rankSet
	filled           [(maxUsageScore + 64) / 64]uint64
	n                int32
}

func newBoard(c *model.Class) *board {
	return &board{class: c, anyNode: c.AnyNode(), byRaw: map[[2]int64]int16{}}
}

// sync brings the board up to date with the view and returns how many nodes it looked at.
func (b *board) sync(v *View) int {
	if b.epoch != v.ring.epoch {
		b.reseat(v)
	}
	looked := 0
	v.since(b.seen, func(slot int32) {
		looked++
		b.look(v, slot)
	})
	b.seen = v.log.head()
	return looked
}

// reseat puts the nodes back into buckets after the ring gave them new ranks.
func (b *board) reseat(v *View) {
	b.epoch = v.ring.epoch
	for len(b.cells) < len(v.nodes) {
		b.cells = append(b.cells, cell{})
	}
	for _, g := range b.groups {
		*g = group{affinity: g.affinity, taints: g.taints}
	}
	b.fit = 0
	for i := range b.cells {
		if c := &b.cells[i]; c.placed {
			c.placed = false
			b.put(v, int32(i), c)
		}
	}
}

// look computes one node's verdict and moves it to where it belongs.
func (b *board) look(v *View, slot int32) {
	n, c := &v.nodes[slot], &b.cells[slot]
	if n.obj == nil {
		b.take(v, slot, c)
		b.count(c, nil)
		*c = cell{}
		return
	}
	now := *c
	if !c.known || n.staticAt >= b.seen {
		b.lookStatic(n, &now)
	}
	var scratch model.Usage
	now.fails = now.static | model.UsageFailures(b.class, &n.alloc, n.usageFor(b.class.Priority, &scratch))
	if now.fails == 0 {
		// NM4: nominated pods count in filters, not in scores, as in kube-scheduler.
		now.score = uint8(usageScore(b.class, &n.alloc, &n.usage))
	}
	b.count(c, &now)
	if c.placed && now.fails == 0 && now.group == c.group && now.score == c.score {
		*c = now
		return
	}
	b.take(v, slot, c)
	now.placed = false
	*c = now
	if c.fails == 0 {
		b.put(v, slot, c)
	}
}

// lookStatic computes what depends on the node object alone.
func (b *board) lookStatic(n *node, c *cell) {
	c.known = true
	if n.plain && b.anyNode {
		c.static, c.group = 0, b.groupOf(0, 0)
		return
	}
	c.static = model.NodeFailures(b.class, n.obj)
	c.group = b.groupOf(b.class.PreferredAffinity(n.obj), b.class.PreferNoScheduleCount(n.obj))
}

// count moves a node in the histogram from one verdict to another; now is nil for a node that is gone.
func (b *board) count(before, now *cell) {
	if before.known && now != nil && before.fails == now.fails {
		return
	}
	b.changes++
	if before.known {
		b.tally(before.fails).nodes--
	}
	if now != nil {
		b.tally(now.fails).nodes++
	}
}

// tally returns the count of a set of failures. There are few different ones: a walk is faster than a map.
func (b *board) tally(fails model.Failures) *tally {
	for i := range b.hist {
		if b.hist[i].fails == fails {
			return &b.hist[i]
		}
	}
	b.hist = append(b.hist, tally{fails: fails})
	return &b.hist[len(b.hist)-1]
}

func (b *board) groupOf(affinity, taints int64) int16 {
	if g := b.lastGroup; int(g) < len(b.groups) && b.groups[g].affinity == affinity && b.groups[g].taints == taints {
		return g
	}
	raw := [2]int64{affinity, taints}
	i, ok := b.byRaw[raw]
	if !ok {
		i = int16(len(b.groups))
		b.groups = append(b.groups, &group{affinity: affinity, taints: taints})
		b.byRaw[raw] = i
	}
	b.lastGroup = i
	return i
}

func (b *board) put(v *View, slot int32, c *cell) {
	g := b.groups[c.group]
	set := g.buckets[c.score]
	if set == nil {
		set = newRankSet(len(v.nodes))
		g.buckets[c.score] = set
	}
	set.add(v.nodes[slot].rank)
	g.filled[c.score>>6] |= 1 << (c.score & 63)
	g.n++
	b.fit++
	c.placed = true
}

func (b *board) take(v *View, slot int32, c *cell) {
	if !c.placed {
		return
	}
	g := b.groups[c.group]
	set := g.buckets[c.score]
	set.remove(v.nodes[slot].rank)
	if set.n == 0 {
		g.filled[c.score>>6] &^= 1 << (c.score & 63)
	}
	g.n--
	b.fit--
	c.placed = false
}

// fits says whether a node passed every filter.
func (b *board) fits(slot int32) bool { return b.cells[slot].placed }

// best returns the slot of the node with the highest score, ties broken on the ring from start on; false when no node
// fits.
func (b *board) best(v *View, start int32) (int32, bool) {
	if b.fit == 0 {
		return 0, false
	}
	var maxAffinity, maxTaints int64
	for _, g := range b.groups {
		if g.n > 0 {
			maxAffinity, maxTaints = max(maxAffinity, g.affinity), max(maxTaints, g.taints)
		}
	}
	var score int64 = -1
	var rank int32
	for _, g := range b.groups {
		if g.n == 0 {
			continue
		}
		top := g.top()
		s := nodeScore(g.affinity, maxAffinity, g.taints, maxTaints) + int64(top)
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

// top is the highest usageScore in the group, which must not be empty.
func (g *group) top() int {
	for w := len(g.filled) - 1; w >= 0; w-- {
		if g.filled[w] != 0 {
			return w<<6 + 63 - bits.LeadingZeros64(g.filled[w])
		}
	}
	return 0
}
