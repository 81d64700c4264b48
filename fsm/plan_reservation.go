package fsm

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/api/berthv1"
	"github.com/berth-dev/berth/model"
)

// ReserveDecision keeps what becomes free on a node for a pod that has been
// blocked for long, or goes on keeping it.
type ReserveDecision struct {
	Key  string `msgpack:"key"`
	UID  string `msgpack:"uid"`
	Node string `msgpack:"node"`
	// BackfillSeconds is how long pods may run that come to the node meanwhile;
	// 0 when nobody knows when the node will be free.
	BackfillSeconds int64 `msgpack:"backfill_seconds,omitempty"`
}

// ReservationSeconds is how long a reservation lasts unless it is renewed.
const ReservationSeconds = 60

// A reservation is a nomination without victims. It counts like any other
// (NM4): pods of at most its priority find on the node only what is left
// beside it, so what becomes free there adds up until the pod fits; but for pods
// that surely end before (BackfillSeconds), which may use it meanwhile. There is
// one in the cluster at a time: two could each hold a part of what one needs.

// Reservation is the one that there is, nil if there is none.
func (v *View) Reservation() *Nomination {
	n, _ := v.Nominations.Get(v.usage.Reserved()) // nobody's key is empty
	return n
}

// MayReserve says whether room may be kept for a pod now: it is switched on,
// and the pod has been waiting for room for long enough.
func (v *View) MayReserve(e *QueueEntry, nowUnixNano int64) bool {
	if e.State != berthv1.QueueUnschedulable || e.Diagnosis == nil || e.BlockedSinceUnixNano == 0 || !v.waitsForLong(e, nowUnixNano) {
		return false
	}
	if e.Refusals > 0 && nowUnixNano < e.BackoffUntilUnixNano {
		return false // the last one was refused
	}
	for i := range e.Diagnosis.Reasons {
		if e.Diagnosis.Reasons[i].Kind == model.InsufficientResource {
			return true
		}
	}
	return false
}

// waitsForLong says whether the configuration keeps room for a pod that has been blocked for as long as this one.
func (v *View) waitsForLong(e *QueueEntry, nowUnixNano int64) bool {
	spec := &v.SchedulerConfig().Spec.Reservation
	return *spec.Enabled && nowUnixNano-e.BlockedSinceUnixNano >= int64(model.Seconds(int64(*spec.AfterSeconds)))
}

// endDisallowedReservation gives back the room that the configuration does not keep any more; otherwise it would be kept
// from everybody until the reservation's time is over.
func (tx *Tx) endDisallowedReservation() {
	v := tx.view
	r := v.Reservation()
	if r == nil {
		return
	}
	if e, ok := v.Queue.Get(r.Key()); !ok || !v.waitsForLong(e, v.TimeUnixNano()) || v.profileFor(e.Class().SchedulerName) == nil {
		tx.releaseNomination(r, "")
	}
}

// applyReservation makes or renews a reservation, or says why not.
func (tx *Tx) applyReservation(d *ReserveDecision) string {
	v := tx.view
	pod, e, why := tx.schedulable(PodRef{d.Key, d.UID})
	if why != "" {
		return why
	}
	node, ok := v.Nodes.Get(d.Node)
	if !ok {
		return "node " + d.Node + " is gone"
	}
	old, nominated := v.Nominations.Get(d.Key)
	switch r := v.Reservation(); {
	case r != nil && r.Key() != d.Key:
		return fmt.Sprintf("room is being kept for another pod on node %s", r.Node)
	case nominated && !old.Reserved:
		return "the pod is nominated to node " + old.Node
	case !v.MayReserve(e, v.TimeUnixNano()):
		return "the pod has not been waiting for room for long enough"
	}
	v.billNominees(d.Node)
	u := v.usage.Taken(d.Node, e.Priority, e.Class().RunsAtMostSeconds, d.Key)
	rules := v.ruledClass(e.Class(), pod)
	v.billVolumes(rules)
	v.billUnits(v.askCost(rules, node))
	f := rules.failures(node, v.usage.Offer(d.Node), &u)
	if f == 0 {
		return "node " + d.Node + " has room for the pod"
	}
	if !f.Resolvable() {
		return explain(d.Node, rules.check(node, v.usage.Offer(d.Node), &u))
	}
	next := &Nomination{
		Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, FirstRevision: v.Revision() + 1,
		Node: d.Node, Priority: model.Priority(pod), Reserved: true, BackfillSeconds: d.BackfillSeconds,
		DeadlineUnixNano: v.TimeUnixNano() + int64(model.Seconds(ReservationSeconds)),
	}
	next.SetClass(e.Class())
	if nominated && old.Node == d.Node {
		next.FirstRevision = old.FirstRevision
	} else if nominated {
		tx.endNomination(old, berthv1.PreemptionReleased, "")
	}
	put(tx, v.Nominations, d.Key, next)
	if !nominated || old.Node != d.Node {
		tx.storePromise(e)
		tx.announce(d.Key, pod, "", nil, d.Node)
		tx.scheduled(schedulerOf(pod), pod, corev1.EventTypeNormal, "Reserved", fmt.Sprintf("Room that comes free on node %s is kept for the pod", d.Node))
	}
	return ""
}
