package worker

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// A container whose end meets a rule with the action RestartAllContainers takes the others with it: all that runs of the pod, ephemeral
// containers aside, is told to end with the shortest grace and without preStop hooks, and then the pod begins anew where it is, in its sandbox
// and with its volumes, init containers first. Every container's next run is one more attempt, whatever its restart policy says. Unlike
// with the kubelet, which waits for nothing, each attempt waits for its container's back-off.

// demandsAnew: the container ended in a way that starts all of the pod anew, and that was not done yet.
func (c *ctr) demandsAnew() bool {
	return c.role != roleEphemeral && c.state == ctrEnded && !c.fresh &&
		c.action() == corev1.ContainerRestartRuleActionRestartAllContainers
}

// waitsAnew: all of the pod begins anew, and it is not the container's turn yet. As in Kubernetes it is shown as one that waits, whatever it
// has ended with.
func (p *podState) waitsAnew(c *ctr) bool {
	return c.turn && c.state != ctrRunning && c.state != ctrHooking && !p.complete()
}

// action is that of the first of the container's rules that its exit code meets; empty: it meets none.
func (c *ctr) action() corev1.ContainerRestartRuleAction {
	if c.spec.RestartPolicy == nil || c.exit == nil {
		return ""
	}
	for i := range c.spec.RestartPolicyRules {
		if r := &c.spec.RestartPolicyRules[i]; ruleMatches(r, c.exit.Code) {
			return r.Action
		}
	}
	return ""
}

// stepAnew ends what runs of a pod that is to begin anew, and says whether something still does.
func (p *podState) stepAnew(now time.Time) bool {
	if p.anewAt.IsZero() {
		for i := range p.ctrs[:p.mains] {
			if c := &p.ctrs[i]; c.demandsAnew() {
				p.anewAt = now
				p.emit(corev1.EventTypeWarning, "RestartAllContainers", fmt.Sprintf(
					"Container %s exited with %d, and its restart policy rules start all containers of the pod anew", c.spec.Name, c.exit.Code))
				break
			}
		}
	}
	if p.anewAt.IsZero() {
		return false
	}
	if p.endForAnew(p.inits, p.mains, now) || p.endForAnew(0, p.inits, now) {
		return true
	}
	p.anewAt = time.Time{}
	for i := range p.ctrs[:p.mains] {
		c := &p.ctrs[i]
		c.fresh = c.exit != nil // what never ran begins as it would have
		c.turn = c.fresh
	}
	return false
}

// forgetInits has the init containers of a pod that goes on with empty volumes run once more, before those that run again.
func (p *podState) forgetInits() {
	for i := range p.ctrs[:p.mains] {
		c := &p.ctrs[i]
		c.fresh = c.exit != nil && (i < p.inits || p.restarts(c))
	}
}

// endForAnew ends some of the containers, and says whether one is left.
func (p *podState) endForAnew(from, to int, now time.Time) bool {
	left := false
	for i := from; i < to; i++ {
		c := &p.ctrs[i]
		if c.alive() {
			left = true
			p.stopContainer(c, now, p.anewAt)
		}
	}
	return left
}

// mayBeginAnew: one of the containers has a rule that starts all of the pod anew.
func (p *podState) mayBeginAnew() bool {
	return slices.ContainsFunc(p.ctrs[:p.mains], func(c ctr) bool {
		return slices.ContainsFunc(c.spec.RestartPolicyRules, func(r corev1.ContainerRestartRule) bool {
			return r.Action == corev1.ContainerRestartRuleActionRestartAllContainers
		})
	})
}

// beginsAnew is the condition AllContainersRestarting: true from the end that demands it until all of the pod has ended.
func (p *podState) beginsAnew(s *corev1.PodStatus) corev1.PodCondition {
	switch {
	case s.Phase == corev1.PodSucceeded:
		return corev1.PodCondition{Status: corev1.ConditionFalse, Reason: "PodCompleted"}
	case s.Phase == corev1.PodFailed:
		return corev1.PodCondition{Status: corev1.ConditionFalse, Reason: "PodFailed"}
	case p.anewAt.IsZero():
		return corev1.PodCondition{Status: corev1.ConditionFalse}
	}
	return corev1.PodCondition{Status: corev1.ConditionTrue, Reason: "RestartAllContainersStarted", Message: "container exited with restart policy rule"}
}

// initFailed: an init container has failed for good, and no container has begun since it was its turn.
func (p *podState) initFailed() bool {
	for i := p.inits; i < p.mains; i++ {
		if c := &p.ctrs[i]; c.attempt >= 0 && !c.fresh {
			return false
		}
	}
	for i := 0; i < p.inits; i++ {
		if c := &p.ctrs[i]; c.role == roleInit && c.state == ctrEnded && c.exit.Code != 0 && !p.restarts(c) {
			return true
		}
	}
	return false
}
