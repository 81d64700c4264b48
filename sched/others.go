package sched

import (
	"slices"

	"github.com/berth-dev/berth/model"
)

// Rules between pods are part of the question who has to leave. Anti-affinity, the class's own and that of placed pods,
// makes every pod in its way one that has to go, wherever in the domain it is. A hard spread constraint is one more
// dimension, in which each pod of the domain frees one. And of the pods that required affinity needs, one has to stay,
// which is a rule like a budget's (PR14). So pods on other nodes are movable too where such a rule needs them gone.

// surroundings is what a problem knows of the pods on other nodes.
type surroundings struct {
	view  *View
	judge *model.Judge
	meter *meter
	// most is on how many other nodes victims may be.
	most int
	// near: nobody on another node goes who does not have to.
	near bool
	// first: the class is to be the first of those that its required affinity is about, so all the others go (AF2).
	first bool
	// wide: pods of other nodes may go that help only because others go; see thorough.
	wide bool

	seen     map[obstacleID]seenObstacle
	seenPods int // in all of seen

	obstacles []model.Obstacle // of the node under way
	spread    []model.Obstacle // those of them that are dimensions
	anchors   []model.Obstacle
	pending   []*pod  // in the way, and leaving already
	elsewhere []int32 // other nodes that have forced pods, each once
	cut       bool    // some movable pods were left out
}

// obstacleID is model.Obstacle.ID.
type obstacleID struct {
	counter uint64
	domain  int32
}

type seenObstacle struct {
	at   uint64 // model.Obstacle.ChangedAt for which it is right
	pods []*pod // in the order of importance
	stay int32  // of pods that are not leaving
}

// maxSeen bounds the obstacles whose pods are remembered, maxSeenPods all of these.
const (
	maxSeen     = 1 << 12
	maxSeenPods = 1 << 17
)

// maxElsewhere bounds the pods on other nodes among which a problem chooses.
const maxElsewhere = 64

// look finds out what the rules between pods have against a node; false if pods' leaving cannot end it.
func (o *surroundings) look(n *node) bool {
	o.spread, o.pending, o.elsewhere, o.cut = o.spread[:0], o.pending[:0], o.elsewhere[:0], false
	o.obstacles, o.anchors = nil, nil
	var ok bool
	if o.obstacles, ok = o.judge.Obstacles(n.name); !ok {
		return false
	}
	o.obstacles = slices.DeleteFunc(o.obstacles, func(b model.Obstacle) bool {
		if b.Kind == model.TopologySpread {
			o.spread = append(o.spread, b)
		}
		return b.Kind == model.TopologySpread
	})
	if o.first {
		if !o.judge.Founds(n.name) {
			return false
		}
		o.obstacles = append(o.obstacles, o.judge.Kin()...)
	} else {
		o.anchors = o.judge.Anchors(n.name)
	}
	return true
}

// skew finds the spread constraints that the node would break with some pods gone: where others are fewer, the least is
// less. false if no more pods' leaving can end it.
func (o *surroundings) skew(n *node, gone []*pod) bool {
	if len(gone)+len(o.pending) == 0 {
		return true // as look found it
	}
	ok := true
	o.without(gone, func() {
		var left []model.Obstacle
		left, ok = o.judge.Obstacles(n.name)
		o.spread = append(o.spread[:0], left...)
	})
	return ok
}

// without calls f as if some pods, and those that are in the way and leaving, were not there.
func (o *surroundings) without(gone []*pod, f func()) {
	o.view.topo.Peek(func() {
		for _, v := range gone {
			o.view.removeRules(v)
		}
		for _, v := range o.pending {
			o.view.removeRules(v)
		}
		f()
		for _, v := range o.pending {
			o.view.addRules(v)
		}
		for _, v := range gone {
			o.view.addRules(v)
		}
	})
}

func (v *View) removeRules(p *pod) { v.topo.RemovePod(v.nodes[p.slot].name, p.class, p.isLeaving()) }
func (v *View) addRules(p *pod)    { v.topo.AddPod(v.nodes[p.slot].name, p.class, p.isLeaving()) }

// podsOf returns the pods that an obstacle is about, wherever they are, the most important first.
func (o *surroundings) podsOf(b *model.Obstacle) []*pod { return o.lookAt(b).pods }

// stayingOf is how many of the pods that an obstacle is about are not leaving.
func (o *surroundings) stayingOf(b *model.Obstacle) int32 { return o.lookAt(b).stay }

func (o *surroundings) lookAt(b *model.Obstacle) seenObstacle {
	var id obstacleID
	id.counter, id.domain = b.ID()
	changed := b.ChangedAt()
	if known, ok := o.seen[id]; ok && known.at == changed {
		return known
	}
	var slots []int32
	b.Nodes(func(name string) { slots = append(slots, o.view.byName[name]) })
	slices.Sort(slots)
	var pods []*pod
	for _, slot := range slices.Compact(slots) {
		n := &o.view.nodes[slot]
		for _, p := range n.pods {
			if b.Counts(n.name, p.class) {
				pods = append(pods, p)
			}
		}
	}
	slices.SortFunc(pods, moreImportant)
	o.meter.spend(len(slots)*workNode + len(pods)*workPod)
	if o.seen == nil || len(o.seen) >= maxSeen || o.seenPods > maxSeenPods {
		o.seen, o.seenPods = map[obstacleID]seenObstacle{}, 0
	}
	o.seenPods += len(pods) - len(o.seen[id].pods)
	now := seenObstacle{at: changed, pods: pods}
	for _, v := range pods {
		if !v.isLeaving() {
			now.stay++
		}
	}
	o.seen[id] = now
	return now
}

