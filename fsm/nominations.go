package fsm

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/api/berthv1"
	"github.com/berth-dev/berth/model"
	"github.com/berth-dev/berth/usage"
)

// SinceGoneTogether is the LogVersion from which on the victims of a nomination that has many are struck many at a time.
const SinceGoneTogether = 24

// victimGone strikes a pod that has left its node from the nominations that
// wait for it. A pod all of whose victims are gone is tried at once.
func (tx *Tx) victimGone(victim *corev1.Pod) {
	v := tx.view
	gone := usage.GoneVictim{UID: victim.UID, AtUnixNano: v.TimeUnixNano()}
	for _, n := range v.usage.WaitingFor(victim.UID) {
		left, struck := n.Strike(gone, v.Version() >= SinceGoneTogether)
		if struck != nil {
			v.cache.work += int64(len(n.Victims) * costVictim)
		}
		put(tx, v.Nominations, n.Key(), left)
		tx.recordGone(n.Preemption, struck)
		if left.Waits() {
			continue
		}
		if e, ok := v.Queue.Get(n.Key()); ok && e.State != berthv1.QueueSetAside {
			put(tx, v.Queue, n.Key(), e.AtOnce())
		}
	}
}

// recordGone writes into the record of a preemption which of its victims have gone.
func (tx *Tx) recordGone(preemption string, gone []usage.GoneVictim) {
	old, ok := tx.view.Preemptions.Get(preemption)
	if !ok || len(gone) == 0 {
		return
	}
	p := *old
	p.Status.Victims = withGone(old.Status.Victims, gone)
	put(tx, tx.view.Preemptions, preemption, &p)
}

func withGone(victims []berthv1.Victim, gone []usage.GoneVictim) []berthv1.Victim {
	at := make(map[types.UID]int64, len(gone))
	for _, g := range gone {
		at[g.UID] = g.AtUnixNano
	}
	victims = slices.Clone(victims)
	for i := range victims {
		if t, is := at[victims[i].UID]; is && victims[i].GoneAt == nil {
			victims[i].GoneAt = micro(t)
		}
	}
	return victims
}

// endNomination takes a nomination away, writes down how it ended, and lets
// others have the room, unless the pod itself took it.
func (tx *Tx) endNomination(n *Nomination, state berthv1.PreemptionState, reason string) {
	v := tx.view
	remove(tx, v.Nominations, n.Key())
	if old, ok := v.Preemptions.Get(n.Preemption); ok {
		p := *old
		p.Status.State, p.Status.ReleasedReason = state, reason
		if len(n.Gone) > 0 {
			p.Status.Victims = withGone(old.Status.Victims, n.Gone)
		}
		put(tx, v.Preemptions, n.Preemption, &p)
	}
}

// releaseNomination ends the nomination of a pod that goes on waiting: the pod
// is tried again after its backoff (NM3, NM7).
func (tx *Tx) releaseNomination(n *Nomination, reason string) {
	v := tx.view
	tx.endNomination(n, berthv1.PreemptionReleased, reason)
	if pod, ok := v.Pods.Get(n.Key()); ok && pod.Status.NominatedNodeName != "" {
		tx.modifyPod(n.Key(), pod, func(pod *corev1.Pod) { pod.Status.NominatedNodeName = "" })
	}
	e, ok := v.Queue.Get(n.Key())
	waits := ok && e.State == berthv1.QueueUnschedulable && !n.Reserved && v.Version() >= SinceNothingOlder // for others' victims there
	switch {
	case !ok:
	case e.State == berthv1.QueueNominated, waits:
		tx.wake(e)
	default:
		tx.storePromise(e)
	}
}

// storePromise stores a waiting pod's entry anew, because what the pod is promised
// has changed: whoever watches the queue is told.
func (tx *Tx) storePromise(e *QueueEntry) {
	next := *e
	put(tx, tx.view.Queue, e.Key(), &next)
}

// releaseNominationsOn ends the nominations to a node whose priority is below
// a limit.
func (tx *Tx) releaseNominationsOn(node string, below int64, except string, reason func(n *Nomination) string) {
	var out []*Nomination
	tx.view.NominationsOnNode(node, func(n *Nomination) bool {
		if int64(n.Priority) < below && n.Key() != except {
			out = append(out, n)
		}
		return true
	})
	for _, n := range out {
		tx.releaseNomination(n, reason(n))
	}
}

func because(reason string) func(*Nomination) string {
	return func(*Nomination) string { return reason }
}

// nominate records a decided preemption: the nomination, and the record of it.
func (tx *Tx) nominate(pod *corev1.Pod, d *PreemptDecision, decidedAt int64, waiting []VictimRef, victims []berthv1.Victim, lastEndUnixNano int64) {
	v := tx.view
	deadline := lastEndUnixNano + int64(model.Seconds(int64(*v.SchedulerConfig().Spec.NominationSlackSeconds)))
	minimal := d.Minimal
	record := &berthv1.Preemption{
		Status: berthv1.PreemptionStatus{
			Preemptor: podRefOf(pod), Node: d.Node, Victims: victims,
			Revision: v.Revision() + 1, RaftIndex: int64(v.Index()), DecidedAtRevision: decidedAt,
			Time: tx.nowMicro(), State: berthv1.PreemptionTerminating, Deadline: micro(deadline),
			Alternatives: d.Alternatives, Minimal: &minimal, SearchLimit: d.SearchLimit,
		},
	}
	record.Namespace = pod.Namespace
	record.Name = fmt.Sprintf("%s.%x", pod.Name, v.Revision()+1)
	record.UID = tx.newUID()
	record.CreationTimestamp = tx.now()
	recordKey := PodKey(record.Namespace, record.Name)
	put(tx, v.Preemptions, recordKey, record)
	tx.trimPreemptions()
	n := &Nomination{
		Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, FirstRevision: v.Revision() + 1,
		Node: d.Node, Priority: model.Priority(pod), Victims: waiting,
		DeadlineUnixNano: deadline, Preemption: recordKey,
	}
	n.SetClass(v.classOf(pod))
	put(tx, v.Nominations, n.Key(), n)
}
