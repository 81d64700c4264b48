package worker

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// What is said of pods when their machine ends, in Kubernetes' words.
const (
	shutdownReason  = "Terminated"
	shutdownMessage = "Pod was terminated in response to imminent node shutdown."
	shutdownUnready = "node is shutting down"

	// shutdownLook is how often it is looked whether the pods have ended.
	shutdownLook = 50 * time.Millisecond
	// shutdownTell is what of the time is left for the servers to hear it.
	shutdownTell = time.Second
)

// EndFor ends the pods because the machine ends: the critical ones, or all others. From now on the node takes none.
func (c *Core) EndFor(critical bool, within time.Duration, now time.Time) {
	c.closing = true
	for _, uid := range c.uids() {
		p := c.pods[uid]
		if p == nil || p.unseen || p.critical() != critical || !p.alive() && !p.counted {
			continue
		}
		if !p.leaving() {
			p.verdict = &verdict{shutdownReason, shutdownMessage}
			p.disruptedFor = shutdownMessage
			p.emit(corev1.EventTypeWarning, shutdownReason, shutdownMessage)
		}
		p.beginStop(now, min(p.specGrace(), within))
		c.step(p, now)
	}
}

// Ending says how many pods of a kind still run.
func (c *Core) Ending(critical bool) int {
	n := 0
	for _, p := range c.pods {
		if p.critical() == critical && p.alive() {
			n++
		}
	}
	return n
}

// Reopen takes pods again: the machine does not end. Pods of the node's own begin again, others are for the servers to replace.
func (c *Core) Reopen(now time.Time) {
	c.closing = false
	for _, uid := range c.uids() {
		if p := c.pods[uid]; p != nil && p.static && p.verdict != nil && p.verdict.reason == shutdownReason {
			p.verdict, p.disruptedFor = nil, ""
			c.step(p, now)
		}
	}
}

// ShutDown ends all pods because the machine is about to end: critical ones after the others, or when two thirds of the time are
// over. It returns when they have ended and the servers were told, or the time is over.
func (a *Agent) ShutDown(ctx context.Context, within time.Duration, told func() bool) {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	a.log.Info("the machine is about to end, and its pods do", "within", within)
	begun := a.clock.Now()
	pods := max(within-min(shutdownTell, within/10), 0)
	a.closing.Store(true)
	a.inputs.put(func(now time.Time) {
		a.reportedAt, a.probeAt = time.Time{}, now
		a.outdated = a.probing
		a.core.EndFor(false, pods*2/3, now)
	})
	left := func(critical bool) (n int) {
		a.locked(func() { n = a.core.Ending(critical) })
		return n
	}
	a.until(ctx, pods*2/3, func() bool { return left(false) == 0 })
	rest := pods - a.clock.Since(begun)
	a.inputs.put(func(now time.Time) { a.core.EndFor(true, rest, now) })
	a.until(ctx, rest, func() bool { return left(false) == 0 && left(true) == 0 })
	a.until(ctx, within, func() bool {
		waiting := 0
		a.locked(func() { waiting = len(a.core.reports) + len(a.core.inReport) })
		return waiting == 0 && told()
	})
	a.log.Info("the machine may end", "pods", left(false)+left(true), "after", a.clock.Since(begun))
}

// StayUp is the end of ShutDown where the machine does not end after all.
func (a *Agent) StayUp() {
	a.closing.Store(false)
	a.inputs.put(func(now time.Time) {
		a.reportedAt, a.probeAt = time.Time{}, now
		a.outdated = a.probing
		a.core.Reopen(now)
	})
}

// until waits until something is so, or for so long.
func (a *Agent) until(ctx context.Context, limit time.Duration, so func() bool) {
	over := a.clock.Now().Add(limit)
	for !so() && a.clock.Now().Before(over) {
		select {
		case <-ctx.Done():
			return
		case <-a.clock.After(shutdownLook):
		}
	}
}
