package fsm

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/model"
)

var nodeTable = protoTable("nodes", indexNode)

// indexNode keeps what the nodes offer in the form that decisions need.
func indexNode(v *live, name string, _, new *corev1.Node, _, hasNew bool) {
	t := v.cache.topology
	if !hasNew {
		v.offers.Delete(name)
		if t != nil {
			t.RemoveNode(name)
		}
		return
	}
	if t != nil {
		t.PutNode(new)
	}
	offer := model.Allocatable(new)
	v.offers.Set(name, &offer)
}

// offer is what a node that is there has for pods.
func (v *View) offer(node string) *model.Resources {
	o, _ := v.offers.Get(node)
	return o
}
