package fsm

import (
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/api/berthv1"
	"github.com/berth-dev/berth/model"
	"github.com/berth-dev/berth/queue"
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

// apply records the failure of one pod, or says why not.
func (j *failureJudge) apply(tx *Tx, ref PodRef) (why string) {
	d := j.d
	pod, e, why := tx.schedulable(ref)
	switch {
	case why != "":
		return why
	case d.SetAside != nil:
		tx.setAside(ref.Key, pod, e, d.SetAside)
		return ""
	case d.Diagnosis == nil:
		return "the decision has no diagnosis"
	case tx.view.isNewer(e, j.decidedAt):
		return "the decision is older than what it is about"
	case !d.Error && j.hangsOnUndone(tx, e, pod):
		return countedOnRefused
	}
	n, nominated := tx.view.Nominations.Get(ref.Key)
	if nominated && d.ClearNomination { // PR11
		tx.releaseNomination(n, "not even preemption would help")
		nominated = false
		pod, _ = tx.view.Pods.Get(ref.Key)
		e, _ = tx.view.Queue.Get(ref.Key)
	}
	var group queue.Group
	if !d.Error {
		e, group = tx.view.joined(e, pod)
	}
	state := berthv1.QueueUnschedulable
	rules := tx.view.ruledClass(e.Class(), pod)
	switch {
	case d.Error, rules.class.RefusesClaims(): // nobody knows what could help it
		state = berthv1.QueueBackoff
	case !tx.countFor(rules, pod) && nominated: // it is tried again when that is known
		state = berthv1.QueueBackoff
	case nominated && tx.fitsNominated(n): // QU8: an event in flight
		state = berthv1.QueueBackoff
	case nominated && n.Waits():
		state = berthv1.QueueNominated
		if !tx.view.stillPromised(n) || tx.missedRoom(j.decidedAt, e, group, d.Diagnosis) { // QU8, T5
			state = berthv1.QueueBackoff
		}
	case j.missed(tx, group), nominated && tx.missedAtOwn(n, j.decidedAt):
		state = berthv1.QueueBackoff
	}
	tx.recordAttempt(e, queue.Attempt{
		Diagnosis: d.Diagnosis, Failed: d.Error, State: state, Made: !d.Error && state == berthv1.QueueUnschedulable && rules.class.AwaitsDevices(),
		Refused: !d.Error && rules.class.RefusesClaims() && tx.view.Version() >= SinceDevices,
	})
	reason := corev1.PodReasonUnschedulable
	if d.Error {
		reason = corev1.PodReasonSchedulerError
	}
	tx.announce(ref.Key, pod, reason, d.Diagnosis, "")
	return ""
}

// SinceNothingOlder is the version of the rules since which one who is preempted
// for by a decision that is older than what it is about looks again, and nothing
// is believed that was decided before a snapshot was restored; and since which
// those who are nominated are woken by another owner, by the end of a nomination
// that no victim of theirs held any more, by pods whose count their own
// nomination hides, and by those of a node that is gone.
const SinceNothingOlder = 14

// SinceOwnRoom is the version of the rules since which what came free after a decision
// is seen by one for whom room is kept on that very node.
const SinceOwnRoom = 21

// missedAtOwn says whether something happened after a revision on the node to which a
// pod is nominated, where it waits for nobody of its own, that its nomination hides
// from its group (QU8).
func (tx *Tx) missedAtOwn(n *Nomination, revision int64) bool {
	v := tx.view
	mark, ok := v.marks.Get(n.Node)
	node, there := v.Nodes.Get(n.Node)
	if v.Version() < SinceOwnRoom || !ok || mark.Revision <= revision || !there {
		return false
	}
	return !n.Reserved || newHelp(v, node).looksAgain(tx, n)
}

// isNewer says whether a decision about a pod is older than what it is about
// (QU8): the pod was woken, asks for something else, or the rules are others.
func (v *live) isNewer(e *QueueEntry, decidedAt int64) bool {
	return e.Revision > decidedAt || parseRevision(v.SchedulerConfig().ResourceVersion) > decidedAt
}

// fitsNominated says whether a nominated pod fits its node as things are.
func (tx *Tx) fitsNominated(n *Nomination) bool {
	node, ok := tx.view.Nodes.Get(n.Node)
	return ok && newHelp(tx.view, node).hasRoomFor(n)
}

// joined is the entry of a pod that finds no place as things are, in the group
// where it is to wait, and that group.
func (v *live) joined(e *QueueEntry, pod *corev1.Pod) (*QueueEntry, queue.Group) {
	next, rules := *e, v.ruledClass(e.Class(), pod)
	v.billVolumes(rules)
	next.ByDefaults, next.SpreadOwner = v.hardDefaults() && len(v.defaultsFor(e.Class(), pod).constraints) > 0, ""
	if next.ByDefaults {
		next.SpreadOwner = spreadOwner(pod)
	}
	if v.Version() >= SinceVolumes {
		next.Claims = v.waitsFor(model.Claims(pod))
	}
	if waits := v.deviceWaits(pod); len(waits) > 0 { // it does not wait together with those that claim none
		next.Claims = slices.Concat(next.Claims, waits)
	}
	if v.usage.KeepAway() {
		v.billUnits(v.guardCost())
		next.KeptAway = v.topology().KeptAway(rules.class)
	} else {
		next.KeptAway = false
	}
	return &next, queue.Group{Class: e.Class(), Key: next.Group(), Rules: rules.class}
}

// SinceClaimsQuoted is the LogVersion from which on a claim of a name that none can have is not taken for others.
const SinceClaimsQuoted = 29

// waitsFor are the names of claims, told apart from one another: a pod's author may have written what is no name.
func (v *View) waitsFor(claims []string) []string {
	if v.Version() < SinceClaimsQuoted {
		return claims
	}
	out := make([]string, len(claims))
	for i, name := range claims {
		out[i] = quotedName(name)
	}
	return out
}

func quotedName(name string) string {
	if strings.ContainsFunc(name, func(c rune) bool { return c != '-' && c != '.' && (c < '0' || c > '9') && (c < 'a' || c > 'z') }) {
		return strconv.Quote(name)
	}
	return name
}

func (j *failureJudge) missed(tx *Tx, g queue.Group) bool {
	if newest := tx.view.queue.NewestMark(); j.helped == nil || newest != j.lastMark {
		j.helped, j.lastMark = map[string]bool{}, newest
	}
	h, known := j.helped[g.Key]
	if !known {
		h = tx.missed(j.decidedAt, g, j.d.Diagnosis)
		j.helped[g.Key] = h
	}
	return h
}

// recordAttempt stores the outcome of an attempt of now in the queue (QU5).
func (tx *Tx) recordAttempt(e *QueueEntry, a queue.Attempt) {
	v := tx.view
	a.Revision, a.UnixNano = v.Revision()+1, v.TimeUnixNano()
	put(tx, v.Queue, e.Key(), e.Attempted(a, &v.SchedulerConfig().Spec))
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
		tx.scheduledAgain(schedulerOf(pod), pod, corev1.EventTypeWarning, "FailedScheduling", d.Message)
	}
}
