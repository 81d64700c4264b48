package sched

import (
	"github.com/berth-dev/berth/model"
)

// board is what one class of pods finds on every node: why it does not fit, or how good the node is. After a change
// only the changed nodes are looked at again.
//
// What does not depend on a node's usage is the same for many nodes: the raw scores of the node object (which are
// normalised by the extremes among the nodes that fit, and so change for all nodes together), and what the class sees
// of the pods around the node. Nodes that have all of that in common are one group, whatever it is that they have in
// common at the moment: a pod that comes to a zone changes what the zone's group is worth, and no node of it has to be
// looked at. Within a group the order depends on usage alone. So a decision costs a walk over the groups.
type board struct {
	key     boardKey
	class   *model.Class
	profile *profile
	anyNode bool
	asks    int       // how much the class asks of a node object: the work of finding out
	topo    *topoView // nil: nothing about other pods matters to the class

	seen   uint64 // position in the log up to which this board is right
	epoch  uint64 // of the ring
	used   uint64 // when it was last asked, for forgetting
	weight int    // bytes, as Scheduler.weigh found

	dirty     []int32 // slots to be looked at
	cells     []cell  // by slot
	groups    []*group
	byKey     map[groupKey]int32
	filled    []int32 // groups that hold nodes
	lastGroup int32   // asked for last
	// levelBytes is what the groups' levels hold.
	levelBytes int
	fit        int32 // nodes that passed every filter at the last call of open

	images imageTaste

	// hist counts the nodes by what keeps the class off them; those that fit are counted too. It changes with changes.
	hist    []tally
	histAt  map[tallyKey]int32 // where topo is not nil
	changes uint64

	diagnoses  [numDiagnoses]cachedDiagnosis
	noProspect version // as of which no node can be freed for the class; see Scheduler.soonest

	failure, preemption hang // on unsettled decisions
}

// tallyKey is what nodes of a tally have in common: what the node alone fails, and what the class sees around it.
type tallyKey struct {
	fails model.Failures
	topo  int32
}

type tally struct {
	tallyKey
	nodes int32
}

// cell is one node's verdict, as far as it does not depend on the pods of other nodes.
type cell struct {
	static model.Failures // of the node object
	fails  model.Failures // all
	group  int32
	score  int32 // usageScore
	known  bool  // static and group are computed
	stale  bool  // what depends on the node object alone is to be computed again
	dirty  bool  // in board.dirty
	placed bool  // in its group: the node itself does not fail the class
}

func newBoard(key boardKey, c *model.Class, p *profile) *board {
	b := &board{key: key, class: c, profile: p, anyNode: c.AnyNode(), asks: c.Asks(), byKey: map[groupKey]int32{}}
	if key.images != "" {
		b.images = imageTaste{names: c.Images, containers: c.Containers}
	}
	return b
}

// sync brings the board up to date with the view. It returns false if there is more to look at than the step's work
// allows: then it goes on the next time.
func (b *board) sync(v *View, m *meter) bool {
	if b.epoch != v.ring.epoch {
		b.reseat(v)
		m.Spend(len(v.nodes) * workNode)
	}
	if b.topo.renewed() {
		b.forget()
		b.seen = 0
	}
	v.since(b.seen, func(slot int32) {
		c := &b.cells[slot]
		c.stale = c.stale || v.nodes[slot].staticAt >= b.seen
		if !c.dirty {
			c.dirty = true
			b.dirty = append(b.dirty, slot)
		}
	})
	b.seen = v.log.head()
	for len(b.dirty) > 0 {
		if m.out() {
			return false
		}
		last := len(b.dirty) - 1
		slot := b.dirty[last]
		b.dirty = b.dirty[:last]
		m.Spend(b.lookCost(&v.nodes[slot], &b.cells[slot]))
		b.look(v, slot)
	}
	return true
}

// lookCost is the work of looking at a node.
func (b *board) lookCost(n *node, c *cell) int {
	cost := workLook + b.terms()*workTerm + len(n.noms)*workPod + len(b.class.Ports)
	if (!c.known || c.stale) && n.obj != nil {
		cost += b.asks + len(n.obj.Spec.Taints)*(1+len(b.class.Tolerations)) + len(b.images.names)*workNode
	}
	return cost
}

// openCost is the work of scoring the groups that nodes are in.
func (b *board) openCost() int { return len(b.filled) * (workGroup + b.terms()*workTerm) }

// terms is how many rules between pods are asked.
func (b *board) terms() int {
	if b.topo == nil {
		return 0
	}
	return b.topo.judge.Terms()
}

// forget drops what is known of the nodes, because what the class sees of other pods is grouped in another way now.
func (b *board) forget() {
	clear(b.cells)
	clear(b.byKey)
	clear(b.histAt)
	b.groups, b.filled, b.hist, b.lastGroup, b.dirty, b.levelBytes = nil, b.filled[:0], nil, 0, b.dirty[:0], 0
	b.changes++
}

