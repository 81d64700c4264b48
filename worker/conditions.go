package worker

import (
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/model"
)

// conditionMemory is what must be remembered of a condition: its value and since when.
type conditionMemory struct {
	status corev1.ConditionStatus
	since  time.Time
}

func (p *podState) rememberConditions(conditions []corev1.PodCondition) {
	for i, t := range model.WorkerConditions()[:len(p.conditions)] {
		for j := range conditions {
			if conditions[j].Type == t {
				p.conditions[i] = conditionMemory{conditions[j].Status, conditions[j].LastTransitionTime.Time}
			}
		}
	}
}

// setConditions adds the conditions that the node agent owns (LC6). It takes note of when each came to its value, so it
// must be given a time that never goes back.
func (p *podState) setConditions(s *corev1.PodStatus, now time.Time) {
	ready := p.containersReady(s)
	conditions := []corev1.PodCondition{p.readyToStart(s), p.isInitialized(s), p.podReady(ready), ready}
	if p.mayBeginAnew() {
		conditions = append(conditions, p.beginsAnew(s))
	}
	for i, t := range model.WorkerConditions()[:len(conditions)] {
		c := &conditions[i]
		c.Type = t
		c.ObservedGeneration = p.generation()
		m := &p.conditions[i]
		if m.status != c.Status {
			m.status, m.since = c.Status, now
		}
		c.LastTransitionTime = plainTime(m.since)
	}
	s.Conditions = append(s.Conditions, conditions...)
	s.Conditions = append(s.Conditions, p.resizeConditions()...)
	if c, ok := p.scheduled(); ok {
		s.Conditions = append(s.Conditions, c)
	}
	if c, ok := p.disruption(s.Phase, now); ok {
		s.Conditions = append(s.Conditions, c)
	}
}

// scheduled is what a scheduler says of the pods that it places: of one that
// came with its node, the node says it.
func (p *podState) scheduled() (corev1.PodCondition, bool) {
	for i := range p.pod.Status.Conditions {
		if p.pod.Status.Conditions[i].Type == corev1.PodScheduled {
			return corev1.PodCondition{}, false
		}
	}
	return corev1.PodCondition{
		Type: corev1.PodScheduled, Status: corev1.ConditionTrue, ObservedGeneration: p.generation(),
		LastTransitionTime: plainTime(p.startTime),
	}, true
}

func truth(ok bool) corev1.ConditionStatus {
	if ok {
		return corev1.ConditionTrue
	}
	return corev1.ConditionFalse
}

// readyToStart: what the containers need around them is there. Without sandboxes, one that was started shows it.
func (p *podState) readyToStart(s *corev1.PodStatus) corev1.PodCondition {
	up := p.sandbox == sandboxReady
	for i := range p.ctrs {
		up = up || !p.env.sandboxes && p.ctrs[i].attempt >= 0
	}
	ended := s.Phase == corev1.PodSucceeded || s.Phase == corev1.PodFailed
	return corev1.PodCondition{Status: truth(up && !ended)}
}

// initialized says whether the init containers are behind the pod, or it has none (IN4).
func (p *podState) initialized() bool {
	if p.anyAppBegan() {
		return true
	}
	for i := 0; i < p.inits; i++ {
		if !initOver(&p.ctrs[i]) {
			return false
		}
	}
	return true
}

func initOver(c *ctr) bool {
	if c.role == roleSidecar {
		return c.started()
	}
	return c.state == ctrEnded && c.exit.Code == 0
}

func (p *podState) isInitialized(s *corev1.PodStatus) corev1.PodCondition {
	if s.Phase == corev1.PodSucceeded {
		return corev1.PodCondition{Status: corev1.ConditionTrue, Reason: "PodCompleted"}
	}
	if p.initialized() {
		return corev1.PodCondition{Status: corev1.ConditionTrue}
	}
	var incomplete []string
	for i := 0; i < p.inits; i++ {
		if c := &p.ctrs[i]; !initOver(c) {
			incomplete = append(incomplete, c.spec.Name)
		}
	}
	return corev1.PodCondition{Status: corev1.ConditionFalse, Reason: "ContainersNotInitialized",
		Message: fmt.Sprintf("containers with incomplete status: %s", incomplete)}
}

func (p *podState) containersReady(s *corev1.PodStatus) corev1.PodCondition {
	no := corev1.PodCondition{Status: corev1.ConditionFalse}
	switch {
	case s.Phase == corev1.PodSucceeded:
		no.Reason = "PodCompleted"
		return no
	case s.Phase == corev1.PodFailed, p.verdict != nil:
		no.Reason = "PodFailed"
		return no
	}
	var unready []string
	for i := range s.InitContainerStatuses {
		if p.ctrs[i].role == roleSidecar && !s.InitContainerStatuses[i].Ready {
			unready = append(unready, p.ctrs[i].spec.Name)
		}
	}
	for i := range s.ContainerStatuses {
		if !s.ContainerStatuses[i].Ready {
			unready = append(unready, s.ContainerStatuses[i].Name)
		}
	}
	if len(unready) > 0 {
		no.Reason = "ContainersNotReady"
		no.Message = fmt.Sprintf("containers with unready status: %s", unready)
		return no
	}
	return corev1.PodCondition{Status: corev1.ConditionTrue}
}

// podReady is LC7: the containers and every readiness gate.
func (p *podState) podReady(containers corev1.PodCondition) corev1.PodCondition {
	if containers.Status != corev1.ConditionTrue {
		return containers
	}
	var unmet []string
	for _, gate := range p.pod.Spec.ReadinessGates {
		status, found := corev1.ConditionFalse, false
		for i := range p.pod.Status.Conditions {
			if c := &p.pod.Status.Conditions[i]; c.Type == gate.ConditionType {
				status, found = c.Status, true
			}
		}
		switch {
		case !found:
			unmet = append(unmet, fmt.Sprintf("corresponding condition of pod readiness gate %q does not exist.", string(gate.ConditionType)))
		case status != corev1.ConditionTrue:
			unmet = append(unmet, fmt.Sprintf("the status of pod readiness gate %q is not \"True\", but %v", string(gate.ConditionType), status))
		}
	}
	if len(unmet) > 0 {
		return corev1.PodCondition{Status: corev1.ConditionFalse, Reason: "ReadinessGatesNotReady", Message: strings.Join(unmet, ", ")}
	}
	return corev1.PodCondition{Status: corev1.ConditionTrue}
}
