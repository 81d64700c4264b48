package fsm

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/api/berthv1"
	"github.com/berth-dev/berth/model"
	"github.com/berth-dev/berth/queue"
)

// What it costs a pod that a decision about it came to nothing, and what that
// means for the failures that were decided after it.

// setBack counts a refused decision against its pod (see queue.Entry.Refused).
func (tx *Tx) setBack(ref PodRef, why string) {
	_, e, gone := tx.schedulable(ref)
	if gone != "" {
		return
	}
	put(tx, tx.view.Queue, e.Key(), e.Refused(why, tx.view.TimeUnixNano(), &tx.view.SchedulerConfig().Spec))
}

// awaitCount leaves a pod alone for a moment, and tells why: it is still being
// counted whom its rules are about.
func (tx *Tx) awaitCount(ref PodRef) {
	pod, e, gone := tx.schedulable(ref)
	if gone != "" {
		return
	}
	next := e.Uncounted(stillCounting, tx.view.TimeUnixNano())
	put(tx, tx.view.Queue, e.Key(), next)
	if next.State == berthv1.QueueBackoff {
		tx.announce(ref.Key, pod, corev1.PodReasonUnschedulable, next.Diagnosis, "")
	}
}

// setAside takes a pod out of the scheduler's sight for a while (see
// queue.Entry.PutAside).
func (tx *Tx) setAside(key string, pod *corev1.Pod, e *QueueEntry, what *SetAside) {
	put(tx, tx.view.Queue, key, e.PutAside(what, tx.view.Revision()+1, tx.view.TimeUnixNano()))
	tx.announce(key, pod, corev1.PodReasonSchedulerError, &Diagnosis{Message: what.Told()}, "")
}

// undone is what the preemptions and failures of a plan counted on, and did not
// come true: the plan's refused decisions. It is as if they had been carried out and taken
// back since: that frees nodes, and pods leave that never came.
type undone struct {
	nodes   []string
	named   map[string]bool // nodes
	pods    []*queue.PodMark
	budgets bool // disruptions were not spent
	spared  *queue.Victims
}

func (u *undone) none() bool { return len(u.nodes)+len(u.pods) == 0 }

func (u *undone) node(name string) {
	if u.named[name] {
		return
	}
	if u.named == nil {
		u.named = map[string]bool{}
	}
	u.named[name] = true
	u.nodes = append(u.nodes, name)
}

func (u *undone) reservation(tx *Tx, d *ReserveDecision) {
	u.left(tx, d.Key, d.UID, d.Node)
}

func (u *undone) binding(tx *Tx, d *BindDecision) {
	u.left(tx, d.Key, d.UID, d.Node)
}

func (u *undone) preemption(tx *Tx, d *PreemptDecision) {
	u.left(tx, d.Key, d.UID, d.Node)
	spared := tx.victimsSpared(d)
	if u.budgets {
		spared = u.spared.And(spared)
	}
	u.budgets, u.spared = true, spared
	for _, victim := range d.Victims {
		if pod, ok := tx.findPod(PodRef{victim.Key, victim.UID}); ok && pod.Spec.NodeName != "" {
			u.pods = append(u.pods, queue.MarkOf(queue.PodChange{How: model.PodCame, Pod: tx.view.usage.ClassOf(pod), Node: pod.Spec.NodeName}))
		}
	}
}

// left notes that a pod is not where the plan put it.
func (u *undone) left(tx *Tx, key, uid, node string) {
	u.node(node)
	pod, ok := tx.findPod(PodRef{key, uid})
	if !ok {
		u.pods = append(u.pods, &queue.PodMark{Domains: true}) // nobody knows what it was
		return
	}
	u.pods = append(u.pods, queue.MarkOf(queue.PodChange{How: model.PodLeft, Pod: tx.view.classOf(pod), Node: node}))
}

// couldHelp says whether what is undone could help the pods of a group that
// were told the diagnosis.
func (u *undone) couldHelp(tx *Tx, g queue.Group, d *Diagnosis) bool {
	v := tx.view
	if u.budgets && v.MindsBudgets(g.Class, queue.AnyPriority) && tx.gainsBy(u.spared)(&g) {
		return true
	}
	for _, m := range u.pods {
		tx.work.Ask()
		if v.queue.Concerns(v, m, &g, d) {
			return true
		}
	}
	for _, name := range u.nodes {
		tx.work.Ask()
		if n, ok := v.Nodes.Get(name); ok && newHelp(v, n).room(tx, g, true) > 0 {
			return true
		}
	}
	return false
}

// SinceUndoneSpares is the LogVersion from which on nobody is evicted for a pod that counted on a refused decision, and may
// have room without it.
const SinceUndoneSpares = 25

// spares says whether nobody might have to go for a pod, had the scheduler known what is undone.
func (u *undone) spares(tx *Tx, d *PreemptDecision) bool {
	v := tx.view
	if u.none() || v.Version() < SinceUndoneSpares {
		return false
	}
	pod, e, why := tx.schedulable(PodRef{d.Key, d.UID})
	if why != "" {
		return false // and that is said of it
	}
	joined, g := v.joined(e, pod)
	for _, m := range u.pods {
		tx.work.Ask()
		if v.queue.Concerns(v, m, &g, d.Diagnosis) {
			return true
		}
	}
	rules := v.ruledClass(e.Class(), pod)
	for _, name := range u.nodes {
		tx.work.Ask()
		if tx.hasRoom(name, joined, rules) {
			return true
		}
	}
	return false
}

// hangsOnUndone says whether the failure of a pod could have been avoided, had
// the scheduler known what is undone.
func (j *failureJudge) hangsOnUndone(tx *Tx, e *QueueEntry, pod *corev1.Pod) bool {
	if j.undone.none() {
		return false
	}
	_, g := tx.view.joined(e, pod)
	hangs, known := j.spared[g.Key]
	if !known {
		if j.spared == nil {
			j.spared = map[string]bool{}
		}
		hangs = j.undone.couldHelp(tx, g, j.d.Diagnosis)
		j.spared[g.Key] = hangs
	}
	return hangs
}
