package sched

import (
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/model"
)

// hiding is what is out of sight while a nominated pod is decided about.
type hiding struct {
	uid   types.UID // of the pod
	own   *nomination
	aside []types.UID
	muted []*nomination
}

// hideOwn takes out of sight what does not stand in the way of a nominated pod, and returns its nomination; nil if it has
// none. It may be hidden since an earlier step.
func (s *Scheduler) hideOwn(e *fsm.QueueEntry, c *model.Class) *nomination {
	if h := s.seen.hiding; h != nil && h.uid == e.UID {
		return h.own
	}
	s.show()
	own := s.ownNomination(e)
	if own == nil {
		return nil
	}
	h := &hiding{uid: e.UID, own: own, aside: s.yielding(own)}
	s.hide(h.aside, 1)
	h.muted = s.mute(own, c)
	s.seen.hiding = h
	return own
}

// show brings back what is hidden.
func (s *Scheduler) show() {
	h := s.seen.hiding
	if h == nil {
		return
	}
	s.seen.hiding = nil
	s.hide(h.aside, -1)
	s.unmute(h.muted)
}

// ownNomination is the nomination of the pod that counts now.
func (s *Scheduler) ownNomination(e *fsm.QueueEntry) *nomination {
	if h, ok := s.view.noms[e.UID]; ok {
		return h.placed
	}
	return nil
}

// yielding returns the nominations to a nominated pod's node that do not stand in its way: its own and those that
// yield.
func (s *Scheduler) yielding(own *nomination) []types.UID {
	uids := []types.UID{own.UID}
	for _, n := range s.view.nodes[own.slot].noms {
		if n.YieldsTo(&own.Claim) {
			uids = append(uids, n.UID)
		}
	}
	return uids
}

// mute takes nominations to other nodes out of the sight of rules about other pods, and returns them: those that yield
// to a nominated pod as on its own node. They keep their room.
func (s *Scheduler) mute(own *nomination, c *model.Class) []*nomination {
	judge := s.view.topo.Judge(c)
	if judge.Plain() {
		return nil
	}
	var out []*nomination
	s.meter.Spend(len(s.view.noms) * workTerm)
	// order does not matter: each is taken out by itself.
	for _, h := range s.view.noms {
		if n := h.placed; n != nil && n.slot != own.slot && n.YieldsTo(&own.Claim) && judge.Minds(n.Class) {
			out = append(out, n)
		}
	}
	for _, n := range out {
		s.view.topo.Unnominate(n.Node, n.Class, n.Priority)
		s.view.touch(n.slot)
	}
	return out
}

func (s *Scheduler) unmute(muted []*nomination) {
	for _, n := range muted {
		s.view.topo.Nominate(n.Node, n.Class, n.Priority)
		s.view.touch(n.slot)
	}
}

// hide takes nominations out of sight, or back.
func (s *Scheduler) hide(uids []types.UID, by int32) {
	for _, uid := range uids {
		h := s.view.holdOf(uid)
		h.away += by
		s.view.settleHold(uid, h)
	}
}
