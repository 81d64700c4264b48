package worker

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/model"
	"github.com/berth-dev/berth/worker/runtime"
)

const (
	// minimumGrace lies between TERM and KILL at least, whatever preStop has used up of the grace (TM2, TM6).
	minimumGrace = 2 * time.Second
	// killInterval is how often KILL is repeated while the end of a container is not reported.
	killInterval = 5 * time.Second
	// stuckAfter is how long after KILL a container that has not ended is taken to wait for a server of nfs: what it has written may still be
	// on its way there.
	stuckAfter = time.Minute
)

// beginStop ends the pod within grace. Called again, it can only shorten the grace (TM1).
func (p *podState) beginStop(now time.Time, grace time.Duration) {
	// At the node a grace is never nothing.
	grace = max(grace, time.Second)
	if p.stopAt.IsZero() {
		// TM5: a restarted agent comes here again and grants the full grace again.
		p.stopAt, p.grace = now, grace
		return
	}
	if deadline := now.Add(grace); deadline.Before(p.stopAt.Add(p.grace)) {
		p.grace = deadline.Sub(p.stopAt)
	}
}

// takenBack says whether the pod has ended because its object was to go, and is not to go any more: the servers went
// back to a state of theirs from before.
func (p *podState) takenBack() bool {
	return !p.stopAt.IsZero() && !p.gone && p.pod.DeletionTimestamp == nil && p.verdict == nil && !model.Terminal(p.pod) &&
		!p.alive() && !p.removing() && p.sandbox != sandboxMaking && p.sandbox != sandboxStopping && !p.complete()
}

// stepStop ends the containers and, when the pod's object is to go, removes what is left.
func (p *podState) stepStop(now time.Time) {
	p.stepProbes(now)
	deadline := p.stopAt.Add(p.grace)
	before := false // something that must end before the sidecars is still there
	for i := range p.ctrs {
		p.endPull(&p.ctrs[i])
		if c := &p.ctrs[i]; c.role != roleSidecar && c.alive() {
			before = true
			p.stopContainer(c, now, deadline)
		}
	}
	// TM2: sidecars are told to end after all others, in reverse order, and at the deadline all at once. Their preStop hooks wait for nobody.
	for i := p.inits - 1; i >= 0; i-- {
		c := &p.ctrs[i]
		if c.role != roleSidecar || !c.alive() {
			continue
		}
		if before && now.Before(deadline) {
			p.preStopped(c, now, deadline)
			p.wakeAt(deadline)
			continue
		}
		before = true
		p.stopContainer(c, now, deadline)
	}
	if p.alive() || p.resize.underWay || p.sandbox == sandboxMaking || p.sandbox == sandboxStopping || p.removing() {
		return
	}
	if !p.gone && (p.pod.DeletionTimestamp == nil || !p.endsTaken(now)) {
		p.releaseSandbox(now)
		p.releaseVolumes(now)
		return
	}
	if now.Before(p.removeRetryAt) {
		p.wakeAt(p.removeRetryAt)
		return
	}
	p.removal = removalUnderWay
	p.act(Action{Kind: ActionRemove})
}

// givingBack says whether the first try is under way to give back what the pod held. Its end is told after that, since who is
// told takes its room for free.
func (p *podState) givingBack() bool {
	return p.removal == removalUnderWay && p.removeRetryAt.IsZero() ||
		p.final() && p.unmount == removalUnderWay && p.unmountRetryAt.IsZero() ||
		p.final() && p.sandbox == sandboxStopping && p.sandboxRetryAt.IsZero()
}

// removing says whether what the pod has is being removed, or was.
func (p *podState) removing() bool { return p.removal != removalNone || p.unmount == removalUnderWay }

// releaseVolumes gives back what the volumes hold of a pod that has ended, as a kubelet does: disk, memory, and what is mounted of others. How
// its containers have ended can be told without them.
func (p *podState) releaseVolumes(now time.Time) {
	if !p.hasVolumes() || p.admission != admitted || p.sandbox != sandboxNone || p.owing || p.unmount != removalNone {
		return
	}
	if now.Before(p.unmountRetryAt) {
		p.wakeAt(p.unmountRetryAt)
		return
	}
	p.unmount = removalUnderWay
	p.act(Action{Kind: ActionUnmount})
}

// hasVolumes: the node keeps volumes for the pod.
func (p *podState) hasVolumes() bool { return p.env.files && len(p.pod.Spec.Volumes) > 0 }

