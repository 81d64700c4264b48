package worker

import (
	"cmp"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// snapshot, and back: the servers go back to it
func (b *bench) goBack(back bool) {
	if !back {
		b.saved = maps.Clone(b.pods)
		return
	}
	b.pods = maps.Clone(b.saved)
	pods := slices.SortedFunc(maps.Values(b.pods), func(x, y *corev1.Pod) int { return cmp.Compare(x.Name, y.Name) })
	b.core.Assign(Assignment{Full: true, Pods: pods, Node: b.node}, b.clock.Now())
}