// surround adds what the rules between pods ask for to a problem that holds the pods of its node: who has to go, and who
// elsewhere may. It returns what still bars the node if somebody in the way cannot be evicted.
func (p *problem) surround(n *node) (model.Failures, bool) {
	o := p.others
	if !o.look(n) {
		return o.judge.Fails(n.name), false
	}
	for i := range o.obstacles {
		for _, v := range o.podsOf(&o.obstacles[i]) {
			switch {
			case v.isLeaving() && v.priority >= p.class.Priority && o.obstacles[i].Kind == model.PodAffinity:
				// It need not be waited for if it is near: the class has it now, and is the first when it is gone.
			case v.priority >= p.class.Priority:
				return o.judge.Fails(n.name), false
			case v.isLeaving():
				if !slices.Contains(o.pending, v) {
					o.pending = append(o.pending, v)
				}
			case !slices.Contains(p.forced, v):
				p.forced = append(p.forced, v)
				if v.slot != n.slot && !slices.Contains(o.elsewhere, v.slot) {
					o.elsewhere = append(o.elsewhere, v.slot)
				}
				if len(o.elsewhere) > o.most { // whoever else is in the way
					return o.judge.Fails(n.name), false
				}
			}
		}
	}
	if !o.skew(n, p.forced) {
		return o.judge.Fails(n.name), false
	}
	p.movable = slices.DeleteFunc(p.movable, func(v *pod) bool { return slices.Contains(p.forced, v) })
	slices.SortFunc(p.forced, moreImportant)
	p.reachElsewhere(n)
	return 0, true
}

// reachElsewhere adds the pods of other nodes that spread constraints count: the least important, for these are the ones
// that the cost prefers.
func (p *problem) reachElsewhere(n *node) {
	o := p.others
	if o.most == 0 || o.near {
		return
	}
	counted := o.spread
	if o.wide {
		counted = o.judge.Skewing(n.name)
	}
	before := len(p.movable)
	for i := range counted {
		pods := o.podsOf(&counted[i])
		for j := len(pods) - 1; j >= 0; j-- {
			v := pods[j]
			if v.slot == n.slot || v.isLeaving() || v.priority >= p.class.Priority || slices.Contains(p.forced, v) || slices.Contains(p.movable[before:], v) {
				continue
			}
			if len(p.movable)-before == maxElsewhere {
				o.cut = true
				break
			}
			p.movable = append(p.movable, v)
		}
	}
	if len(p.movable) > before {
		slices.SortFunc(p.movable, moreImportant)
	}
}

// measureSpread adds a dimension for each spread constraint that the node would break.
func (p *problem) measureSpread() {
	o := p.others
	var wanted int64
	for i := range o.spread {
		p.need = append(p.need, o.spread[i].Need)
		wanted += o.spread[i].Need
	}
	if left := int64(o.most - len(o.elsewhere)); wanted > left || o.wide {
		p.roam = int32(left)
	}
}

// freeSpread appends what a pod frees in the dimensions of spread constraints.
func (p *problem) freeSpread(v *pod) {
	for i := range p.others.spread {
		freed := int64(0)
		if p.countsFor(&p.others.spread[i], v) {
			freed = 1
		}
		p.frees = append(p.frees, freed)
	}
}

// opens is the other node that a movable pod's eviction takes one of the few of; -1 for none.
func (p *problem) opens(v *pod) int32 {
	if p.roam < 0 || v.slot == p.slot || slices.Contains(p.others.elsewhere, v.slot) {
		return -1
	}
	return v.slot
}

func (p *problem) countsFor(b *model.Obstacle, v *pod) bool {
	return b.Counts(p.others.view.nodes[v.slot].name, v.class)
}

// anchor adds the rules of required affinity: of the pods that it needs, one has to stay that is not leaving already. It
// returns false if none can.
func (p *problem) anchor() bool {
	o := p.others
	for i := range o.anchors {
		b := &o.anchors[i]
		stay := o.stayingOf(b)
		for _, v := range p.forced {
			if !v.isLeaving() && p.countsFor(b, v) {
				stay--
			}
		}
		if stay == 0 {
			return false
		}
		r := rule{allowed: stay - 1, hard: true}
		for _, v := range p.movable {
			if p.countsFor(b, v) {
				r.members++
			}
		}
		if r.members <= r.allowed || len(p.rules) == maxRules {
			continue
		}
		p.rules = append(p.rules, r)
		for len(p.spends) < len(p.movable) {
			p.spends = append(p.spends, 0)
		}
		for j, v := range p.movable {
			if p.countsFor(b, v) {
				p.spends[j] |= 1 << (len(p.rules) - 1)
			}
		}
	}
	return true
}

// elsewhereOf is on how many other nodes than the given one pods are.
func elsewhereOf(slot int32, pods []*pod) int {
	var others []int32
	for _, v := range pods {
		if v.slot != slot && !slices.Contains(others, v.slot) {
			others = append(others, v.slot)
		}
	}
	return len(others)
}
