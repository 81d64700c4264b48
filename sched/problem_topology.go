package sched

import (
	"slices"

	"github.com/berth-dev/berth/model"
	"github.com/berth-dev/berth/sched/victims"
)

// Rules between pods are part of the question who has to leave. Anti-affinity, the class's own and that of placed pods,
// makes every pod in its way one that has to go, wherever in the domain it is. A hard spread constraint is one more
// dimension, in which each pod of the domain frees one. And of the pods that required affinity needs, one has to stay,
// which is a rule like a budget's (PR14). So pods on other nodes are movable too where such a rule needs them gone.

// topoProblem is what a problem knows of the rules between pods, and of the pods on other nodes.
type topoProblem struct {
	view  *View
	judge *model.Judge
	meter *meter
	// most is on how many other nodes victims may be.
	most int
	// near: nobody on another node goes who does not have to.
	near bool
	// first: the class is to be the first of those that its required affinity is about, so all the others go (AF2).
	first bool
	// wide: pods of other nodes may go that help only because others go; see tryAll.
	wide bool

	seen     map[obstacleID]seenObstacle
	seenPods int // in all of seen

	obstacles []model.Obstacle // of the node under way
	spread    []model.Obstacle // those of them that are dimensions
	needed    []model.Obstacle // the pods that required affinity is about
	pending   []*pod           // in the way, and leaving already
	elsewhere []int32          // other nodes that have forced pods, each once
	cut       bool             // some movable pods were left out
	tooFar    bool             // those who would have to go are on more than most other nodes
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

// workTold is what it takes to tell of a pod whether a rule is about it, in counters that are looked at.
const workTold = 80

// maxElsewhere bounds the pods on other nodes among which a problem chooses.
const maxElsewhere = 64

// look finds out what the rules between pods have against a node; false if pods' leaving cannot end it.
func (o *topoProblem) look(n *node) bool {
	o.spread, o.pending, o.elsewhere, o.cut = o.spread[:0], o.pending[:0], o.elsewhere[:0], false
	o.tooFar = false
	o.obstacles, o.needed = nil, nil
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
		o.needed = o.judge.Anchors(n.name)
	}
	return true
}

