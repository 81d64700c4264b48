package controller

import (
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/fsm"
)

// pressureTaints are the taints that conditions of a node bring while they are true, as in
// Kubernetes: whoever does not tolerate them is not placed there.
var pressureTaints = []struct {
	condition corev1.NodeConditionType
	taint     string
}{
	{corev1.NodeMemoryPressure, corev1.TaintNodeMemoryPressure},
	{corev1.NodeDiskPressure, corev1.TaintNodeDiskPressure},
	{corev1.NodePIDPressure, corev1.TaintNodePIDPressure},
	{corev1.NodeNetworkUnavailable, corev1.TaintNodeNetworkUnavailable},
}

// pressureAtOnce bounds the nodes whose taints are set at a time.
const pressureAtOnce = 100

// PressureTaints brings the taints of nodes in step with what they say that they are short of.
func PressureTaints(v *fsm.View) []fsm.Command {
	var out []fsm.Command
	v.Nodes.Scan("", func(_ string, n *corev1.Node) bool {
		if taints, changed := withPressure(n); changed {
			next := n.DeepCopy()
			next.Spec.Taints = taints
			revision, _ := strconv.ParseInt(n.ResourceVersion, 10, 64) // the state's own
			out = append(out, &fsm.PutNode{Node: fsm.NodeWire{Object: next}, Revision: revision})
		}
		return len(out) < pressureAtOnce
	})
	return out
}

// withPressure gives the taints that a node is to have.
func withPressure(n *corev1.Node) (taints []corev1.Taint, changed bool) {
	taints = n.Spec.Taints
	for _, p := range pressureTaints {
		short := slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
			return c.Type == p.condition && c.Status == corev1.ConditionTrue
		})
		switch has := hasTaint(n, p.taint, corev1.TaintEffectNoSchedule); {
		case short && !has:
			taints, changed = append(slices.Clone(taints), corev1.Taint{Key: p.taint, Effect: corev1.TaintEffectNoSchedule}), true
		case !short && has:
			taints, changed = slices.DeleteFunc(slices.Clone(taints), func(t corev1.Taint) bool {
				return t.Key == p.taint && t.Effect == corev1.TaintEffectNoSchedule
			}), true
		}
	}
	return taints, changed
}
