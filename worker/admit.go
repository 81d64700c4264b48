package worker

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/model"
)

// admit decides whether the node takes the pod, as the last check that the scheduler's view was right. Refused pods
// fail with the reason that Kubernetes' node agent gives. A pod that does not fit only because others are still on
// their way out waits for them, and a critical pod makes others leave (PR21).
func (c *Core) admit(p *podState) {
	if c.closing {
		p.admission, p.verdict = rejected, &verdict{"NodeShutdown", "Pod was rejected as the node is shutting down."}
		p.emit(corev1.EventTypeWarning, p.verdict.reason, p.verdict.message)
		return
	}
	if v := c.pressed(p); v != nil {
		p.admission, p.verdict = rejected, &verdict{v.reason, "Pod was rejected: " + v.message}
		p.emit(corev1.EventTypeWarning, v.reason, v.message)
		return
	}
	ahead := c.heldBefore(p)
	objections := c.objections(p, c.usage.Plus(ahead))
	if len(objections) == 0 {
		p.admission = admitted
		c.count(p)
		return
	}
	later := c.objections(p, c.usageWithoutLeaving().Plus(ahead))
	if len(later) == 0 {
		c.hold(p)
		return
	}
	v := objections[0].verdict
	if p.critical() {
		if v = c.makeRoom(p, later); v == nil {
			c.hold(p)
			return
		}
	}
	p.admission = rejected
	p.verdict = &verdict{v.reason, "Pod was rejected: " + v.message}
	p.emit(corev1.EventTypeWarning, v.reason, v.message)
}

// resume lets a pod go on whose end was taken back. Its room may be another's by now.
func (c *Core) resume(p *podState) {
	p.stopAt, p.grace = time.Time{}, 0
	// What began to be given back and failed may have been given back in part: nothing of it counts.
	if p.unmount == removalDone || !p.unmountRetryAt.IsZero() || !p.removeRetryAt.IsZero() && p.hasVolumes() {
		p.forgetInits()
	}
	// Nor does a sandbox that could not be stopped, of which the runtime may know nothing any more.
	if !p.removeRetryAt.IsZero() || p.sandbox == sandboxReady && !p.sandboxRetryAt.IsZero() {
		p.forgetSandbox()
	}
	p.unmount, p.unmountRetryAt, p.removeRetryAt = removalNone, time.Time{}, time.Time{}
	if p.admission == admitted && !p.counted {
		p.admission = admissionOpen
		c.admit(p)
	}
}

// hasRoom says whether nobody has taken the room meanwhile of a pod that began here and of which nothing runs any more, as where the servers went back to
// an older state of theirs. Devices may be there later than their node.
func (c *Core) hasRoom(p *podState) bool {
	usage := c.usage.Plus(c.heldBefore(p))
	return !slices.ContainsFunc(model.CheckUsage(p.class, c.alloc, &usage), func(r model.Reason) bool {
		return r.Resource == "" || isMachines(r.Resource)
	})
}

func (c *Core) count(p *podState) {
	c.usage = c.usage.With(p.class)
	p.counted = true
}

// hold lets the pod wait until the room is there: critical pods before others, and else in the order in which they came.
func (c *Core) hold(p *podState) {
	i := len(c.held)
	if p.critical() {
		i = slices.IndexFunc(c.held, func(q *podState) bool { return !q.critical() })
		if i < 0 {
			i = len(c.held)
		}
	}
	c.held = slices.Insert(c.held, i, p)
}

// heldBefore is what is kept for the pods whose turn is before that of a pod that is judged now.
func (c *Core) heldBefore(p *podState) model.Usage {
	var u model.Usage
	for _, q := range c.held {
		if c.waits(q) && (q.critical() || !p.critical()) {
			u = u.With(q.class)
		}
	}
	return u
}

// waits says whether a held pod is still to be admitted.
func (c *Core) waits(p *podState) bool {
	return c.pods[p.pod.UID] == p && p.admission == admissionOpen && !p.gone && p.pod.DeletionTimestamp == nil
}

// usageWithoutLeaving is what will be in use when everything that is ending has ended, and every resize under way is done.
func (c *Core) usageWithoutLeaving() model.Usage {
	u := c.usage
	for _, uid := range c.uids() {
		switch p := c.pods[uid]; {
		case !p.counted:
		case p.leaving():
			u = u.Without(p.class)
		case p.resize.progress != 0:
			u = u.Without(p.class).With(c.classes.Of(p.pod))
		}
	}
	return u
}

// retryHeld looks again at the pods that wait for room.
func (c *Core) retryHeld(now time.Time) {
	held := c.held
	c.held = nil
	for i, p := range held {
		if !c.waits(p) {
			continue
		}
		c.admit(p)
		if p.admission == admissionOpen {
			c.held = append(c.held, held[i+1:]...)
			break // those that wait longer come first
		}
		c.step(p, now)
	}
	c.stopPreempted(now)
}

// objection is one reason to refuse a pod. With a resource, it is that so much of it is missing.
type objection struct {
	verdict *verdict
	shortage
}

// objections are the reasons that the node has to refuse the pod beside what is in use.
func (c *Core) objections(p *podState, usage model.Usage) []objection {
	var out []objection
	object := func(reason, format string, args ...any) {
		out = append(out, objection{verdict: &verdict{reason, fmt.Sprintf(format, args...)}})
	}
	if p.pod.Spec.NodeName != c.node.Name {
		object("NodeName", "Predicate NodeName failed: the pod is bound to node %q, this is %q", p.pod.Spec.NodeName, c.node.Name)
	}
	if os := p.pod.Spec.OS; os != nil && string(os.Name) != c.node.Status.NodeInfo.OperatingSystem && c.node.Status.NodeInfo.OperatingSystem != "" {
		object("PodOSNotSupported", "Failed to admit pod as the OS field doesn't match node OS")
	}
	for _, r := range model.CheckUsage(p.class, c.alloc, &usage) {
		switch r.Kind {
		case model.InsufficientResource, model.ExceedsCapacity:
			// A pod may ask for extended resources that are not the node's but the cluster's.
			if !c.offers(r.Resource) {
				continue
			}
			object("OutOf"+r.Resource, "Node didn't have enough resource: %s, requested: %d, used: %d, capacity: %d",
				r.Resource, p.class.Request.Get(r.Resource), usage.Requested.Get(r.Resource), c.alloc.Get(r.Resource))
			out[len(out)-1].shortage = shortage{r.Resource, r.ShortBy}
		default:
			object(r.Kind.String(), "Predicate %s failed: %s", r.Kind, r.Text())
		}
	}
	if !c.labelsKnown {
		return out
	}
	for _, r := range model.CheckNode(p.class, c.node) {
		// Taints and cordons concern placement; what is bound stays until its eviction.
		if r.Kind == model.NodeAffinity {
			object(r.Kind.String(), "Predicate %s failed: %s", r.Kind, r.Text())
		}
	}
	return out
}

func (c *Core) offers(resource string) bool {
	_, ok := c.node.Status.Allocatable[corev1.ResourceName(resource)]
	return ok || isMachines(resource)
}

// isMachines: every machine has some of it.
func isMachines(resource string) bool {
	switch corev1.ResourceName(resource) {
	case corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage, corev1.ResourcePods:
		return true
	}
	return false
}
