package sched

import (
	"cmp"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/model"
	"github.com/berth-dev/berth/sched/victims"
	"github.com/berth-dev/berth/usage"
)

// An assumption is one decision between being made and being settled. While it lasts the view shows the cluster as if
// the decision held, and the pod is not decided again. Nothing in the view is overwritten: an assumption adds its layer
// when it is made and takes it away when it is retracted, whatever the state has shown in between.
type assumption struct {
	uid      types.UID
	key      string
	class    *model.Class
	priority int32

	kind assumptionKind
	node string
	step uint64 // in which it was made

	pod        *pod        // of a binding, until the state shows the pod on the node
	over       bool        // of a binding: the state has shown what became of the pod
	victims    []types.UID // of a preemption
	nomination *nomination // of a preemption or a reservation
	backfill   int64       // of a reservation
	made       int64       // of a reservation that is renewed where it is: it keeps its place among the nominations
	ends       []types.UID // nominations that the decision ends (NM3, NM7)
	marked     bool        // counted in its node's unsettled; not while its plan is being made
	chooses    bool        // of a binding that gives claims volumes: which, only the state shows
	// classes are those of the pod and of its victims, counted in Scheduler.unsettledClasses while the decision is
	// marked. They are those that it was made with: whatever the state shows by now, a refusal may bring them back.
	classes []*model.Class
}

type assumptionKind uint8

const (
	assumeBind assumptionKind = iota
	assumePreempt
	assumeFail
)

// assume puts the decision's layer over the view.
func (s *Scheduler) assume(f *assumption) {
	v := s.view
	s.assumptions[f.uid] = f
	for _, uid := range f.ends {
		h := v.holdOf(uid)
		h.hidden++
		v.settleHold(uid, h)
	}
	switch f.kind {
	case assumeBind:
		if f.over {
			return
		}
		f.pod = &pod{
			Pod: victims.Pod{UID: f.uid, Priority: f.priority, StartUnixNano: model.NeverStarted, Slot: v.slot(f.node)},
			key: f.key, class: f.class, evicting: s.evicting[f.uid],
		}
		v.addPod(f.pod)
	case assumePreempt:
		made := cmp.Or(f.made, notYet)
		f.nomination = &nomination{Claim: usage.Claim{
			UID: f.uid, Key: f.key, Node: f.node, Class: f.class, Priority: f.priority, Made: made,
			BackfillSeconds: f.backfill,
		}}
		h := v.holdOf(f.uid)
		h.assumed = f.nomination
		v.settleHold(f.uid, h)
		for _, uid := range f.victims {
			s.setEvicting(uid, 1)
		}
	}
}

// retract takes the decision's layer off the view: what the state shows now is what became of it.
func (s *Scheduler) retract(f *assumption) {
	v := s.view
	delete(s.assumptions, f.uid)
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
	s.unmarkUnsettled(f)
}

// choosing says whether claims are being given volumes that the state does not show yet.
func (s *Scheduler) choosing() bool {
	// order does not matter: one is enough.
	for _, f := range s.assumptions {
		if f.chooses {
			return true
		}
	}
	return false
}

// setEvicting counts the unsettled preemptions that evict a pod.
func (s *Scheduler) setEvicting(uid types.UID, by int32) {
	if s.evicting[uid] += by; s.evicting[uid] == 0 {
		delete(s.evicting, uid)
	}
	p, ok := s.view.pods[uid]
	if f, assumed := s.assumptions[uid]; !ok && assumed && f.pod != nil {
		p, ok = f.pod, true // bound and evicted by decisions that are both unsettled
	}
	if ok {
		s.view.alter(p, func(p *pod) { p.evicting = s.evicting[uid] })
		s.charge(p)
	}
}

// markUnsettled notes that the decision lies over its node and that the state does not show it yet.
func (s *Scheduler) markUnsettled(f *assumption) {
	if f.kind == assumeFail || f.kind == assumeBind && f.pod == nil {
		return
	}
	f.marked = true
	slot := s.view.slot(f.node)
	s.view.nodes[slot].unsettled++
	s.unsettledSlots[slot] = struct{}{}
	for _, c := range f.classes {
		s.unsettledClasses[c]++
	}
}

func (s *Scheduler) unmarkUnsettled(f *assumption) {
	if !f.marked {
		return
	}
	f.marked = false
	slot := s.view.slot(f.node)
	if s.view.nodes[slot].unsettled--; s.view.nodes[slot].unsettled == 0 {
		delete(s.unsettledSlots, slot)
	}
	for _, c := range f.classes {
		if s.unsettledClasses[c]--; s.unsettledClasses[c] == 0 {
			delete(s.unsettledClasses, c)
		}
	}
}
