package fsm

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/api/berthv1"
	"github.com/berth-dev/berth/model"
	"github.com/berth-dev/berth/queue"
)

// applyPreemption nominates a pod and evicts its victims, and returns how many
// were evicted; or says why not.
func (tx *Tx) applyPreemption(d *PreemptDecision, decidedAt int64) (evicted int, why string) {
	pod, e, why := tx.schedulable(PodRef{d.Key, d.UID})
	switch {
	case why != "":
		return 0, why
	case e.Class().NeverPreempts: // PC12
		return 0, "the pod's class never preempts"
	case !*tx.view.SchedulerConfig().Spec.Preemption.Enabled: // PC11
		return 0, "preemption is switched off"
	}
	node, ok := tx.view.Nodes.Get(d.Node)
	if !ok {
		return 0, "node " + d.Node + " is gone"
	}
	rules := tx.view.ruledClass(e.Class(), pod)
	tx.view.billVolumes(rules)
	if !tx.countFor(rules, pod) {
		return 0, stillCounting
	}
	if n, ok := tx.view.Nominations.Get(d.Key); ok && tx.view.stillPromised(n) {
		return 0, fmt.Sprintf("the pod waits for its victims on node %s", n.Node)
	}
	victims, why := tx.checkVictims(d, e)
	if why != "" {
		return 0, why
	}
	victims, why = tx.checkRoom(victims, d, rules, node)
	if why != "" {
		return 0, why
	}
	beyond, why := tx.judgeVictims(victims, e.Class())
	if why != "" {
		return 0, why
	}
	return tx.carryOutPreemption(pod, e, d, decidedAt, victims, beyond), ""
}

// stillPromised: the victims of a nomination are on their way out and the node
// could take the pod then, so nobody else has to go for it (T5).
func (v *live) stillPromised(n *Nomination) bool {
	node, ok := v.Nodes.Get(n.Node)
	return ok && n.Waits() && v.mayStillTake(node, n)
}

// mayStillTake says whether a node can take the pod that is nominated to it if
// only pods have to go for that.
func (v *live) mayStillTake(node *corev1.Node, n *Nomination) bool {
	rules := v.ruledClassOf(n.Key(), n.Class())
	v.billUnits(v.askCost(rules, node))
	if !rules.failures(node, v.usage.Offer(n.Node), v.Usage(n.Node)).Resolvable() {
		return false
	}
	return !slices.ContainsFunc(v.barredFrom(rules, n.Node, n.Key(), nil), func(r model.Reason) bool {
		return !r.Kind.Resolvable()
	})
}

// checkVictims returns the victims that are still there. They must be bound to
// the node and of lower priority than the preemptor (PR6). Those on their way
// out already only have to be waited for.
func (tx *Tx) checkVictims(d *PreemptDecision, e *QueueEntry) ([]*corev1.Pod, string) {
	victims := make([]*corev1.Pod, 0, len(d.Victims))
	named := make(map[string]bool, len(d.Victims))
	for _, planned := range d.Victims {
		if named[planned.Key] {
			return nil, refusedVictim(planned.Key, "is named twice")
		}
		named[planned.Key] = true
		victim, ok := tx.findPod(PodRef{planned.Key, planned.UID})
		switch {
		case !ok || model.Terminal(victim):
			continue // gone on its own
		case victim.Spec.NodeName == "":
			return nil, refusedVictim(planned.Key, "is on no node")
		case model.Priority(victim) >= e.Priority:
			return nil, refusedVictim(planned.Key, fmt.Sprintf(priorityWord+"%d"+notBelowWord+"%d", model.Priority(victim), e.Priority))
		}
		victims = append(victims, victim)
	}
	if len(victims) == 0 {
		return nil, "every victim is gone already"
	}
	return victims, ""
}

// checkRoom says why the eviction would be in vain (PR13, PR17): the preemptor
// would not fit even without its victims, or fits beside them. If it is needed
// and helps, it returns those who have to go for it.
func (tx *Tx) checkRoom(victims []*corev1.Pod, d *PreemptDecision, c ruled, node *corev1.Node) ([]*corev1.Pod, string) {
	if o := tx.view.obstacles(c, node, d.Key, nil); o.none() {
		return nil, "node " + d.Node + " takes the pod without an eviction"
	}
	if o := tx.view.obstacles(c, node, d.Key, victims); !o.none() {
		return nil, explain(d.Node, o.reasons())
	}
	victims = tx.letOff(victims, d, c, node)
	nodes := map[string]bool{}
	for _, victim := range victims {
		if victim.Spec.NodeName != d.Node && !model.Terminating(victim) {
			nodes[victim.Spec.NodeName] = true
		}
	}
	if most := int(*tx.view.SchedulerConfig().Spec.Preemption.MaxOtherNodes); len(nodes) > most {
		return nil, fmt.Sprintf("victims are on %d other nodes, and may be on %d", len(nodes), most)
	}
	return victims, ""
}