func (p *podState) unmounted(err error, now time.Time) {
	p.unmount = removalDone
	if err != nil {
		p.unmount, p.unmountRetryAt = removalNone, now.Add(retryInterval)
	}
}

// endsTaken says whether the servers have how the pod and its containers have ended, also where none of them ever ran: who watches the pod is
// told of that before it goes. What only the runtime keeps beside them would be lost with its records if no server could commit it before this
// agent ends.
func (p *podState) endsTaken(now time.Time) bool {
	s := p.status(now)
	return endsDigest(&s) == p.heldEnds
}

// heldBy takes note of what the servers hold of the pod.
func (p *podState) heldBy(s *corev1.PodStatus) {
	p.sum, p.heldEnds = digest(s, false), endsDigest(s)
}

// stopContainer takes one container through preStop, TERM and KILL (TM2).
func (p *podState) stopContainer(c *ctr, now, deadline time.Time) {
	if !p.preStopped(c, now, deadline) {
		return
	}
	if c.stop == stopTurn {
		p.terminate(c, now)
	}
	if c.stop == stopTerm {
		p.repeatTerm(c, now)
		c.killAt = c.termAt.Add(minimumGrace)
		if c.killAt.Before(deadline) {
			c.killAt = deadline
		}
	}
	if now.Before(c.killAt) {
		p.wakeAt(c.killAt)
		return
	}
	if c.stop != stopKill {
		c.killedAt = now
	}
	c.stop = stopKill
	c.killAt = now.Add(killInterval)
	p.wakeAt(c.killAt)
	p.act(Action{Kind: ActionSignal, Container: c.spec, Signal: runtime.Kill, Stuck: now.Sub(c.killedAt) >= stuckAfter && p.killed(), ID: p.id(c)})
}

// preStopped takes a container through what comes before TERM, and says whether that is over.
func (p *podState) preStopped(c *ctr, now, deadline time.Time) bool {
	if c.state == ctrStarting {
		return false // its start is under way; it is stopped when the runtime says that it runs
	}
	if c.stop == stopNone {
		p.endHook(c)
		p.tellKilling(c, "Stopping container "+c.spec.Name)
		c.stop = stopTurn
		if p.preStop(c, now, deadline) {
			c.stop = stopHook
		}
	}
	if c.stop != stopHook {
		return true
	}
	until := c.hookUntil
	if deadline.Before(until) {
		until = deadline
	}
	if now.Before(until) {
		p.wakeAt(until)
		return false
	}
	c.stop = stopTurn
	return true
}

// tellKilling tells why a container is ended: once, as it is ended once, whatever else asks for it then.
func (p *podState) tellKilling(c *ctr, why string) {
	if !c.killingTold {
		c.killingTold = true
		p.emit(corev1.EventTypeNormal, "Killing", why)
	}
}

// killed: the pod is to end, and all that is left of it was killed. Only then its volumes may be taken away below it: what waits for them else
// would lose what it writes.
func (p *podState) killed() bool {
	return !p.stopAt.IsZero() && !slices.ContainsFunc(p.ctrs, func(c ctr) bool { return c.alive() && c.stop != stopKill })
}

// preStop begins the hook that runs before TERM, within the grace; false when there is none or no time.
func (p *podState) preStop(c *ctr, now, deadline time.Time) bool {
	l := c.spec.Lifecycle
	if l == nil || l.PreStop == nil || !now.Before(deadline) {
		return false
	}
	if s := l.PreStop.Sleep; s != nil {
		c.hookUntil = now.Add(model.Seconds(s.Seconds))
		return true
	}
	c.hookUntil = deadline
	p.act(Action{Kind: ActionPreStop, Container: c.spec, Hook: l.PreStop, Timeout: deadline.Sub(now), ID: p.id(c)})
	return true
}

func (p *podState) terminate(c *ctr, now time.Time) {
	c.stop, c.termAt = stopTerm, now
	p.signal(c, runtime.Terminate)
}

// repeatTerm sends TERM again where it did not reach the runtime.
func (p *podState) repeatTerm(c *ctr, now time.Time) {
	switch {
	case c.termRetryAt.IsZero():
	case now.Before(c.termRetryAt):
		p.wakeAt(c.termRetryAt)
	default:
		c.termRetryAt = time.Time{}
		p.signal(c, runtime.Terminate)
	}
}

func (p *podState) signal(c *ctr, s runtime.Signal) {
	p.act(Action{Kind: ActionSignal, Container: c.spec, Signal: s, ID: p.id(c)})
}
