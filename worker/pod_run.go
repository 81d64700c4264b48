package worker

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/model"
	"github.com/berth-dev/berth/worker/runtime"
)

// step moves the pod on as far as now allows.
func (p *podState) step(now time.Time) {
	p.wake = time.Time{}
	if p.removal == removalDone {
		return
	}
	p.judge(now)
	if p.stopAt.IsZero() && p.admission == admitted && !p.stepAnew(now) {
		p.stepHooks(now)
		p.stepResize(now)
		p.stepRun(now)
		p.stepProbes(now)
		if p.complete() {
			p.beginStop(now, p.specGrace())
		}
	}
	if !p.stopAt.IsZero() {
		p.stepStop(now)
	}
}

// judge decides whether the pod has to end.
func (p *podState) judge(now time.Time) {
	switch {
	case p.gone && p.static:
		p.beginStop(now, p.specGrace()) // its file is no more, or another one
	case p.gone:
		// TM6: the object is no more and its name may be in use again; a short grace is all that is left.
		p.beginStop(now, min(p.specGrace(), minimumGrace))
	case p.pod.DeletionTimestamp != nil:
		g := p.specGrace()
		if s := p.pod.DeletionGracePeriodSeconds; s != nil {
			g = model.Seconds(*s)
		}
		p.beginStop(now, g)
	case p.verdict != nil, model.Terminal(p.pod):
		p.beginStop(now, p.specGrace())
	}
	if s := p.pod.Spec.ActiveDeadlineSeconds; s != nil && p.verdict == nil && p.stopAt.IsZero() && p.admission == admitted {
		// PO7: counted from the pod's start, init containers included.
		end := p.startTime.Add(model.Seconds(*s))
		if now.Before(end) {
			p.wakeAt(end)
			return
		}
		p.verdict = &verdict{"DeadlineExceeded", "Pod was active on the node longer than the specified deadline"}
		p.emit(corev1.EventTypeNormal, p.verdict.reason, p.verdict.message)
		p.beginStop(now, p.specGrace())
	}
}

func (p *podState) specGrace() time.Duration {
	if s := p.pod.Spec.TerminationGracePeriodSeconds; s != nil {
		return model.Seconds(*s)
	}
	return 30 * time.Second // AD8
}

// stepRun starts what is to run: init containers one after the other (IN1), then all others.
func (p *podState) stepRun(now time.Time) {
	if p.refused() {
		return
	}
	p.stepMeasure(now)
	p.stepRefresh(now)
	if !p.ensureSandbox(now) {
		return
	}
	p.stepEphemeral(now)
	if !p.initialize(now) {
		return
	}
	for i := p.inits; i < p.mains; i++ {
		p.ensure(&p.ctrs[i], now)
	}
}

// initialize says whether the containers may start.
func (p *podState) initialize(now time.Time) bool {
	// T7: init containers are not run again once a container has been.
	begun := p.anyAppBeganHere()
	for i := 0; i < p.inits; i++ {
		c := &p.ctrs[i]
		switch {
		case c.role == roleSidecar:
			if c.started() && c.condemned.IsZero() {
				continue
			}
			p.ensure(c, now)
			if !begun {
				return false
			}
		case begun, c.state == ctrEnded && c.exit.Code == 0 && p.here(c) && !c.fresh:
		default:
			p.ensure(c, now)
			return false
		}
	}
	return true
}

func (p *podState) anyAppBegan() bool {
	for i := p.inits; i < p.mains; i++ {
		if p.ctrs[i].attempt >= 0 {
			return true
		}
	}
	return false
}

// ensure starts the container when it does not run, should run, and may.
func (p *podState) ensure(c *ctr, now time.Time) {
	if c.alive() {
		if !c.condemned.IsZero() {
			grace := p.specGrace()
			if s := c.condemnedGrace; s != nil {
				grace = model.Seconds(*s)
			}
			p.stopContainer(c, now, c.condemned.Add(grace))
		}
		return
	}
	if c.state == ctrPulling {
		return
	}
	anew := (c.role == roleInit || c.role == roleSidecar) && !p.here(c) && !c.fresh // IN5: in another sandbox all of it is done again
	if c.state == ctrEnded && !anew {
		if !p.restarts(c) {
			return
		}
		if until := c.backoff.until(c.endedBy(now)); !c.backedOff && !c.replacedBy && now.Before(until) {
			p.backOff(c)
			p.wakeAt(until)
			return
		}
	}
	if now.Before(c.retryAt) {
		p.backOffPull(c, now)
		p.wakeAt(c.retryAt)
		return
	}
	if c.state == ctrEnded && !c.backedOff && !c.replacedBy && !anew {
		c.backoff.next(c.endedBy(now), now)
		c.backedOff = true
	}
	if p.env.images && c.images.container == "" {
		p.beginPull(c)
		return
	}
	c.next = p.made(c)
	c.state = ctrStarting
	p.act(Action{Kind: ActionStart, Container: c.spec, Images: c.images, Target: p.target(c),
		ID: runtime.ID{Container: c.spec.Name, Attempt: c.attempt + 1}})
}

