package fsm

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/api/berthv1"
	"github.com/berth-dev/berth/model"
)

// failureJudge records one FailDecision, pod by pod. What happened since the
// decision is looked up once for each class and state of the nodes.
type failureJudge struct {
	d         *FailDecision
	decidedAt int64
	undone    *undone // what the decision counted on, and did not come true

	lastMark string          // the newest mark when helped was filled
	helped   map[string]bool // group -> something happened that could help
	spared   map[string]bool // group -> something undone could help
}

// apply records the failure of one pod, or says why not, and whether the pod's
// own decision is to blame for it.
func (j *failureJudge) apply(tx *Tx, ref PodRef) (why string, blame bool) {
	d := j.d
	pod, e, why := tx.schedulable(ref)
	switch {
	case why != "":
		return why, true
	case d.SetAside != nil:
		tx.setAside(ref.Key, pod, e, d.SetAside)
		return "", false
	case d.Diagnosis == nil:
		return "the decision has no diagnosis", true
	case e.Revision > j.decidedAt || parseRevision(tx.view.SchedulerConfig().ResourceVersion) > j.decidedAt:
		// QU8: it was woken, asks for something else, or the rules are others.
		return "the decision is older than what it is about", true
	case !d.Error && j.hangsOnUndone(tx, e, pod):
		return "an earlier decision of the plan was refused", false
	}
	n, nominated := tx.view.Nominations.Get(ref.Key)
	if nominated && d.ClearNomination { // PR11
		tx.releaseNomination(n, "not even preemption would help")
		nominated = false
		pod, _ = tx.view.Pods.Get(ref.Key)
		e, _ = tx.view.Queue.Get(ref.Key)
	}
	next := *e
	if !d.Error {
		tx.view.joinGroup(&next, pod)
	}
	state := berthv1.QueueUnschedulable
	switch {
	case d.Error:
		state = berthv1.QueueBackoff
	case nominated && tx.fitsNominated(n): // QU8: an event in flight
		state = berthv1.QueueBackoff
	case nominated && len(n.Victims) > 0:
		state = berthv1.QueueNominated
	case j.missed(tx, &next, pod):
		state = berthv1.QueueBackoff
	}
	tx.recordAttempt(&next, d.Diagnosis, d.Error, state)
	reason := corev1.PodReasonUnschedulable
	if d.Error {
		reason = corev1.PodReasonSchedulerError
	}
	tx.announce(ref.Key, pod, reason, d.Diagnosis, "")
	return "", false
}

// fitsNominated says whether a nominated pod fits its node as things are.
func (tx *Tx) fitsNominated(n *Nomination) bool {
	node, ok := tx.view.Nodes.Get(n.Node)
	return ok && newHelp(tx.view, node).hasRoomFor(n)
}

// joinGroup works out to which group the pod of an entry belongs that finds no
// place as things are.
func (v *live) joinGroup(e *QueueEntry, pod *corev1.Pod) {
	rules := v.ruledClass(e.class, pod)
	e.ByDefaults, e.SpreadOwner = rules != e.class && rules.HasHardTopology(), ""
	if e.ByDefaults {
		e.SpreadOwner = spreadOwner(pod)
	}
	e.KeptAway = v.guards > 0 && v.topology().Judge(rules).KeptAway()
}

func (j *failureJudge) missed(tx *Tx, e *QueueEntry, pod *corev1.Pod) bool {
	newest, _, _ := tx.view.marksByRevision.Max()
	newestOther, _, _ := tx.view.podMarksByRevision.Max()
	newest += newestOther
	if j.helped == nil || newest != j.lastMark {
		j.helped, j.lastMark = map[string]bool{}, newest
	}
	group := e.group()
	h, known := j.helped[group]
	if !known {
		w := wakeup{class: e.class, group: group, rules: tx.view.ruledClass(e.class, pod)}
		h = tx.missed(j.decidedAt, w, j.d.Diagnosis)
		j.helped[group] = h
	}
	return h
}

// recordAttempt stores the outcome of an attempt in the queue (QU5).
func (tx *Tx) recordAttempt(e *QueueEntry, diagnosis *Diagnosis, failed bool, state berthv1.QueueState) {
	next := *e
	if failed {
		next.Errors++
	} else {
		next.Errors = 0
		next.Attempts++
		next.Refusals, next.Refusal = 0, ""
		next.SetAside, next.TimesSetAside = nil, 0
		next.Diagnosis = diagnosis
	}
	next.LastAttemptRevision = tx.view.Revision() + 1
	next.BackoffUntilUnixNano = tx.view.TimeUnixNano() + tx.backoff(&next, failed)
	if next.BlockedSinceUnixNano == 0 {
		next.BlockedSinceUnixNano = tx.view.TimeUnixNano()
	}
	next.State = state
	if state == berthv1.QueueBackoff && next.BackoffUntilUnixNano <= tx.view.TimeUnixNano() {
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
	return int64(model.Seconds(min(seconds, most)))
}

// announce tells the pod's owner why it waits (QU10), and to which node it was
// nominated, if it was.
func (tx *Tx) announce(key string, old *corev1.Pod, reason string, d *Diagnosis, nominated string) {
	pod := old
	change := *old
	if nominated != "" {
		change.Status.NominatedNodeName = nominated
	}
	if d != nil {
		c := findCondition(&old.Status, corev1.PodScheduled)
		if c == nil || c.Status != corev1.ConditionFalse || c.Reason != reason || c.Message != d.Message {
			setCondition(&change.Status, corev1.PodCondition{
				Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: reason, Message: d.Message,
				LastTransitionTime: tx.now(), ObservedGeneration: old.Generation,
			})
			pod = &change
		}
	}
	if pod == &change || change.Status.NominatedNodeName != old.Status.NominatedNodeName {
		pod = &change
		put(tx, tx.view.Pods, key, pod)
	}
	if d != nil {
		tx.repeatedPodEvent(pod, corev1.EventTypeWarning, "FailedScheduling", d.Message)
	}
}
