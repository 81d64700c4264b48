package fsm

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/model"
	"github.com/berth-dev/berth/queue"
)

// ruled is what nodes are judged by: the class of a waiting pod, with what the
// configuration adds to it. A plain class says what a pod itself asks, what it
// uses and who waits together with it, and never whether a node takes it: a
// profile may want other nodes than the pod (archtest holds this).
type ruled struct{ class *model.Class }

// fits says whether a node takes pods of the class, were it used so.
func (r ruled) fits(n *corev1.Node, offer *model.Resources, u *model.Usage) bool {
	return model.Fits(r.class, n, offer, u)
}

// check is fits with the reasons.
func (r ruled) check(n *corev1.Node, offer *model.Resources, u *model.Usage) []model.Reason {
	return model.Check(r.class, n, *offer, u)
}

// failures is check in its cheapest form; those of the node alone for a nil u.
func (r ruled) failures(n *corev1.Node, offer *model.Resources, u *model.Usage) model.Failures {
	f := model.NodeFailures(r.class, n)
	if u != nil {
		f |= model.UsageFailures(r.class, offer, u)
	}
	return f
}

// SinceAsksBilled is the LogVersion from which on it is charged how much a class asks
// of a node object.
const SinceAsksBilled = 18

// askCost is what it costs to compare the class with a node object, beyond what every
// question costs.
func (v *live) askCost(r ruled, n *corev1.Node) int {
	if v.Version() < SinceAsksBilled {
		return 0
	}
	return (r.class.Asks() + len(n.Spec.Taints)*(1+len(r.class.Tolerations))) / asksPerUnit
}

// judge says by which rules between pods the class is kept off nodes.
func (v *live) judge(r ruled) *model.Judge { return v.topology().Judge(r.class) }

// ruledClass is EffectiveClass where only what can keep a pod off a node
// matters: the built-in default constraints cannot (TS13).
func (v *View) ruledClass(c *model.Class, pod *corev1.Pod) ruled {
	if _, system := v.spreadDefaults(); system {
		return ruled{v.withAdditions(c, defaultSpread{}, v.volumesFor(pod))}
	}
	return ruled{v.EffectiveClass(c, pod)}
}

// ruledAlone is ruledClass as far as the class alone says it: without default
// constraints, which go by who owns the pod, and claims.
func (v *View) ruledAlone(c *model.Class) ruled {
	return ruled{v.withAdditions(c, defaultSpread{}, nil)}
}

// ruledClass is View.ruledClass, charged to the entry under way.
func (v *live) ruledClass(c *model.Class, pod *corev1.Pod) ruled {
	v.billClaims(pod)
	return v.View.ruledClass(c, pod)
}

// ruledClassOf is ruledClass for the pod under a key.
func (v *live) ruledClassOf(key string, c *model.Class) ruled {
	if key == "" {
		return v.ruledAlone(c)
	}
	if pod, ok := v.Pods.Get(key); ok {
		return v.ruledClass(c, pod)
	}
	return v.ruledAlone(c)
}

// ruledGroup is the ruled class of a group's pods.
func (v *live) ruledGroup(g *queue.Group) ruled { return ruled{v.queue.RulesOf(v, g)} }
