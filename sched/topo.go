package sched

import (
	"math"

	"github.com/berth-dev/berth/model"
)

// topoView is what a board's class sees of the pods around a node (topology spread, inter-pod affinity both ways): a
// model.Judge, and what normalising its scores needs. A nil one sees nothing: it fails nobody and scores nothing.
type topoView struct {
	class  *model.Class // of the judge: one of those that are alike
	judge  *model.Judge
	layout uint64

	hardWeight int64 // of the required affinity of placed pods
	scale      model.SpreadScale
	groups     []int32
	nodes      []int32
	raw        []int64
}

// see makes ready to decide about a class of the given likeness. The judge stays that of the class that it was of
// first, for as long as that one is like it: the groups of nodes are his.
func (t *topoView) see(topo *model.Topology, c *model.Class, likeness string) {
	if topo.Judged(t.class) {
		t.judge = topo.Judge(t.class)
	}
	if !topo.Judged(t.class) || t.judge.Likeness() != likeness {
		t.class, t.judge = c, topo.Judge(c)
	}
}

// renewed says whether the groups are other ones than when it was last asked.
func (t *topoView) renewed() bool {
	if t == nil || t.layout == t.judge.Layout() {
		return false
	}
	t.layout = t.judge.Layout()
	return true
}

func (t *topoView) group(n *node) int32 { return t.judge.Group(n.name) }

// fails is what keeps the class off all nodes of a group.
func (t *topoView) fails(group int32) model.Failures {
	if t == nil {
		return 0
	}
	return t.judge.FailsGroup(group)
}

// score adds to the scores of groups whose nodes pass every filter what PodTopologySpread and InterPodAffinity give
// them.
func (t *topoView) score(open []*group, p *profile) {
	if t == nil {
		return
	}
	spread, affinity := t.judge.Scores()
	if spread && p.spread != 0 {
		t.scoreSpread(open, p.spread)
	}
	if affinity && p.interPod != 0 {
		t.scoreAffinity(open, p.interPod)
	}
}

// ignored marks a group whose nodes lack a key of the soft constraints (TS4).
const ignored = -1

// scoreSpread: TS10. The fewer pods of its kind around a node, the better.
func (t *topoView) scoreSpread(open []*group, weight int64) {
	t.groups, t.nodes, t.raw = t.groups[:0], t.nodes[:0], t.raw[:0]
	for _, g := range open {
		t.groups, t.nodes = append(t.groups, g.topo), append(t.nodes, g.n)
	}
	t.judge.Scale(&t.scale, t.groups, t.nodes)
	least, most := int64(math.MaxInt64), int64(0)
	for _, g := range open {
		raw, scored := t.judge.RawSpread(g.topo, &t.scale)
		if !scored {
			t.raw = append(t.raw, ignored)
			continue
		}
		t.raw = append(t.raw, raw)
		least, most = min(least, raw), max(most, raw)
	}
	for i, g := range open {
		switch raw := t.raw[i]; {
		case raw == ignored:
		case most == 0:
			g.score += weight * maxNodeScore
		default:
			g.score += weight * (maxNodeScore * (most + least - raw) / most)
		}
	}
}

// scoreAffinity: AF2. The more attracted by the pods around a node, the better.
func (t *topoView) scoreAffinity(open []*group, weight int64) {
	t.raw = t.raw[:0]
	least, most := int64(math.MaxInt64), int64(math.MinInt64)
	for _, g := range open {
		raw := t.judge.RawAffinity(g.topo, t.hardWeight)
		t.raw = append(t.raw, raw)
		least, most = min(least, raw), max(most, raw)
	}
	if most <= least {
		return
	}
	for i, g := range open {
		g.score += weight * share(t.raw[i]-least, most-least)
	}
}
