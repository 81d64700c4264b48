package fsm

import (
	corev1 "k8s.io/api/core/v1"
)

var nodeTable = protoTable("nodes", indexNode)

// indexNode keeps what the nodes offer in the form that decisions need.
func indexNode(v *live, name string, _, new *corev1.Node, _, hasNew bool) {
	t := v.cache.topology
	if !hasNew {
		v.usage.DropNode(name)
		if t != nil {
			t.RemoveNode(name)
		}
		return
	}
	if t != nil {
		t.PutNode(new)
	}
	v.usage.PutNode(new)
}
