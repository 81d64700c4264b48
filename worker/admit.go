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
// their way out waits for them.
func (c *Core) admit(p *podState) {
	v := c.refusal(p, c.usage)
	switch {
	case v == nil:
		p.admission = admitted
		p.held = false
		c.count(p)
	case c.refusal(p, c.usageWithoutLeaving()) == nil:
		if !p.held {
			p.held = true
			c.held = append(c.held, p)
		}
	default:
		p.held = false
		p.admission = rejected
		p.verdict = &verdict{v.reason, "Pod was rejected: " + v.message}
		p.emit(corev1.EventTypeWarning, v.reason, v.message)
	}
}

func (c *Core) count(p *podState) {
	c.usage = c.usage.With(p.class)
	p.counted = true
}

// usageWithoutLeaving is what will be in use when everything that is ending has ended.
func (c *Core) usageWithoutLeaving() model.Usage {
	u := c.usage
	for _, uid := range c.uids() {
		if p := c.pods[uid]; p.counted && (p.gone || p.pod.DeletionTimestamp != nil) {
			u = u.Without(p.class)
		}
	}
	return u
}

// retryHeld looks again at the pods that wait for room.
func (c *Core) retryHeld(now time.Time) {
	held := c.held
	c.held = nil
	for i, p := range held {
		if c.pods[p.pod.UID] != p || p.admission != admissionOpen || p.gone || p.pod.DeletionTimestamp != nil {
			continue
		}
		p.held = false
		c.admit(p)
		if p.admission == admissionOpen {
			c.held = append(c.held, slices.DeleteFunc(held[i+1:], func(q *podState) bool { return q == p })...)
			return // those that wait longer come first
		}
		c.step(p, now)
	}
}

func (c *Core) refusal(p *podState, usage model.Usage) *verdict {
	if p.pod.Spec.NodeName != c.node.Name {
		return &verdict{"NodeName", fmt.Sprintf("Predicate NodeName failed: the pod is bound to node %q, this is %q", p.pod.Spec.NodeName, c.node.Name)}
	}
	if os := p.pod.Spec.OS; os != nil && string(os.Name) != c.node.Status.NodeInfo.OperatingSystem && c.node.Status.NodeInfo.OperatingSystem != "" {
		return &verdict{"PodOSNotSupported", "Failed to admit pod as the OS field doesn't match node OS"}
	}
	for _, r := range model.CheckUsage(p.class, c.alloc, &usage) {
		switch r.Kind {
		case model.InsufficientResource, model.ExceedsCapacity:
			// A pod may ask for extended resources that are not the node's but the cluster's.
			if !c.offers(r.Resource) {
				continue
			}
			return &verdict{"OutOf" + r.Resource, fmt.Sprintf("Node didn't have enough resource: %s, requested: %d, used: %d, capacity: %d",
				r.Resource, p.class.Request.Get(r.Resource), usage.Requested.Get(r.Resource), c.alloc.Get(r.Resource))}
		default:
			return &verdict{r.Kind.String(), fmt.Sprintf("Predicate %s failed: %s", r.Kind, r.Text())}
		}
	}
	if !c.labelsKnown {
		return nil
	}
	for _, r := range model.CheckNode(p.class, c.node) {
		// Taints and cordons concern placement; what is bound stays until its eviction.
		if r.Kind == model.NodeAffinity {
			return &verdict{r.Kind.String(), fmt.Sprintf("Predicate %s failed: %s", r.Kind, r.Text())}
		}
	}
	return nil
}

func (c *Core) offers(resource string) bool {
	switch corev1.ResourceName(resource) {
	case corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage, corev1.ResourcePods:
		return true
	}
	_, ok := c.node.Status.Allocatable[corev1.ResourceName(resource)]
	return ok
}
