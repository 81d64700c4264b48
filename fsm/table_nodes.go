package fsm

import (
	corev1 "k8s.io/api/core/v1"
)

var nodeTable = protoTable("nodes", indexNode)

// indexNode keeps what the nodes offer in the form that decisions need.
func indexNode(v *live, name string, old, new *corev1.Node, hadOld, hasNew bool) {
	what := told{}
	if hadOld {
		what.wasNode = old
	}
	if !hasNew {
		v.usage.DropNode(name)
		v.cache.counters.tell(what)
		return
	}
	what.isNode = new
	v.cache.counters.tell(what)
	v.usage.PutNode(new)
}