// reseat puts the nodes back into buckets after the ring gave them new ranks.
func (b *board) reseat(v *View) {
	b.epoch = v.ring.epoch
	for len(b.cells) < len(v.nodes) {
		b.cells = append(b.cells, cell{})
	}
	for _, g := range b.groups {
		*g = group{groupKey: g.groupKey}
	}
	b.levelBytes = 0
	b.filled = b.filled[:0]
	for i := range b.cells {
		if c := &b.cells[i]; c.placed {
			c.placed = false
			b.put(v, int32(i), c)
		}
	}
}

// version tells two states of a board's verdicts apart; that of a board is never the zero one.
type version struct{ changes, rules uint64 }

func (b *board) version(v *View) version {
	now := version{changes: b.changes + 1}
	if b.topo != nil {
		now.rules = v.topo.Version()
	}
	return now
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
	c.dirty = false
	now := *c
	if !c.known || c.stale {
		b.lookStatic(v, n, &now)
	} else if b.topo != nil {
		key := b.groups[c.group].groupKey
		key.topo = b.topo.group(n)
		now.group = b.groupOf(key)
	}
	var scratch model.Usage
	now.fails = now.static | model.UsageFailures(b.class, &n.alloc, n.usageOf(b.class, &scratch))
	if now.fails == 0 {
		// NM4: nominated pods count in filters, not in scores, as in kube-scheduler.
		now.score = b.profile.usageScore(b.class, &n.alloc, &n.usage)
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
func (b *board) lookStatic(v *View, n *node, c *cell) {
	c.known, c.stale = true, false
	var key groupKey
	if b.topo != nil {
		key.topo = b.topo.group(n)
	}
	if b.images.names != nil {
		key.images = b.images.of(v, n)
	}
	c.static = 0
	if !n.plain || !b.anyNode {
		c.static = model.NodeFailures(b.class, n.obj)
		key.affinity, key.taints = b.class.PreferredAffinity(n.obj), b.class.PreferNoScheduleCount(n.obj)
	}
	c.group = b.groupOf(key)
}

// count moves a node in the histogram from one verdict to another; now is nil for a node that is gone.
func (b *board) count(before, now *cell) {
	if before.known && now != nil && before.fails == now.fails && before.group == now.group {
		return
	}
	var from, to tallyKey
	if before.known {
		from = tallyKey{before.fails, b.groups[before.group].topo}
	}
	if now != nil {
		to = tallyKey{now.fails, b.groups[now.group].topo}
	}
	if before.known && now != nil && from == to {
		return
	}
	b.changes++
	if before.known {
		b.tally(from).nodes--
	}
	if now != nil {
		b.tally(to).nodes++
	}
}

// tally returns the count of what nodes have in common. Where only the nodes themselves matter there are few different
// ones, and a walk is faster than a map.
func (b *board) tally(key tallyKey) *tally {
	if b.topo == nil {
		for i := range b.hist {
			if b.hist[i].tallyKey == key {
				return &b.hist[i]
			}
		}
	} else if i, ok := b.histAt[key]; ok {
		return &b.hist[i]
	} else {
		if b.histAt == nil {
			b.histAt = map[tallyKey]int32{}
		}
		b.histAt[key] = int32(len(b.hist))
	}
	b.hist = append(b.hist, tally{tallyKey: key})
	return &b.hist[len(b.hist)-1]
}

// failsOn returns everything that keeps the class off a node.
func (b *board) failsOn(slot int32) model.Failures {
	c := &b.cells[slot]
	return c.fails | b.topo.fails(b.groups[c.group].topo)
}

// fits says whether a node passes every filter.
func (b *board) fits(slot int32) bool {
	return b.cells[slot].placed && b.topo.fails(b.groups[b.cells[slot].group].topo) == 0
}

func (b *board) groupOf(key groupKey) int32 {
	if g := b.lastGroup; int(g) < len(b.groups) && b.groups[g].groupKey == key {
		return g
	}
	i, ok := b.byKey[key]
	if !ok {
		i = int32(len(b.groups))
		b.groups = append(b.groups, &group{groupKey: key})
		b.byKey[key] = i
	}
	b.lastGroup = i
	return i
}

func (b *board) put(v *View, slot int32, c *cell) {
	g := b.groups[c.group]
	if g.n == 0 {
		g.at = int32(len(b.filled))
		b.filled = append(b.filled, c.group)
	}
	before := g.bytes
	g.add(c.score, v.nodes[slot].rank, len(v.nodes))
	b.levelBytes += g.bytes - before
	c.placed = true
}

func (b *board) take(v *View, slot int32, c *cell) {
	if !c.placed {
		return
	}
	g := b.groups[c.group]
	before := g.bytes
	g.remove(c.score, v.nodes[slot].rank)
	b.levelBytes += g.bytes - before
	if g.n == 0 {
		last := len(b.filled) - 1
		b.filled[g.at] = b.filled[last]
		b.groups[b.filled[g.at]].at = g.at
		b.filled = b.filled[:last]
	}
	c.placed = false
}