// skew finds the spread constraints that the node would break with some pods gone: where others are fewer, the least is
// less. false if no more pods' leaving can end it.
func (o *topoProblem) skew(n *node, gone []*pod) bool {
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
func (o *topoProblem) without(gone []*pod, f func()) {
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

func (v *View) removeRules(p *pod) { v.topo.RemovePod(v.nodes[p.Slot].name, p.class, p.isLeaving()) }
func (v *View) addRules(p *pod)    { v.topo.AddPod(v.nodes[p.Slot].name, p.class, p.isLeaving()) }

// podsOf returns the pods that an obstacle is about, wherever they are, the most important first.
func (o *topoProblem) podsOf(b *model.Obstacle) []*pod { return o.lookAt(b).pods }

// stayingOf is how many of the pods that an obstacle is about are not leaving.
func (o *topoProblem) stayingOf(b *model.Obstacle) int32 { return o.lookAt(b).stay }

// known is what is remembered of an obstacle, if that is still right.
func (o *topoProblem) known(b *model.Obstacle) (seenObstacle, bool) {
	var id obstacleID
	id.counter, id.domain = b.ID()
	s, ok := o.seen[id]
	return s, ok && s.at == b.ChangedAt()
}

// farFlung says whether those in the way of a node, who would all have to go, are on more other nodes than victims may be
// on: that is told without looking at every pod.
func (o *topoProblem) farFlung(b *model.Obstacle, n *node) bool {
	if _, ok := o.known(b); ok {
		return false // it is as cheap to look at them
	}
	beyond, looked := b.Beyond(o.most, n.name)
	o.meter.Spend(looked * workTerm)
	return beyond
}

func (o *topoProblem) lookAt(b *model.Obstacle) seenObstacle {
	var id obstacleID
	id.counter, id.domain = b.ID()
	changed := b.ChangedAt()
	if known, ok := o.known(b); ok {
		return known
	}
	var slots []int32
	looked := b.Nodes(func(name string) { slots = append(slots, o.view.byName[name]) })
	slices.Sort(slots)
	var pods []*pod
	for _, slot := range slots {
		n := &o.view.nodes[slot]
		looked += len(n.pods) * workTold
		for _, p := range n.pods {
			if b.Counts(n.name, p.class) {
				pods = append(pods, p)
			}
		}
	}
	slices.SortFunc(pods, moreImportant)
	o.meter.Spend(looked*workTerm + len(slots)*workNode + len(pods)*workPod)
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

// surround adds what the rules between pods ask for to a problem that holds the pods of its node: who has to go, and
// who elsewhere may. It returns what still bars the node if somebody in the way cannot be evicted.
func (p *problem) surround(n *node) (model.Failures, bool) {
	o := p.topo
	if !o.look(n) {
		return o.judge.Fails(n.name), false
	}
	forced := make(map[*pod]struct{}, len(p.forced))
	for _, v := range p.forced {
		forced[v] = struct{}{}
	}
	for i := range o.obstacles {
		if o.farFlung(&o.obstacles[i], n) {
			o.tooFar = true
			return o.judge.Fails(n.name), false
		}
		pods := o.podsOf(&o.obstacles[i])
		o.meter.Spend(len(pods) * workPod)
		for _, v := range pods {
			_, is := forced[v]
			switch {
			case v.isLeaving() && v.Priority >= p.class.Priority && o.obstacles[i].Kind == model.PodAffinity:
				// It need not be waited for if it is near: the class has it now, and is the first when it is gone.
			case v.Priority >= p.class.Priority:
				return o.judge.Fails(n.name), false
			case v.isLeaving():
				if !slices.Contains(o.pending, v) {
					o.pending = append(o.pending, v)
				}
			case !is:
				forced[v] = struct{}{}
				p.forced = append(p.forced, v)
				if v.Slot != n.slot && !slices.Contains(o.elsewhere, v.Slot) {
					o.elsewhere = append(o.elsewhere, v.Slot)
				}
				if len(o.elsewhere) > o.most { // whoever else is in the way
					o.tooFar = true
					return o.judge.Fails(n.name), false
				}
			}
		}
	}
	if !o.skew(n, p.forced) {
		return o.judge.Fails(n.name), false
	}
	if len(forced) > 0 {
		p.movable = slices.DeleteFunc(p.movable, func(v *pod) bool {
			_, is := forced[v]
			return is
		})
	}
	slices.SortFunc(p.forced, moreImportant)
	p.reachElsewhere(n)
	return 0, true
}

// reachElsewhere adds the pods of other nodes that spread constraints count: the least important, for these are the
// ones that the cost prefers.
func (p *problem) reachElsewhere(n *node) {
	o := p.topo
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
			if v.Slot == n.slot || v.isLeaving() || v.Priority >= p.class.Priority || slices.Contains(p.forced, v) ||
				slices.Contains(p.movable[before:], v) {
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
	o, q := p.topo, &p.solver
	var wanted int64
	for i := range o.spread {
		q.Need = append(q.Need, o.spread[i].Need)
		wanted += o.spread[i].Need
	}
	q.Most, q.Elsewhere = int32(o.most), o.elsewhere
	if left := int64(o.most - len(o.elsewhere)); wanted > left || o.wide {
		q.Roam = int32(left)
	}
}

// freeSpread appends what a pod frees in the dimensions of spread constraints.
func (p *problem) freeSpread(v *pod) {
	for i := range p.topo.spread {
		freed := int64(0)
		if p.countsFor(&p.topo.spread[i], v) {
			freed = 1
		}
		p.solver.Frees = append(p.solver.Frees, freed)
	}
}

func (p *problem) countsFor(b *model.Obstacle, v *pod) bool {
	return b.Counts(p.topo.view.nodes[v.Slot].name, v.class)
}

// keepNeeded adds the rules of required affinity: of the pods that it needs, one has to stay that is not leaving
// already. It returns false if none can.
func (p *problem) keepNeeded() bool {
	o, q := p.topo, &p.solver
	for i := range o.needed {
		b := &o.needed[i]
		stay := o.stayingOf(b)
		for _, v := range p.forced {
			if !v.isLeaving() && p.countsFor(b, v) {
				stay--
			}
		}
		if stay == 0 {
			return false
		}
		r := victims.Rule{Allowed: stay - 1, Hard: true}
		for _, v := range p.movable {
			if p.countsFor(b, v) {
				r.Members++
			}
		}
		if r.Members <= r.Allowed || len(q.Rules) == victims.MaxRules {
			continue
		}
		p.addRule(r, nil)
		for len(q.Spends) < len(p.movable) {
			q.Spends = append(q.Spends, 0)
		}
		for j, v := range p.movable {
			if p.countsFor(b, v) {
				q.Spends[j] |= 1 << (len(q.Rules) - 1)
			}
		}
	}
	return true
}
