package sched

import (
	"slices"

	"k8s.io/apimachinery/pkg/types"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/model"
)

// The state machine refuses a decision because something happened since it was made, and then the next one is another.
// When it refuses the same one again for the same reason, the view and the state disagree: then what the view holds of
// the matter is read from the state anew. When that does not help either everything is, and it is told.

// dispute is what a pod's last decision was refused for, and how often in a row.
type dispute struct {
	node   string
	reason string
	times  int
}

const (
	rereadAt    = 2
	reloadAt    = 3
	maxDisputes = 1 << 12
	// maxReread is how many nominations are read anew for one decision; where there are more, everything is.
	maxReread = 1 << 12
	// reloadNanos is the time between two times that everything is read anew because of disputes.
	reloadNanos = 60 * nanosPerSecond
)

// Disagreement is a decision that the state machine refuses again and again for the same reason.
type Disagreement struct {
	Pod, Node, Reason string
	Times             int
}

// Disagreements returns those that were found since it was called last.
func (s *Scheduler) Disagreements() []Disagreement {
	out := s.disagreements
	s.disagreements = nil
	return out
}

// Refused tells which decisions of a plan the state machine refused. It is called before Settle.
func (s *Scheduler) Refused(p *Plan, refusals []fsm.PlanRefusal) {
	for _, f := range p.assumptions {
		i := slices.IndexFunc(refusals, func(r fsm.PlanRefusal) bool { return r.UID == string(f.uid) })
		switch {
		case f.kind == assumeFail, i >= 0 && refusals[i].Deferred:
		case i < 0:
			delete(s.disputes, f.uid)
		default:
			s.disputed(f, refusals[i].Reason)
		}
	}
}

func (s *Scheduler) disputed(f *assumption, reason string) {
	d := s.disputes[f.uid]
	if d.node != f.node || d.reason != reason {
		d = dispute{node: f.node, reason: reason}
	}
	d.times++
	if len(s.disputes) >= maxDisputes {
		clear(s.disputes)
	}
	s.disputes[f.uid] = d
	switch {
	case d.times == rereadAt:
		s.rereads = append(s.rereads, f)
	case d.times >= reloadAt:
		s.disagreements = append(s.disagreements, Disagreement{Pod: f.key, Node: f.node, Reason: reason,
			Times: d.times})
		s.reload = true
	}
}

// settleDisputes reads anew what the view may have wrong. It is called when the view has been brought up to date and no
// decision is under way. It returns false if that is more than the step's work allows.
func (s *Scheduler) settleDisputes(state *fsm.View, now int64) bool {
	if s.reload && now-s.reloadedAt >= reloadNanos || len(s.rereads) > 0 && state.Nominations.Len() > maxReread {
		s.reload, s.reloadedAt, s.rereads = false, now, nil
		s.beginLoad(state)
		return s.follow()
	}
	for len(s.rereads) > 0 {
		if s.meter.out() {
			return false
		}
		f := s.rereads[0]
		s.rereads = s.rereads[1:]
		if s.takeIn(nil, func() { s.reread(state, f) }); s.lost {
			return false
		}
		s.chargeView(state.Nominations.Len() * workChange)
	}
	return true
}

// reread reads anew what the view holds of a decision's node, of all nominations, and of the pod's class.
func (s *Scheduler) reread(state *fsm.View, f *assumption) {
	v := s.view
	// order does not matter: each board by itself.
	for key, b := range s.boards {
		if key.class == f.class.Shape {
			s.drop(b)
		}
	}
	slot, ok := v.byName[f.node]
	if !ok {
		return
	}
	obj, _ := state.Nodes.Get(f.node)
	v.putNode(f.node, nil)
	if obj != nil {
		s.takeIn(obj, func() { v.putNode(f.node, obj) }) // unless it is let be
	}
	s.meter.take(2 * len(v.nodes[slot].pods) * workChange)
	for _, p := range slices.Clone(v.nodes[slot].pods) {
		if p.obj != nil {
			s.dropPod(p.obj)
		}
	}
	n := &v.nodes[slot]
	n.usage = model.Usage{}
	for _, p := range n.pods { // those that no state shows yet
		n.usage = n.usage.With(p.class)
	}
	n.usage = v.bareUsage(slot, n.usage)
	state.ClassesOnNode(f.node, func(obj *corev1.Pod, c *model.Class) bool {
		s.takeIn(obj, func() { s.putPod(obj, c) })
		return true
	})
	var known []types.UID
	// order does not matter: they are put back in the order of the state.
	for uid, h := range v.noms {
		if h.base != nil {
			known = append(known, uid)
		}
	}
	slices.Sort(known)
	for _, uid := range known {
		if h, ok := v.noms[uid]; ok {
			h.base = nil
			v.settleHold(uid, h)
		}
	}
	state.Nominations.Scan("", func(_ string, n *fsm.Nomination) bool {
		s.takeIn(n, func() { s.putNomination(n) })
		return true
	})
}