// ending is when a run has ended, by the clock by which its container is started again.
type ending struct {
	of *runtime.Exit
	at time.Time
}

// endedBy is when the container's last run has ended, by now's clock.
func (c *ctr) endedBy(now time.Time) time.Time {
	if c.ending.of != c.exit {
		c.ending = ending{c.exit, sinceBy(c.exit.FinishedAt, now)}
	}
	return c.ending.at
}

func (p *podState) backOff(c *ctr) {
	const reason = "CrashLoopBackOff"
	name := fmt.Sprintf("%s_%s(%s)", p.pod.Name, p.pod.Namespace, p.pod.UID)
	if c.wait != reason {
		p.emit(corev1.EventTypeWarning, "BackOff", fmt.Sprintf("Back-off restarting failed container %s in pod %s", c.spec.Name, name))
	}
	c.wait = reason
	c.waitMessage = fmt.Sprintf("back-off %s restarting failed container=%s pod=%s", c.backoff.delay, c.spec.Name, name)
}

// restarts says whether an ended container is to run again (RB1, IN2).
func (p *podState) restarts(c *ctr) bool {
	return c.replacedBy || c.role == roleSidecar ||
		c.role != roleEphemeral && (c.fresh || !p.anewAt.IsZero() || restartsAfter(c, p.pod.Spec.RestartPolicy, c.exit.Code))
}

func restartsAfter(c *ctr, podPolicy corev1.RestartPolicy, code int32) bool {
	if own := c.spec.RestartPolicy; own != nil {
		for i := range c.spec.RestartPolicyRules {
			if r := &c.spec.RestartPolicyRules[i]; ruleMatches(r, code) {
				return true // by itself, or with all others
			}
		}
		switch *own {
		case corev1.ContainerRestartPolicyNever:
			return false
		case corev1.ContainerRestartPolicyOnFailure:
			return code != 0
		}
		return true
	}
	switch podPolicy {
	case corev1.RestartPolicyNever:
		return false
	case corev1.RestartPolicyOnFailure:
		return code != 0
	}
	return c.role != roleInit || code != 0
}

func ruleMatches(r *corev1.ContainerRestartRule, code int32) bool {
	if r.ExitCodes == nil {
		return false
	}
	in := slices.Contains(r.ExitCodes.Values, code)
	switch r.ExitCodes.Operator {
	case corev1.ContainerRestartRuleOnExitCodesOpIn:
		return in
	case corev1.ContainerRestartRuleOnExitCodesOpNotIn:
		return !in
	}
	return false
}

// complete says whether nothing of the pod will run again of itself: all containers have ended for good, or an init
// container has failed for good.
func (p *podState) complete() bool {
	if p.initFailed() {
		return true
	}
	for i := p.inits; i < p.mains; i++ {
		if c := &p.ctrs[i]; c.state != ctrEnded || p.restarts(c) {
			return false
		}
	}
	return true
}

// postStart runs the hook that must be over before a container counts as running (LC5).
func (p *podState) postStart(c *ctr, now time.Time) {
	l := c.spec.Lifecycle
	if l == nil || l.PostStart == nil {
		return
	}
	c.state = ctrHooking
	c.hookUntil = time.Time{}
	if s := l.PostStart.Sleep; s != nil {
		c.hookUntil = now.Add(model.Seconds(s.Seconds))
		return
	}
	c.hooking = true
	p.act(Action{Kind: ActionPostStart, Container: c.spec, Hook: l.PostStart, ID: p.id(c)})
}

// endHook ends a postStart hook that runs: it has no other bound than the life of its container, and of the pod.
func (p *podState) endHook(c *ctr) {
	if c.hooking {
		c.hooking = false
		p.act(Action{Kind: ActionHookEnd, Container: c.spec, ID: p.id(c)})
	}
}

// stepHooks ends postStart hooks that only sleep.
func (p *podState) stepHooks(now time.Time) {
	for i := range p.ctrs {
		c := &p.ctrs[i]
		if c.state != ctrHooking || c.hookUntil.IsZero() {
			continue
		}
		if now.Before(c.hookUntil) {
			p.wakeAt(c.hookUntil)
			continue
		}
		c.state = ctrRunning
	}
}

func (p *podState) id(c *ctr) runtime.ID {
	return runtime.ID{Pod: p.pod.UID, Container: c.spec.Name, Attempt: c.attempt}
}
