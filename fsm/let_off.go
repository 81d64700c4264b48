package fsm

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/model"
)

// SinceOneByOne is the LogVersion from which on a victim that may be let off is
// charged for itself alone: before, all victims were looked at again for each.
const SinceOneByOne = 18

// letOff takes those victims off the list that need not go any more, most
// important ones first: something else left since the plan was made. Those on
// other nodes need not even be waited for: only a rule between pods can need
// them (PR18).
//
// All victims are taken for gone, and one after the other comes back, and stays
// if the node takes the pod beside it.
func (tx *Tx) letOff(victims []*corev1.Pod, d *PreemptDecision, c ruled, node *corev1.Node) []*corev1.Pod {
	v := tx.view
	l := &lettingOff{
		view: v, class: c, node: node, offer: v.usage.Offer(node.Name), left: victims, gone: make(map[string]bool, len(victims)),
		used: v.taken(node.Name, c.class, d.Key).Toward(c.class),
	}
	for _, victim := range victims {
		l.gone[string(victim.UID)] = true
		if victim.Spec.NodeName == node.Name {
			l.used = l.used.Without(v.usage.ClassOf(victim))
		}
	}
	if !v.minds(c) {
		l.all()
		return l.left
	}
	began := v.bill.units
	v.supposeGone(l.beside(), d.Key, victims, func() {
		l.minded = true
		if v.Version() < SinceOneByOne {
			l.yields = v.bill.units - began - len(victims)*costWithout
			v.bill.units = began
		}
		l.all()
	})
	return l.left
}

// lettingOff looks who of a pod's victims may stay.
type lettingOff struct {
	view  *live
	class ruled
	node  *corev1.Node
	offer *model.Resources
	left  []*corev1.Pod // victims, and those who were not looked at yet

	gone   map[string]bool // by UID: who is not there any more
	used   model.Usage     // of the node, by who is there
	minded bool            // rules between pods are asked; the counters know who is there
	yields int             // what was billed for the nominations that yield to the pod
}

func (l *lettingOff) all() {
	l.left = slices.Clone(l.left)
	kept := l.left[:0]
	for i, victim := range l.left {
		stays := false
		if victim.Spec.NodeName != l.node.Name || !model.Terminating(victim) {
			l.charge(len(kept) + len(l.left) - i - 1)
			stays = l.mayStay(victim)
		}
		if !stays {
			kept = append(kept, victim)
		}
	}
	l.left = kept
}

// charge bills the question about one victim, where there are so many others.
func (l *lettingOff) charge(others int) {
	switch {
	case l.view.Version() >= SinceOneByOne:
		l.view.billUnits(costWithout + l.view.askCost(l.class, l.node))
	case l.minded:
		l.view.billUnits(others*costWithout + l.yields)
	}
}

// beside is the class as it is beside those who are there.
func (l *lettingOff) beside() ruled {
	return ruled{l.class.class.WithoutHolders(func(uid string) bool { return l.gone[uid] })}
}

// mayStay says whether the node takes the pod beside one of its victims. Then that
// one is there.
func (l *lettingOff) mayStay(victim *corev1.Pod) bool {
	uid, used, counters := string(victim.UID), l.used, l.view.cache.counters
	if victim.Spec.NodeName == l.node.Name {
		used = used.With(l.view.usage.ClassOf(victim))
	}
	l.gone[uid] = false
	class := l.beside()
	may := class.fits(l.node, l.offer, &used)
	if may && l.minded {
		before := len(counters.told)
		counters.tell(l.view.placed(victim, 1))
		if may = len(l.view.judge(class).Reasons(l.node.Name)) == 0; !may {
			counters.backTo(before)
		}
	}
	if l.gone[uid] = !may; may {
		l.used = used
	}
	return may
}
