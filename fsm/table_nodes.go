package fsm

import (
	corev1 "k8s.io/api/core/v1"
)

var nodeTable = protoTable("nodes", indexNode)

// indexNode keeps what the nodes offer in the form that decisions need.
func indexNode(v *live, name string, old, now *corev1.Node, hadOld, hasNow bool) {
	what := told{}
	if hadOld {
		what.wasNode = old
	}
	if !hasNow {
		v.usage.DropNode(name)
		v.cache.counters.tell(what)
		return
	}
	what.isNode = now
	v.cache.counters.tell(what)
	v.usage.PutNode(now)
}
