package worker

import (
	"context"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/worker/runtime"
)

const (
	// refreshInterval is how often at most the volumes of a pod are written anew because objects change.
	refreshInterval = time.Second
	// refreshRetry is when volumes that could not be written anew are tried again.
	refreshRetry = time.Minute
	// refreshesAtOnce bounds the pods whose volumes are written anew at a time.
	refreshesAtOnce = 8
)

// ObjectRef names a config map or a secret.
type ObjectRef struct{ Resource, Namespace, Name string }

// Changed takes note that objects are others now. Pods that mount them see it.
func (c *Core) Changed(refs []ObjectRef, now time.Time) {
	changed := make(map[ObjectRef]bool, len(refs))
	for _, ref := range refs {
		changed[ref] = true
	}
	for _, uid := range c.uids() {
		if p := c.pods[uid]; p != nil && mountsAny(p.pod, changed) && p.outdated(now) {
			c.step(p, now)
		}
	}
}

// Doubt is Changed for all objects.
func (c *Core) Doubt(now time.Time) {
	for _, uid := range c.uids() {
		if p := c.pods[uid]; p != nil && p.outdated(now) {
			c.step(p, now)
		}
	}
}

func mountsAny(pod *corev1.Pod, changed map[ObjectRef]bool) bool {
	is := func(resource, name string) bool { return changed[ObjectRef{resource, pod.Namespace, name}] }
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		if v.ConfigMap != nil && is("configmaps", v.ConfigMap.Name) || v.Secret != nil && is("secrets", v.Secret.SecretName) {
			return true
		}
		if v.Projected == nil {
			continue
		}
		for j := range v.Projected.Sources {
			s := &v.Projected.Sources[j]
			if s.ConfigMap != nil && is("configmaps", s.ConfigMap.Name) || s.Secret != nil && is("secrets", s.Secret.Name) {
				return true
			}
		}
	}
	return false
}

// outdated: what the pod's volumes show, if they show objects, may be another thing now.
func (p *podState) outdated(now time.Time) (shows bool) {
	if !p.env.files || !slices.ContainsFunc(p.pod.Spec.Volumes, func(v corev1.Volume) bool { return runtime.ShowsObjects(&v) }) {
		return false
	}
	at := p.refreshedAt.Add(refreshInterval)
	if at.Before(now) {
		at = now
	}
	p.refreshBy(at)
	return true
}

// refreshBy has the pod's volumes written anew at a time, at the latest; the zero time means nothing.
func (p *podState) refreshBy(at time.Time) {
	if !at.IsZero() && (p.refreshAt.IsZero() || at.Before(p.refreshAt)) {
		p.refreshAt = at
	}
}

// relabeled: the downward API shows labels and annotations.
func (p *podState) relabeled(old *corev1.Pod, now time.Time) {
	if !maps.Equal(old.Labels, p.pod.Labels) || !maps.Equal(old.Annotations, p.pod.Annotations) {
		p.outdated(now)
	}
}

func (p *podState) stepRefresh(now time.Time) {
	switch {
	case !p.env.files || p.refreshing || p.refreshAt.IsZero():
	case now.Before(p.refreshAt):
		p.wakeAt(p.refreshAt)
	default:
		p.refreshing, p.refreshAt, p.refreshedAt = true, time.Time{}, now
		p.act(Action{Kind: ActionRefresh})
	}
}

// refreshed takes the outcome. What failed is tried again, and told once.
func (p *podState) refreshed(o Outcome, now time.Time) {
	p.refreshing = false
	p.refreshBy(o.RenewAt)
	said := p.refreshError
	p.refreshError = ""
	if o.Err == nil {
		return
	}
	p.refreshBy(now.Add(refreshRetry))
	if p.refreshError = o.Err.Error(); p.refreshError != said {
		p.emit(corev1.EventTypeWarning, "FailedMount", "Error: "+p.refreshError)
	}
}

// refresh writes the pod's volumes anew.
func (c *caller) refresh(ctx context.Context, a Action) error {
	if c.volumes == nil {
		return nil
	}
	select {
	case c.refreshes <- struct{}{}:
		defer func() { <-c.refreshes }()
	case <-ctx.Done():
		return ctx.Err()
	}
	return c.volumes.refresh(ctx, &resolver{pod: a.Pod, alloc: c.alloc, podIPs: a.IPs, hostIPs: c.hostIPs, getter: c.getter})
}
