package sched

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/model"
	"github.com/berth-dev/berth/store"
)

// maxChanges is how many changes are taken from the feed at once.
const maxChanges = 1 << 8

// glimpse is what a step looks at: a state and a time. A step that is not through with its first decision when its work
// is used up is gone on with in the next one, which looks at the same: whatever changes meanwhile, a decision that was
// begun comes to its end.
type glimpse struct {
	state   *fsm.View // nil: the next step takes the newest
	nowNano int64
	// at is the entry of the queue at which the next step goes on; "" is the first. Those before it were decided in
	// earlier plans, or their failure is held back: so many.
	at               types.UID
	passedOver, held int
	steps            int // that were made for the pod there
	hiding           *hiding
}

// follow brings the view up to the state that is looked at. It returns false if there is more to do than the step's work
// allows: then it goes on the next time. When the feed no longer reaches back far enough, or the view carries too many
// slots of nodes long gone, the view is built anew.
func (s *Scheduler) follow() bool {
	state := s.seen.state
	s.tryFaultyAgain()
	s.configureAs(state.SchedulerConfig())
	if s.view == nil || s.broken || s.loading == nil && s.view.gone > len(s.view.nodes)/2+64 {
		s.beginLoad(state)
	}
	s.broken = true // if this panics
	up := s.loading != nil || s.lost || s.catchUp(state)
	if s.lost {
		s.beginLoad(state)
		up = true
	}
	up = up && (s.loading == nil || s.load()) && s.retire()
	s.broken = false
	return up
}

// catchUp takes in what the feed has; false if it does not reach back far enough, or if there is more of it than the
// step's work allows.
func (s *Scheduler) catchUp(state *fsm.View) bool {
	for s.revision < state.Revision() {
		changes, err := s.state.Feed().After(s.revision, maxChanges)
		if err != nil {
			s.lost = true // the view is to be built anew
			return false
		}
		if len(changes) == 0 {
			// The state is published a moment before its changes are in the feed; they are seen next time.
			break
		}
		for i := range changes {
			if changes[i].Revision > state.Revision() {
				return true
			}
			if s.meter.out() {
				return false
			}
			if s.takeChange(&changes[i]); s.lost {
				return false
			}
			s.revision = changes[i].Revision
			s.chargeView(workChange)
		}
	}
	return true
}

// chargeView charges a change of the view, and what counting it by topology domains cost.
func (s *Scheduler) chargeView(units int) {
	work := s.view.topo.Cost()
	s.meter.take(units + int(work-s.view.charged)*workCount + s.view.work)
	s.view.charged, s.view.work = work, 0
}

// retire takes the plans off the view that were settled, and whose outcome the view shows. It returns false if that is
// more than the step's work allows.
func (s *Scheduler) retire() bool {
	for i := 0; i < len(s.plans); {
		p := s.plans[i]
		if !p.settled || p.settledAt > s.revision {
			i++
			continue
		}
		for len(p.assumptions) > 0 {
			if s.meter.out() {
				return false
			}
			last := len(p.assumptions) - 1
			f := p.assumptions[last]
			p.assumptions = p.assumptions[:last]
			if s.takeIn(nil, func() { s.retract(f) }); s.lost {
				return false
			}
			s.chargeView(workChange)
		}
		s.plans = slices.Delete(s.plans, i, i+1)
	}
	return true
}

// take applies one change of the state to the view.
func (s *Scheduler) take(c *store.Change) {
	switch row := c.New.(type) {
	case *corev1.Pod:
		if old, ok := c.Old.(*corev1.Pod); ok && old.UID != row.UID {
			s.dropPod(old)
		}
		s.putPod(row, nil)
		return
	case *corev1.Node:
		s.view.putNode(row.Name, row)
		return
	case *corev1.Namespace:
		s.view.topo.PutNamespace(row.Name, row.Labels)
		return
	case *policyv1.PodDisruptionBudget:
		old, _ := c.Old.(*policyv1.PodDisruptionBudget)
		s.putBudget(old, row)
		return
	case *fsm.Nomination:
		if old, ok := c.Old.(*fsm.Nomination); ok && old.UID != row.UID {
			s.dropNomination(old)
		}
		s.putNomination(row)
		return
	}
	if c.New != nil {
		return
	}
	switch row := c.Old.(type) {
	case *corev1.Pod:
		s.dropPod(row)
	case *corev1.Node:
		s.view.putNode(row.Name, nil)
	case *policyv1.PodDisruptionBudget:
		s.putBudget(row, nil)
	case *corev1.Namespace:
		s.view.topo.RemoveNamespace(row.Name)
	case *fsm.Nomination:
		s.dropNomination(row)
	}
}