// carryOutPreemption nominates and evicts, all at once (NM1, PR12), and returns
// how many were evicted.
func (tx *Tx) carryOutPreemption(
	pod *corev1.Pod, e *QueueEntry, d *PreemptDecision, decidedAt int64, victims []*corev1.Pod, beyond map[types.UID]bool,
) (evicted int) {
	v := tx.view
	if n, ok := v.Nominations.Get(d.Key); ok {
		tx.endNomination(n, berthv1.PreemptionReleased, "replaced by a later decision")
	}
	tx.releaseNominationsOn(d.Node, int64(e.Priority), d.Key, func(n *Nomination) string { // NM3
		who := string(pod.UID)
		if n.Namespace == pod.Namespace { // PR20
			who = pod.Name
		}
		return fmt.Sprintf("node %s was taken by pod %s of higher priority", d.Node, who)
	})
	waiting := make([]VictimRef, len(victims))
	records := make([]berthv1.Victim, len(victims))
	lastEnd := v.TimeUnixNano()
	for i, victim := range victims {
		waiting[i] = VictimRef{Key: PodKey(victim.Namespace, victim.Name), UID: victim.UID}
		if victim.Spec.NodeName != d.Node {
			waiting[i].Node = victim.Spec.NodeName
		}
		records[i] = berthv1.Victim{
			Namespace: victim.Namespace, Name: victim.Name, UID: victim.UID, Priority: model.Priority(victim),
			Node: victim.Spec.NodeName, ViolatesBudget: beyond[victim.UID],
			WaitedFor: model.Terminating(victim), EvictedAt: micro(tx.toldToEnd(victim)),
		}
		lastEnd = max(lastEnd, tx.endsBy(victim))
	}
	tx.nominate(pod, d, decidedAt, waiting, records, lastEnd)
	diagnosis := d.Diagnosis
	if diagnosis == nil {
		diagnosis = e.Diagnosis
	}
	joined, group := v.joined(e, pod)
	state := berthv1.QueueNominated
	older := v.Version() >= SinceNothingOlder && v.isNewer(e, decidedAt)
	if older || tx.missedRoom(decidedAt, joined, group, d.Diagnosis) { // QU8: an event in flight
		state = berthv1.QueueBackoff
	}
	tx.recordAttempt(joined, queue.Attempt{Diagnosis: diagnosis, State: state})
	tx.announce(d.Key, pod, corev1.PodReasonUnschedulable, d.Diagnosis, d.Node)
	message := pod.Spec.SchedulerName + ": preempting to accommodate a higher priority pod"
	for i, victim := range victims {
		if model.Terminating(victim) {
			continue // nobody is evicted twice
		}
		tx.evictVictim(waiting[i].Key, victim, pod, d.Node, message)
		evicted++
	}
	return evicted
}

// evictVictim begins a victim's end; message is what is said of it on the pod.
func (tx *Tx) evictVictim(key string, victim, preemptor *corev1.Pod, node, message string) {
	by := "pod " + string(preemptor.UID)
	if preemptor.Namespace == victim.Namespace { // PR20: a name is not shown across namespaces
		by = preemptor.Namespace + "/" + preemptor.Name
	}
	tx.scheduled(schedulerOf(preemptor), victim, corev1.EventTypeNormal, "Preempted", "Preempted by "+by+" on node "+node)
	tx.disrupt(key, victim, disruptor{reason: corev1.PodReasonPreemptionByScheduler, message: message})
}

// endsBy is when a victim has to be gone, in Unix nanoseconds.
func (tx *Tx) endsBy(victim *corev1.Pod) int64 {
	if model.Terminating(victim) {
		return victim.DeletionTimestamp.UnixNano()
	}
	return tx.view.TimeUnixNano() + int64(model.Seconds(gracePeriod(victim, nil)))
}

// toldToEnd is when a victim was told to end: now, or when its deletion began.
func (tx *Tx) toldToEnd(victim *corev1.Pod) int64 {
	if !model.Terminating(victim) {
		return tx.view.TimeUnixNano()
	}
	began := victim.DeletionTimestamp.Time
	if grace := victim.DeletionGracePeriodSeconds; grace != nil {
		began = began.Add(-model.Seconds(*grace))
	}
	return began.UnixNano()
}
