package sched

import (
	"cmp"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/model"
)

// A flight is one decision between being made and being settled. While it lasts the view shows the cluster as if the
// decision held, and the pod is not decided again. Nothing in the view is overwritten: a flight adds its layer when it
// is laid and takes it away when it is lifted, whatever the state has shown in between.
type flight struct {
	uid      types.UID
	key      string
	class    *model.Class
	priority int32

	kind flightKind
	node string

	pod        *pod        // of a binding, until the state shows the pod on the node
	over       bool        // of a binding: the state has shown what became of the pod
	victims    []types.UID // of a preemption
	nomination *nomination // of a preemption or a reservation
	backfill   int64       // of a reservation
	made       int64       // of a reservation that is renewed where it is: it keeps its place among the nominations
	ends       []types.UID // nominations that the decision ends (NM3, NM7)
	anchored   bool        // counted in its node's unsettled; not while its plan is being made
	// stirs are the classes of the pod and of its victims, counted in Scheduler.stirred while the decision is anchored. They
	// are those that it was made with: whatever the state shows by now, a refusal may bring them back.
	stirs []*model.Class
}

type flightKind uint8

const (
	flightBind flightKind = iota
	flightPreempt
	flightFail
)

// lay puts the decision's layer over the view.
func (s *Scheduler) lay(f *flight) {
	v := s.view
	s.flights[f.uid] = f
	for _, uid := range f.ends {
		h := v.holdOf(uid)
		h.hidden++
		v.settleHold(uid, h)
	}
	switch f.kind {
	case flightBind:
		if f.over {
			return
		}
		f.pod = &pod{uid: f.uid, key: f.key, class: f.class, priority: f.priority, start: model.NeverStarted,
			slot: v.slot(f.node), evicting: s.evicting[f.uid]}
		v.addPod(f.pod)
	case flightPreempt:
		made := cmp.Or(f.made, notYet)
		f.nomination = &nomination{uid: f.uid, key: f.key, node: f.node, class: f.class, priority: f.priority, made: made, backfill: f.backfill}
		h := v.holdOf(f.uid)
		h.assumed = f.nomination
		v.settleHold(f.uid, h)
		for _, uid := range f.victims {
			s.setEvicting(uid, 1)
		}
	}
}

// lift takes the decision's layer off the view: what the state shows now is what became of it.
func (s *Scheduler) lift(f *flight) {
	v := s.view
	delete(s.flights, f.uid)
	if f.pod != nil {
		v.removePod(f.pod)
		f.pod = nil
	}
	if f.nomination != nil {
		if h := v.holdOf(f.uid); h.assumed == f.nomination {
			h.assumed = nil
			v.settleHold(f.uid, h)
		}
		for _, uid := range f.victims {
			s.setEvicting(uid, -1)
		}
	}
	for _, uid := range f.ends {
		h := v.holdOf(uid)
		h.hidden--
		v.settleHold(uid, h)
	}
	s.unanchor(f)
}

// setEvicting counts the unsettled preemptions that evict a pod.
func (s *Scheduler) setEvicting(uid types.UID, by int32) {
	if s.evicting[uid] += by; s.evicting[uid] == 0 {
		delete(s.evicting, uid)
	}
	p, ok := s.view.pods[uid]
	if f, flying := s.flights[uid]; !ok && flying && f.pod != nil {
		p, ok = f.pod, true // bound and evicted by decisions that are both unsettled
	}
	if ok {
		s.view.alter(p, func(p *pod) { p.evicting = s.evicting[uid] })
		s.charge(p)
	}
}

// anchor notes that the decision lies over its node and that the state does not show it yet.
func (s *Scheduler) anchor(f *flight) {
	if f.kind == flightFail || f.kind == flightBind && f.pod == nil {
		return
	}
	f.anchored = true
	slot := s.view.slot(f.node)
	s.view.nodes[slot].unsettled++
	s.anchors[slot] = struct{}{}
	for _, c := range f.stirs {
		s.stirred[c]++
	}
}

func (s *Scheduler) unanchor(f *flight) {
	if !f.anchored {
		return
	}
	f.anchored = false
	slot := s.view.slot(f.node)
	if s.view.nodes[slot].unsettled--; s.view.nodes[slot].unsettled == 0 {
		delete(s.anchors, slot)
	}
	for _, c := range f.stirs {
		if s.stirred[c]--; s.stirred[c] == 0 {
			delete(s.stirred, c)
		}
	}
}
