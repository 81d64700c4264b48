package fsm

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/api/berthv1"
	"github.com/berth-dev/berth/model"
)

// ApplyPlan carries out what the scheduler decided on the state at Revision.
// Every decision is checked again on the state as it is now and done whole or
// refused whole, each on its own (see PlanResult): so no mistake of a
// scheduler and no change of leader can overcommit a node, bind or evict a pod
// twice, or evict one for a pod that is not nominated.
type ApplyPlan struct {
	Revision    int64             `msgpack:"revision"`
	Bindings    []BindDecision    `msgpack:"bindings,omitempty"`
	Preemptions []PreemptDecision `msgpack:"preemptions,omitempty"`
	Failures    []FailDecision    `msgpack:"failures,omitempty"`
}

// BindDecision gives a pod a node.
type BindDecision struct {
	Key  string `msgpack:"key"`
	UID  string `msgpack:"uid"`
	Node string `msgpack:"node"`
}

// PreemptDecision nominates a pod to a node and evicts the victims there.
type PreemptDecision struct {
	Key     string          `msgpack:"key"`
	UID     string          `msgpack:"uid"`
	Node    string          `msgpack:"node"`
	Victims []PlannedVictim `msgpack:"victims"`
	// Diagnosis is why no node had room as things are.
	Diagnosis    *Diagnosis                      `msgpack:"diagnosis,omitempty"`
	Alternatives *berthv1.PreemptionAlternatives `msgpack:"alternatives,omitempty"`
}

// PlannedVictim is a pod to be evicted.
type PlannedVictim struct {
	Key            string `msgpack:"key"`
	UID            string `msgpack:"uid"`
	ViolatesBudget bool   `msgpack:"violates_budget,omitempty"`
}

// FailDecision parks pods for which no place was found, all for the same
// reasons.
type FailDecision struct {
	Pods      []PodRef   `msgpack:"pods"`
	Diagnosis *Diagnosis `msgpack:"diagnosis"`
	// Error: the attempt itself failed; the pods are tried again after their
	// backoff, whatever happens.
	Error bool `msgpack:"error,omitempty"`
	// ClearNomination: not even preemption would help, so a pod that is still
	// nominated loses its nomination (PR11).
	ClearNomination bool `msgpack:"clear_nomination,omitempty"`
}

// PlanResult tells which decisions of a plan were refused.
type PlanResult struct {
	Refused []PlanRefusal `msgpack:"refused,omitempty"`
}

// PlanRefusal is a decision that was not carried out, and why. What it was
// about is as it was.
type PlanRefusal struct {
	Key    string `msgpack:"key"`
	UID    string `msgpack:"uid"`
	Reason string `msgpack:"reason"`
}

// Apply implements Command.
func (c *ApplyPlan) Apply(tx *Tx) Result {
	var out PlanResult
	refuse := func(key, uid, why string) {
		if why != "" {
			out.Refused = append(out.Refused, PlanRefusal{Key: key, UID: uid, Reason: why})
		}
	}
	for i := range c.Bindings {
		d := &c.Bindings[i]
		refuse(d.Key, d.UID, tx.applyBinding(d))
	}
	for i := range c.Preemptions {
		d := &c.Preemptions[i]
		refuse(d.Key, d.UID, tx.applyPreemption(d, c.Revision))
	}
	helped := map[string]bool{}
	for i := range c.Failures {
		d := &c.Failures[i]
		for _, ref := range d.Pods {
			refuse(ref.Key, ref.UID, tx.applyFailure(ref, d, c.Revision, helped))
		}
	}
	return Result{Plan: &out}
}

// schedulable returns the pod and its queue entry if a decision about it can
// still be carried out, or says why not.
func (tx *Tx) schedulable(ref PodRef) (*corev1.Pod, *QueueEntry, string) {
	pod, ok := tx.findPod(ref)
	switch {
	case !ok:
		return nil, nil, "the pod is gone"
	case pod.Spec.NodeName != "":
		return nil, nil, "the pod is bound to " + pod.Spec.NodeName
	}
	e, ok := tx.view.Queue.Get(ref.Key)
	switch {
	case !ok:
		return nil, nil, "the pod is not waiting"
	case e.State == berthv1.QueueGated:
		return nil, nil, "the pod is gated"
	}
	return pod, e, ""
}

func (tx *Tx) applyBinding(d *BindDecision) string {
	pod, e, why := tx.schedulable(PodRef{d.Key, d.UID})
	if why != "" {
		return why
	}
	node, ok := tx.view.Nodes.Get(d.Node)
	if !ok {
		return "node " + d.Node + " is gone"
	}
	u := tx.view.withNominations(*tx.view.Usage(d.Node), d.Node, e.Priority, d.Key)
	alloc := model.Allocatable(node)
	if !model.Fits(e.class, node, &alloc, &u) {
		return explain(d.Node, model.Check(e.class, node, alloc, &u))
	}
	tx.bind(d.Key, pod, d.Node)
	return ""
}

