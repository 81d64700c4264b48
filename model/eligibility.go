package model

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// eligibility says which nodes are domains for a constraint that honours the class's node affinity (TS5) or its tolerations
// (TS6): those that these admit, with all keys of the class's constraints (TS4).
type eligibility struct {
	id      string
	refs    int // counters that go by it, and those that will
	keepers int // those of them that are kept, see PrepareKept
	keys    []string
	class   *Class

	affinity, taints bool
	held             int64 // bytes, as judges count them
	ok               slotSet
	looked           int // slots, from the first on, that were looked at when it was made
}

// slotSet is a set of nodes' slots.
type slotSet []uint64

func (s slotSet) has(slot int32) bool {
	return int(slot>>6) < len(s) && s[slot>>6]&(1<<(slot&63)) != 0
}

func (s *slotSet) put(slot int32, in bool) {
	for in && int(slot>>6) >= len(*s) {
		*s = append(*s, 0)
	}
	switch {
	case in:
		(*s)[slot>>6] |= 1 << (slot & 63)
	case int(slot>>6) < len(*s):
		(*s)[slot>>6] &^= 1 << (slot & 63)
	}
}

func (e *eligibility) admits(n *corev1.Node) bool {
	for _, key := range e.keys {
		if _, ok := n.Labels[key]; !ok {
			return false
		}
	}
	// What a profile adds to the class's affinity does not say which nodes are domains.
	return (!e.affinity || matchesAffinity(e.class, n)) && (!e.taints || taintFailures(e.class, n) == 0)
}

// asks is about how much a node is asked, in what looking at a label takes.
func (e *eligibility) asks() int64 {
	n := int64(1 + len(e.keys))
	if e.affinity {
		n += int64(len(e.class.nodeLabels) + e.class.Asks())
	}
	if e.taints {
		n += int64(len(e.class.Tolerations))
	}
	return n
}

// eligibilityOf returns the eligibility for a constraint of the class, which may not be worked out yet and has to be
// released; nil where the keys alone say it. keys are all that a node must have.
func (t *Topology) eligibilityOf(c *Class, s *spreadTerm, keys []string) *eligibility {
	e := &eligibility{keys: keys, class: c, affinity: s.honorAffinity && c.selects, taints: s.honorTaints}
	if !e.affinity && !e.taints {
		return nil
	}
	e.id = strings.Join(keys, ",") + "\x00" + c.Shape
	if e.affinity {
		e.id += "a"
	}
	if e.taints {
		e.id += "t"
	}
	if known, ok := t.eligible[e.id]; ok {
		known.refs++
		return known
	}
	e.refs = 1
	t.eligible[e.id] = e
	if e.taints {
		t.byTaints++
	}
	e.held = countBytes + int64(len(t.spots)/8) + e.asks()*askedBytes
	t.judges.bytes += e.held
	return e
}

// looks is what it costs to ask a node, as Topology.Work counts.
func (e *eligibility) looks() int64 { return 1 + e.asks()/asksPerLook }

// asksPerLook are the things that a node is asked in the time of a look at a count.
const asksPerLook = 4

// askedBytes are counted for each thing that an eligibility asks of a node, though it takes less: so is bounded what it
// takes to look at a node that changed for all that there are.
const askedBytes = 128

// releaseEligibility lets go of one, which is forgotten when nothing goes by it; nil: nothing.
func (t *Topology) releaseEligibility(e *eligibility) {
	if e == nil {
		return
	}
	if e.refs--; e.refs > 0 {
		return
	}
	delete(t.eligible, e.id)
	t.judges.bytes -= e.held
	if e.taints {
		t.byTaints--
	}
}

// lookAtNodes works out which nodes are eligible, until out says that this is enough for now, and says whether it is known
// of all. Of those that come or change meanwhile it is known anyway.
func (t *Topology) lookAtNodes(e *eligibility, out func() bool) bool {
	for e.looked < len(t.spots) {
		if out() {
			return false
		}
		now := t.spots[e.looked:min(len(t.spots), e.looked+1+t.fillStep/int(e.looks()))]
		for i := range now {
			if n := now[i].node; n != nil {
				e.ok.put(int32(e.looked+i), e.admits(n))
			}
		}
		e.looked += len(now)
		t.work += int64(len(now)) * e.looks()
	}
	return true
}
