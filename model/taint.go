package model

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
)

// Tolerates says whether the toleration tolerates the taint. The numeric operators Lt and Gt are alpha in Kubernetes and
// tolerate nothing here; the logger that upstream's method wants speaks only for those.
func Tolerates(toleration *corev1.Toleration, taint *corev1.Taint) bool {
	return toleration.ToleratesTaint(klog.Logger{}, taint, false)
}

// tolerates says whether any of the tolerations tolerates the taint.
func tolerates(tolerations []corev1.Toleration, taint *corev1.Taint) bool {
	for i := range tolerations {
		if Tolerates(&tolerations[i], taint) {
			return true
		}
	}
	return false
}

// keepsOut says whether the taint bars pods from being scheduled. NoExecute does as well as NoSchedule.
func keepsOut(t *corev1.Taint) bool {
	return t.Effect == corev1.TaintEffectNoSchedule || t.Effect == corev1.TaintEffectNoExecute
}

// unschedulableTaint is what spec.unschedulable means to tolerations: a pod that tolerates this may be placed on a
// cordoned node.
var unschedulableTaint = corev1.Taint{Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule}

// PreferNoScheduleCount returns how many PreferNoSchedule taints of the node the class does not tolerate: the raw score
// of kube-scheduler's TaintToleration.
func (c *Class) PreferNoScheduleCount(node *corev1.Node) int64 {
	var n int64
	for i := range node.Spec.Taints {
		t := &node.Spec.Taints[i]
		// Only tolerations for PreferNoSchedule or for every effect can match such a taint.
		if t.Effect == corev1.TaintEffectPreferNoSchedule && !tolerates(c.Tolerations, t) {
			n++
		}
	}
	return n
}

// PreferredAffinity returns the sum of the weights of the preferred node affinity terms that the node matches: the raw
// score of kube-scheduler's NodeAffinity.
func (c *Class) PreferredAffinity(node *corev1.Node) int64 {
	var score int64
	if c.preferred != nil {
		score = c.preferred.score(node)
	}
	if c.added != nil && c.added.preferred != nil {
		score += c.added.preferred.score(node)
	}
	return score
}

// AnyNode says whether the class asks nothing of a node but room: then a node without taints that is not cordoned has no
// NodeFailures for it and raw scores of 0.
func (c *Class) AnyNode() bool {
	return !c.selects && c.preferred == nil && c.added == nil && c.volumes == nil
}
