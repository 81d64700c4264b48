package worker

import (
	"cmp"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/model"
)

// Pods are the pods of this node as a kubelet shows them at /pods, by namespace and name: their newest objects, and their status as the
// node knows it. Static pods are among them, and their mirrors are not; nor are pods whose objects are no more, or of which only the UID is
// known. They share their parts with what the worker goes by, and must not be changed.
func (a *Agent) Pods() (out []*corev1.Pod) {
	a.locked(func() { out = a.core.shown(a.clock.Now()) })
	return out
}

// RunningPods are those pods of this node of which something runs, or holds a sandbox, as a kubelet shows them at /runningpods: what they
// are called, and the containers that run, with their images. A pod whose object is no more is among them until it has ended.
func (a *Agent) RunningPods() (out []*corev1.Pod) {
	a.locked(func() { out = a.core.running() })
	return out
}

func (c *Core) shown(now time.Time) []*corev1.Pod {
	return c.each(func(p *podState) *corev1.Pod {
		switch {
		case p.gone, p.lost:
			return nil
		case p.unseen: // what the servers hold is all that is known of it
			return p.pod
		}
		return p.shown(now)
	})
}

func (c *Core) running() []*corev1.Pod { return c.each((*podState).running) }

// each is what of each pod is shown; nil: nothing.
func (c *Core) each(show func(*podState) *corev1.Pod) []*corev1.Pod {
	var out []*corev1.Pod
	for _, uid := range c.uids() {
		if pod := show(c.pods[uid]); pod != nil {
			out = append(out, pod)
		}
	}
	slices.SortStableFunc(out, func(x, y *corev1.Pod) int {
		return cmp.Or(cmp.Compare(x.Namespace, y.Namespace), cmp.Compare(x.Name, y.Name))
	})
	return out
}

// shown is the pod's newest object with its status. Of the conditions those that are not the node's are as the servers said last.
func (p *podState) shown(now time.Time) *corev1.Pod {
	pod := *cmp.Or(p.wanted, p.pod)
	pod.TypeMeta = metav1.TypeMeta{} // a list says it once
	held := &pod.Status
	status := p.status(now)
	own := model.WorkerConditions()
	for i := range held.Conditions {
		c := &held.Conditions[i]
		has := slices.ContainsFunc(status.Conditions, func(o corev1.PodCondition) bool { return o.Type == c.Type })
		if !has && !slices.Contains(own, c.Type) {
			status.Conditions = append(status.Conditions, *c)
		}
	}
	status.NominatedNodeName = held.NominatedNodeName
	pod.Status = status
	return &pod
}

// running is what runs of the pod; nil: nothing does.
func (p *podState) running() *corev1.Pod {
	if p.lost || !p.alive() && p.sandbox == sandboxNone {
		return nil // of one that is lost nobody knows the name
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: p.pod.Namespace, Name: p.pod.Name, UID: p.pod.UID}}
	for i := range p.ctrs {
		if c := &p.ctrs[i]; c.state == ctrRunning || c.state == ctrHooking {
			pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{Name: c.spec.Name, Image: cmp.Or(c.image, c.spec.Image)})
		}
	}
	return pod
}