func (tx *Tx) applyPreemption(d *PreemptDecision, decidedAt int64) string {
	pod, e, why := tx.schedulable(PodRef{d.Key, d.UID})
	switch {
	case why != "":
		return why
	case e.class.NeverPreempts: // PC12
		return "the pod's class never preempts"
	case !*tx.view.SchedulerConfig().Spec.Preemption.Enabled: // PC11
		return "preemption is switched off"
	}
	node, ok := tx.view.Nodes.Get(d.Node)
	if !ok {
		return "node " + d.Node + " is gone"
	}
	victims, why := tx.checkVictims(d, e)
	if why != "" {
		return why
	}
	if why := tx.roomWithout(victims, d, e, node); why != "" {
		return why
	}
	tx.carryOutPreemption(pod, e, d, decidedAt, victims)
	return ""
}

// checkVictims returns the victims that are still there. They must be bound to
// the node and of lower priority than the preemptor (PR6).
func (tx *Tx) checkVictims(d *PreemptDecision, e *QueueEntry) ([]*corev1.Pod, string) {
	victims := make([]*corev1.Pod, 0, len(d.Victims))
	for _, planned := range d.Victims {
		victim, ok := tx.findPod(PodRef{planned.Key, planned.UID})
		switch {
		case !ok || model.Terminal(victim):
			continue // gone on its own
		case victim.Spec.NodeName != d.Node:
			return nil, fmt.Sprintf("victim %s is not on node %s", planned.Key, d.Node)
		case model.Priority(victim) >= e.Priority:
			return nil, fmt.Sprintf("victim %s has priority %d, which is not below %d", planned.Key, model.Priority(victim), e.Priority)
		}
		victims = append(victims, victim)
	}
	if len(victims) == 0 {
		return nil, "every victim is gone already"
	}
	return victims, ""
}

// roomWithout says why the preemptor would not fit even without its victims
// (PR13, PR17); "" if it would.
func (tx *Tx) roomWithout(victims []*corev1.Pod, d *PreemptDecision, e *QueueEntry, node *corev1.Node) string {
	u := *tx.view.Usage(d.Node)
	for _, victim := range victims {
		u = u.Without(tx.view.cache.class(victim))
	}
	u = tx.view.withNominations(u, d.Node, e.Priority, d.Key)
	return explain(d.Node, model.Check(e.class, node, model.Allocatable(node), &u))
}

// carryOutPreemption nominates and evicts, all at once (NM1, PR12).
func (tx *Tx) carryOutPreemption(pod *corev1.Pod, e *QueueEntry, d *PreemptDecision, decidedAt int64, victims []*corev1.Pod) {
	v := tx.view
	if n, ok := v.Nominations.Get(d.Key); ok {
		tx.endNomination(n, berthv1.PreemptionReleased, "replaced by a later decision")
	}
	tx.releaseNominationsOn(d.Node, int64(e.Priority), d.Key, fmt.Sprintf("node %s was taken by pod %s of higher priority", d.Node, pod.UID)) // NM3
	violating := map[types.UID]bool{}
	for _, planned := range d.Victims {
		violating[types.UID(planned.UID)] = planned.ViolatesBudget
	}
	waiting := make([]VictimRef, len(victims))
	records := make([]berthv1.Victim, len(victims))
	longest := int64(0)
	for i, victim := range victims {
		key := PodKey(victim.Namespace, victim.Name)
		waiting[i] = VictimRef{Key: key, UID: victim.UID}
		records[i] = berthv1.Victim{
			Namespace: victim.Namespace, Name: victim.Name, UID: victim.UID, Priority: model.Priority(victim),
			Node: victim.Spec.NodeName, ViolatesBudget: violating[victim.UID], EvictedAt: micro(v.timeUnixNano),
		}
		longest = max(longest, graceOf(victim))
	}
	tx.nominate(pod, d, decidedAt, waiting, records, longest)
	tx.recordAttempt(e, d.Diagnosis, false, berthv1.QueueNominated)
	for _, victim := range victims {
		tx.evictVictim(victim, pod, d.Node)
	}
}

