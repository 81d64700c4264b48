package fsm

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/api/berthv1"
	"github.com/berth-dev/berth/model"
)

// What it costs a pod that a decision about it came to nothing, and what that
// means for the failures that were decided after it.

const (
	// freeRefusals is how many refusals in a row cost no backoff: one happens to
	// everybody whose node has changed meanwhile.
	freeRefusals = 1
	// setAsideSeconds is the first backoff of a pod that was set aside, which
	// doubles each time in a row, up to maxSetAsideSeconds.
	setAsideSeconds    = 10
	maxSetAsideSeconds = 300
	// maxTold bounds in bytes what a row keeps of a refusal or a panic.
	maxTold = 1 << 10
)

// setBack counts a refused decision against its pod, which from the second in a
// row on is not tried again for a second at least: whatever the scheduler and
// the state machine do not agree upon, they do not do so more often. A waiting
// pod goes on waiting, but no room is kept for it meanwhile.
func (tx *Tx) setBack(ref PodRef, why string) {
	_, e, gone := tx.schedulable(ref)
	if gone != "" {
		return
	}
	next := *e
	next.Refusals++
	next.Refusal = told(why)
	if next.Refusals > freeRefusals {
		most := max(int64(*tx.view.SchedulerConfig().Spec.PodMaxBackoffSeconds), 1)
		until := tx.view.TimeUnixNano() + int64(model.Seconds(doubled(1, most, next.Refusals-freeRefusals)))
		next.BackoffUntilUnixNano = max(next.BackoffUntilUnixNano, until)
	}
	switch e.State {
	case berthv1.QueueActive, berthv1.QueueBackoff, berthv1.QueueSetAside:
		next.State = berthv1.QueueActive
		if next.Refusals > freeRefusals {
			next.State = berthv1.QueueBackoff
		}
	}
	put(tx, tx.view.Queue, e.Key(), &next)
}

// setAside takes a pod out of the scheduler's sight for 10 s, the next time in
// a row for 20, and so on to 5 min. Nothing wakes it before; its turn passes to
// the next of its group.
func (tx *Tx) setAside(key string, pod *corev1.Pod, e *QueueEntry, what *SetAside) {
	next := *e
	next.State = berthv1.QueueSetAside
	next.TimesSetAside++
	next.SetAside = &SetAside{Kind: told(what.Kind), Message: told(what.Message)}
	next.LastAttemptRevision = tx.view.Revision() + 1
	next.BackoffUntilUnixNano = tx.view.TimeUnixNano() +
		int64(model.Seconds(doubled(setAsideSeconds, maxSetAsideSeconds, next.TimesSetAside)))
	if next.BlockedSinceUnixNano == 0 {
		next.BlockedSinceUnixNano = tx.view.TimeUnixNano()
	}
	put(tx, tx.view.Queue, key, &next)
	tx.announce(key, pod, corev1.PodReasonSchedulerError, &Diagnosis{Message: what.told()}, "")
}

// told is what people are told of it.
func (s *SetAside) told() string {
	return fmt.Sprintf("the scheduler could not decide about the pod (%s: %s); it is set aside for a while",
		told(s.Kind), told(s.Message))
}

// doubled is least, doubled for each of times beyond the first, and at most
// most.
func doubled(least, most int64, times int32) int64 {
	for ; times > 1 && least < most; times-- {
		least *= 2
	}
	return min(least, most)
}

// told cuts a text down to what a row may keep.
func told(s string) string {
	if len(s) <= maxTold {
		return s
	}
	return strings.ToValidUTF8(s[:maxTold], "")
}

// undone is what the failures of a plan counted on, and did not come true: the
// plan's refused decisions. It is as if they had been carried out and taken
// back since: that frees nodes, and pods leave that never came.
type undone struct {
	nodes   []string
	pods    []*podMark
	budgets bool // disruptions were not spent
}

func (u *undone) none() bool { return len(u.nodes)+len(u.pods) == 0 }

func (u *undone) node(name string) {
	if !slices.Contains(u.nodes, name) {
		u.nodes = append(u.nodes, name)
	}
}

func (u *undone) reservation(tx *Tx, d *ReserveDecision) {
	u.left(tx, d.Key, d.UID, d.Node)
}

func (u *undone) binding(tx *Tx, d *BindDecision) {
	u.left(tx, d.Key, d.UID, d.Node)
}

func (u *undone) preemption(tx *Tx, d *PreemptDecision) {
	u.left(tx, d.Key, d.UID, d.Node)
	u.budgets = true
	for _, victim := range d.Victims {
		if pod, ok := tx.findPod(PodRef{victim.Key, victim.UID}); ok && pod.Spec.NodeName != "" {
			u.pods = append(u.pods, markOf(change{model.PodCame, tx.view.classOn(pod), pod.Spec.NodeName}))
		}
	}
}

// left notes that a pod is not where the plan put it.
func (u *undone) left(tx *Tx, key, uid, node string) {
	u.node(node)
	pod, ok := tx.findPod(PodRef{key, uid})
	if !ok {
		u.pods = append(u.pods, &podMark{Domains: true}) // nobody knows what it was
		return
	}
	u.pods = append(u.pods, markOf(change{model.PodLeft, tx.view.cache.class(pod), node}))
}

// couldHelp says whether what is undone could help the pods of a group that
// were told the diagnosis.
func (u *undone) couldHelp(tx *Tx, w wakeup, d *Diagnosis) bool {
	v := tx.view
	if u.budgets && v.mindsBudgets(w.class, 1<<40) {
		return true
	}
	for _, m := range u.pods {
		if v.concerns(m, w, d) {
			return true
		}
	}
	for _, name := range u.nodes {
		if n, ok := v.Nodes.Get(name); ok && newHelp(v, n).room(tx, w, true) > 0 {
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
	next := *e
	tx.view.joinGroup(&next, pod)
	group := next.group()
	hangs, known := j.spared[group]
	if !known {
		if j.spared == nil {
			j.spared = map[string]bool{}
		}
		w := wakeup{class: e.class, group: group, rules: tx.view.ruledClass(e.class, pod)}
		hangs = j.undone.couldHelp(tx, w, j.d.Diagnosis)
		j.spared[group] = hangs
	}
	return hangs
}