// putPod takes in a pod as the state shows it. is is what it asks for there, nil if that has to be looked up.
func (s *Scheduler) putPod(obj *corev1.Pod, is *model.Class) {
	if obj.Spec.NodeName == "" {
		return
	}
	if model.Terminal(obj) {
		s.dropPod(obj)
		return
	}
	v := s.view
	slot := v.slot(obj.Spec.NodeName)
	p, known := v.pods[obj.UID]
	if !known {
		p = s.landed(obj, slot, is)
	}
	before := p.obj
	p.obj = obj
	if before != nil && (!sharesSpec(before, obj) || !model.SameCharge(before, obj)) || !maps.Equal(p.class.Labels, obj.Labels) {
		if c := s.classOf(obj); c.Signature != p.class.Signature {
			v.alter(p, func(p *pod) { p.class, p.coverage = c, nil })
		}
	}
	if start := model.StartUnixNano(obj); start != p.StartUnixNano {
		v.setStart(p, start)
	}
	if leaving := model.Terminating(obj); leaving != p.leaving {
		v.alter(p, func(p *pod) { p.leaving = leaving })
	}
	if p.coverage != nil && len(p.coverage.budgets) > 0 && before != nil &&
		(model.Ready(before) != model.Ready(obj) || before.Status.Phase != obj.Status.Phase) {
		v.touch(p.Slot) // it may matter to a budget (PD8, PD9)
	}
	if p.evicting > 0 || p.charged != nil {
		s.charge(p)
	}
}

// sharesSpec says whether two states of a pod have one spec in memory, as they have but for a change of the spec
// itself.
func sharesSpec(a, b *corev1.Pod) bool {
	x, y := a.Spec.Containers, b.Spec.Containers
	return len(x) > 0 && len(y) > 0 && &x[0] == &y[0]
}

// landed records a pod that the state shows on a node for the first time. Where a binding of ours said so already, the
// pod only changes from assumed to real.
func (s *Scheduler) landed(obj *corev1.Pod, slot int32, is *model.Class) *pod {
	v := s.view
	if f, ok := s.assumptions[obj.UID]; ok && f.pod != nil {
		p := f.pod
		f.pod, f.over = nil, true
		if p.Slot == slot {
			v.pods[obj.UID] = p
			s.unmarkUnsettled(f)
			return p
		}
		v.removePod(p)
		s.unmarkUnsettled(f)
	}
	if is == nil {
		is = s.classOf(obj)
	}
	p := newPod(obj, is)
	p.Slot, p.evicting = slot, s.evicting[obj.UID]
	v.pods[obj.UID] = p
	v.addPod(p)
	return p
}

// spareClasses is how many classes are kept for bound pods beyond twice as many as there are; classes in use stay alive
// through their pods.
const spareClasses = 1 << 12

func (s *Scheduler) classOf(obj *corev1.Pod) *model.Class {
	if s.seen.state != nil {
		if c := s.seen.state.PlacedClass(obj); c != nil {
			return c
		}
	}
	s.meter.take(workClass * (1 + len(obj.Spec.InitContainers) + len(obj.Spec.Containers)))
	if a := obj.Spec.Affinity; a != nil {
		s.meter.take(a.Size())
	}
	s.book.maxClasses = spareClasses + 2*s.view.topo.Kinds()
	if s.view.classes.Len() > s.book.maxClasses {
		s.view.classes = model.Classes{}
	}
	if s.seen.state != nil {
		obj = s.seen.state.Charged(obj)
	}
	return s.view.classes.Of(obj)
}

// dropPod takes a pod off its node that ended or was removed. A binding of ours that has not been applied comes too
// late then.
func (s *Scheduler) dropPod(obj *corev1.Pod) {
	s.view.dropBare(obj.UID)
	if f, ok := s.assumptions[obj.UID]; ok && f.pod != nil {
		s.view.removePod(f.pod)
		f.pod, f.over = nil, true
		s.unmarkUnsettled(f)
	}
	if p, ok := s.view.pods[obj.UID]; ok {
		s.recover(p)
		s.view.removePod(p)
		delete(s.view.pods, obj.UID)
	}
}

func (s *Scheduler) putNomination(n *fsm.Nomination) {
	h := s.view.holdOf(n.UID)
	if now := n.Claim(); h.base == nil || !h.base.Same(now) {
		h.base = &nomination{Claim: now}
	}
	s.view.settleHold(n.UID, h)
}

func (s *Scheduler) dropNomination(n *fsm.Nomination) {
	if h, ok := s.view.noms[n.UID]; ok {
		h.base = nil
		s.view.settleHold(n.UID, h)
	}
}