func (tx *Tx) evictVictim(victim, preemptor *corev1.Pod, node string) {
	if model.Terminating(victim) {
		return // it is on its way out already: nobody is evicted twice
	}
	by := fmt.Sprintf("pod %s", preemptor.UID)
	if preemptor.Namespace == victim.Namespace { // PR20: a name is not shown across namespaces
		by = fmt.Sprintf("%s/%s", preemptor.Namespace, preemptor.Name)
	}
	tx.podEvent(victim, corev1.EventTypeNormal, "Preempted", fmt.Sprintf("Preempted by %s on node %s", by, node))
	condition := disruption(tx, corev1.PodReasonPreemptionByScheduler,
		fmt.Sprintf("%s: preempting to accommodate a higher priority pod", preemptor.Spec.SchedulerName))
	tx.deletePod(PodKey(victim.Namespace, victim.Name), victim, nil, condition)
}

func graceOf(pod *corev1.Pod) int64 {
	switch {
	case pod.DeletionGracePeriodSeconds != nil:
		return *pod.DeletionGracePeriodSeconds
	case pod.Spec.TerminationGracePeriodSeconds != nil:
		return *pod.Spec.TerminationGracePeriodSeconds
	}
	return corev1.DefaultTerminationGracePeriodSeconds
}

func (tx *Tx) applyFailure(ref PodRef, d *FailDecision, decidedAt int64, helped map[string]bool) string {
	pod, e, why := tx.schedulable(ref)
	if why != "" {
		return why
	}
	n, nominated := tx.view.Nominations.Get(ref.Key)
	if nominated && d.ClearNomination {
		tx.releaseNomination(n, "not even preemption would help")
		nominated = false
		pod, _ = tx.view.Pods.Get(ref.Key)
		e, _ = tx.view.Queue.Get(ref.Key)
	}
	state := berthv1.QueueUnschedulable
	switch {
	case d.Error:
		state = berthv1.QueueBackoff
	case nominated && len(n.Victims) > 0:
		state = berthv1.QueueNominated
	default:
		h, known := helped[e.class.Signature]
		if !known {
			h = tx.missed(decidedAt, e.class)
			helped[e.class.Signature] = h
		}
		if h { // something happened meanwhile that the decision did not know of
			state = berthv1.QueueBackoff
		}
	}
	tx.recordAttempt(e, d.Diagnosis, d.Error, state)
	tx.recordFailure(ref.Key, pod, d)
	return ""
}

// recordAttempt stores the outcome of an attempt in the queue (QU5).
func (tx *Tx) recordAttempt(e *QueueEntry, diagnosis *Diagnosis, failed bool, state berthv1.QueueState) {
	next := *e
	if failed {
		next.Errors++
	} else {
		next.Errors = 0
		next.Attempts++
		next.Diagnosis = diagnosis
	}
	next.LastAttemptRevision = tx.view.revision + 1
	next.BackoffUntilUnixNano = tx.view.timeUnixNano + tx.backoff(&next, failed)
	if next.BlockedSinceUnixNano == 0 {
		next.BlockedSinceUnixNano = tx.view.timeUnixNano
	}
	next.State = state
	if state == berthv1.QueueBackoff && next.BackoffUntilUnixNano <= tx.view.timeUnixNano {
		next.State = berthv1.QueueActive
	}
	put(tx, tx.view.Queue, e.Key(), &next)
}

// backoff is min(initial<<(n-1), max) in nanoseconds, n being the number of
// consecutive errors or of fruitless attempts; a maximum of 0 switches it off
// (QU5).
func (tx *Tx) backoff(e *QueueEntry, failed bool) int64 {
	spec := &tx.view.SchedulerConfig().Spec
	n := e.Attempts
	if failed {
		n = e.Errors
	}
	seconds := int64(*spec.PodInitialBackoffSeconds)
	most := int64(*spec.PodMaxBackoffSeconds)
	for ; n > 1 && seconds < most; n-- {
		seconds *= 2
	}
	return int64(secondsDuration(min(seconds, most)))
}

// recordFailure tells the pod's owner why it waits (QU10).
func (tx *Tx) recordFailure(key string, pod *corev1.Pod, d *FailDecision) {
	reason := corev1.PodReasonUnschedulable
	if d.Error {
		reason = corev1.PodReasonSchedulerError
	}
	message := d.Diagnosis.Message
	old := findCondition(&pod.Status, corev1.PodScheduled)
	if old == nil || old.Status != corev1.ConditionFalse || old.Reason != reason || old.Message != message {
		pod = tx.modifyPod(key, pod, func(pod *corev1.Pod) {
			setCondition(&pod.Status, corev1.PodCondition{
				Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: reason, Message: message,
				LastTransitionTime: tx.now(), ObservedGeneration: pod.Generation,
			})
		})
	}
	tx.repeatedPodEvent(pod, corev1.EventTypeWarning, "FailedScheduling", message)
}
