package worker

import (
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/model"
)

// What a preempted pod's status and event say, as in Kubernetes (PR21).
const (
	preempting        = "Preempting"
	preemptingMessage = "Preempted in order to admit critical pod"
)

// leaving says whether the pod is ending, or is about to.
func (p *podState) leaving() bool {
	return p.gone || p.pod.DeletionTimestamp != nil || p.verdict != nil || !p.stopAt.IsZero() || model.Terminal(p.pod)
}

// makeRoom condemns pods so that what a critical pod misses comes free, within their own grace (PR21). Unlike Kubernetes'
// agent it counts on those that are ending already. If it cannot help, nobody has to go, and the verdict is returned.
func (c *Core) makeRoom(p *podState, objections []objection) *verdict {
	var missing []shortage
	for _, o := range objections {
		if o.resource == "" {
			return o.verdict // room is not all that is missing
		}
		missing = append(missing, o.shortage)
	}
	var candidates []candidate
	for _, uid := range c.uids() {
		q := c.pods[uid]
		if q.counted && !q.unseen && !q.leaving() && q.outranked(p) {
			candidates = append(candidates, candidate{uid, q.class, model.QOS(q.pod), q.class.Priority, q.startTime})
		}
	}
	victims, ok := chooseVictims(missing, candidates)
	if !ok {
		var amounts []string
		for _, s := range remaining(missing, candidates) {
			amounts = append(amounts, fmt.Sprintf("%s: %d", s.resource, s.amount))
		}
		return &verdict{"UnexpectedAdmissionError", "Unexpected error while attempting to recover from admission failure: " +
			"preemption: no set of running pods found to reclaim resources: " + strings.Join(amounts, ", ")}
	}
	for _, v := range victims {
		q := c.pods[v.uid]
		q.verdict = &verdict{preempting, preemptingMessage}
		q.emit(corev1.EventTypeWarning, preempting, preemptingMessage)
		c.preempted = append(c.preempted, q)
	}
	return nil
}

// stopPreempted begins the end of the pods that were condemned.
func (c *Core) stopPreempted(now time.Time) {
	for len(c.preempted) > 0 {
		p := c.preempted[0]
		c.preempted = c.preempted[1:]
		c.step(p, now)
	}
}

// disruption is the condition of a pod that the node has ended for the sake of another. It comes with the end of the
// pod and not before.
func (p *podState) disruption(phase corev1.PodPhase, now time.Time) (corev1.PodCondition, bool) {
	message := p.disruptedFor
	if p.verdict != nil && p.verdict.reason == preempting {
		message = "Pod was preempted by Kubelet to accommodate a critical pod."
	}
	if p.verdict == nil || message == "" || phase != corev1.PodFailed {
		return corev1.PodCondition{}, false
	}
	if p.disrupted.IsZero() {
		p.disrupted = now
	}
	return corev1.PodCondition{
		Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: corev1.PodReasonTerminationByKubelet,
		Message:            message,
		ObservedGeneration: p.generation(), LastTransitionTime: plainTime(p.disrupted),
	}, true
}
